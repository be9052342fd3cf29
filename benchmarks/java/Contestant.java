import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.logfile.MappedFile;

/**
 * The real broker's side of the contests: Contestant ROOT PROPERTIES loads a store, says "ready MILLISECONDS", and answers one line for each line it is asked.
 *
 * scan: every segment through the recovery's own check, body checksum included: seconds, records, seconds of processor time.
 * decode: every record of the log through MessageDecoder, body and properties included: seconds, records, seconds of processor time.
 * pull TOPIC QUEUE_ID: a whole queue, 32 at a time, decoded: seconds, messages, seconds of processor time.
 */
public final class Contestant {
    private static final int PULL = 32;

    private final DefaultMessageStore store;

    private Contestant(DefaultMessageStore store) {
        this.store = store;
    }

    public static void main(String[] arguments) throws Exception {
        long started = System.nanoTime();
        Properties properties = new Properties();
        try (InputStream in = new FileInputStream(arguments[1])) {
            properties.load(in);
        }
        DefaultMessageStore store = RealStore.open(arguments[0], properties, Integer.getInteger("ha.port"));
        if (!store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        System.out.println("ready " + (System.nanoTime() - started) / 1_000_000);
        if (Boolean.getBoolean("serve")) {
            store.start(); // before that it answers nothing but scan
        }
        Contestant contestant = new Contestant(store);
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            System.out.println(contestant.told(line));
            System.out.flush();
        }
        if (Boolean.getBoolean("serve")) {
            store.shutdown();
        }
        Runtime.getRuntime().halt(0); // a real store leaves threads behind
    }

    private String told(String line) {
        try {
            return answer(line.split(" "));
        } catch (Throwable e) {
            return "error " + Reflect.chain(e);
        }
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "scan":
                return scan();
            case "decode":
                return decode();
            case "pull":
                return pull(words[1], Integer.parseInt(words[2]));
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private String scan() {
        long started = System.nanoTime();
        long startedCpu = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
        CommitLog log = store.getCommitLog();
        long records = 0;
        for (MappedFile file : log.getMappedFileQueue().getMappedFiles()) {
            ByteBuffer bytes = file.sliceByteBuffer();
            while (true) {
                DispatchRequest verdict = log.checkMessageAndReturnSize(bytes, true, false);
                if (!verdict.isSuccess() || verdict.getMsgSize() <= 0) {
                    break;
                }
                records++;
            }
        }
        double cpu = (ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - startedCpu) / 1e9;
        return seconds(started) + " " + records + " " + cpu;
    }

    private String decode() {
        long started = System.nanoTime();
        long startedCpu = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
        long records = 0;
        for (MappedFile file : store.getCommitLog().getMappedFileQueue().getMappedFiles()) {
            ByteBuffer bytes = file.sliceByteBuffer();
            while (bytes.remaining() > 8 && bytes.getInt(bytes.position()) > 0
                && bytes.getInt(bytes.position() + 4) != CommitLog.BLANK_MAGIC_CODE) {
                int end = bytes.position() + bytes.getInt(bytes.position());
                MessageExt message = MessageDecoder.decode(bytes);
                if (message == null) {
                    break;
                }
                records += message.getBody() == null ? 0 : 1;
                bytes.position(end);
            }
        }
        double cpu = (ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - startedCpu) / 1e9;
        return seconds(started) + " " + records + " " + cpu;
    }

    private String pull(String topic, int queueId) {
        long started = System.nanoTime();
        long startedCpu = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
        long offset = 0;
        long messages = 0;
        while (true) {
            GetMessageResult found = store.getMessage("bench", topic, queueId, offset, PULL, null);
            if (found.getStatus() != GetMessageStatus.FOUND) {
                break;
            }
            for (ByteBuffer record : found.getMessageBufferList()) {
                MessageExt message = MessageDecoder.decode(record);
                messages += message.getBody() == null ? 0 : 1;
            }
            offset = found.getNextBeginOffset();
            found.release();
        }
        double cpu = (ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - startedCpu) / 1e9;
        return seconds(started) + " " + messages + " " + cpu;
    }

    private static String seconds(long started) {
        return Double.toString((System.nanoTime() - started) / 1e9);
    }
}
