import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.logfile.MappedFile;

/**
 * The real broker's side of the contests: Contestant ROOT PROPERTIES loads a store, says "ready MILLISECONDS", and answers one line for each line it is asked.
 *
 * scan: every segment through the recovery's own check, body checksum included: seconds, records, seconds of processor time.
 * decode: every record of the log through MessageDecoder, body and properties included: seconds, records, seconds of processor time.
 * pull TOPIC QUEUE_ID: a whole queue, 32 at a time, decoded: seconds, messages, seconds of processor time.
 * put FIRST COUNT THREADS BODY_BYTES: messages one at a time: seconds, messages stored, seconds of the process's processor time.
 */
public final class Contestant {
    private static final int PULL = 32;
    private static final InetSocketAddress HERE = new InetSocketAddress("127.0.0.1", 10911);

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
            case "put":
                return put(Integer.parseInt(words[1]), Integer.parseInt(words[2]), Integer.parseInt(words[3]), new byte[Integer.parseInt(words[4])]);
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

    private String put(int first, int count, int threads, byte[] body) throws Exception {
        com.sun.management.OperatingSystemMXBean process =
            (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        AtomicLong stored = new AtomicLong();
        Thread[] writers = new Thread[threads];
        long started = System.nanoTime();
        long startedCpu = process.getProcessCpuTime();
        for (int writer = 0; writer < threads; writer++) {
            int begin = first + writer * (count / threads);
            writers[writer] = new Thread(() -> {
                for (int number = begin; number < begin + count / threads; number++) {
                    stored.addAndGet(putOne(number, body) ? 1 : 0);
                }
            });
            writers[writer].start();
        }
        for (Thread writer : writers) {
            writer.join();
        }
        double cpu = (process.getProcessCpuTime() - startedCpu) / 1e9;
        return seconds(started) + " " + stored.get() + " " + cpu;
    }

    private boolean putOne(int number, byte[] body) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic("bench_0");
        message.setQueueId(number % 8);
        message.setBody(body);
        MessageAccessor.putProperty(message, "UNIQ_KEY", String.format("U%015d", number));
        message.setKeys("K" + number);
        message.setTags("tag" + number % 10);
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(HERE);
        message.setStoreHost(HERE);
        return store.putMessage(message).getPutMessageStatus() == PutMessageStatus.PUT_OK;
    }

    private static String seconds(long started) {
        return Double.toString((System.nanoTime() - started) / 1e9);
    }
}
