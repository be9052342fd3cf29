import java.io.FileInputStream;
import java.io.InputStream;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.Random;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;

/**
 * Fills a new store through the release's own batch put, up to a size of the log, and stops it cleanly:
 * Maker ROOT PROPERTIES LOG_BYTES BODY_BYTES TOPICS QUEUES_PER_TOPIC KEYS. KEYS is 0, 1 (a unique key) or 2 (a user key as well).
 *
 * Message n has the unique key U followed by 15 digits of n, the user key K and n, and is the next one of queue (n / BATCH) modulo the queues.
 */
public final class Maker {
    private static final int BATCH = 100;
    private static final int NEVER_MORE_AROUND_A_BODY = 400;
    private static final byte[] NOISE = new byte[1 << 20];

    private Maker() {
    }

    public static void main(String[] arguments) {
        try {
            make(arguments);
            Runtime.getRuntime().halt(0); // a real store leaves threads behind, whatever comes of it
        } catch (Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static void make(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (InputStream in = new FileInputStream(arguments[1])) {
            properties.load(in);
        }
        new Random(7).nextBytes(NOISE);
        DefaultMessageStore store = RealStore.open(arguments[0], properties, Integer.getInteger("ha.port"));
        if (!store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        store.start();
        long messages = fill(store, Long.parseLong(arguments[2]), Integer.parseInt(arguments[3]),
            Integer.parseInt(arguments[4]), Integer.parseInt(arguments[5]), Integer.parseInt(arguments[6]));
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(50);
        }
        Thread.sleep(1000); // the index is built by the same thread, a little later
        long end = store.getMaxPhyOffset();
        store.shutdown();
        System.out.println("made " + messages + " " + end);
    }

    private static long fill(DefaultMessageStore store, long logBytes, int bodyBytes, int topics, int queues, int keys) throws Exception {
        long number = 0;
        long batch = 0;
        long most = (long) BATCH * (bodyBytes + NEVER_MORE_AROUND_A_BODY);
        while (store.getMaxPhyOffset() + most <= logBytes) {
            int queue = (int) (batch++ % ((long) topics * queues));
            String topic = "bench_" + (queue / queues);
            List<Message> messages = new ArrayList<>(BATCH);
            for (int i = 0; i < BATCH; i++) {
                messages.add(message(topic, number++, bodyBytes, keys));
            }
            put(store, topic, queue % queues, MessageDecoder.encodeMessages(messages));
        }
        return number;
    }

    private static Message message(String topic, long number, int bodyBytes, int keys) {
        byte[] body = new byte[bodyBytes];
        System.arraycopy(NOISE, (int) (number * 509 % (NOISE.length - bodyBytes)), body, 0, bodyBytes);
        Message message = new Message(topic, "tag" + number % 10, body);
        if (keys > 0) {
            message.putUserProperty("made_by", "benchmark");
            setUniqueKey(message, String.format("U%015d", number));
        }
        if (keys > 1) {
            message.setKeys("K" + number);
        }
        return message;
    }

    private static void setUniqueKey(Message message, String key) {
        message.getProperties().put("UNIQ_KEY", key);
    }

    private static void put(DefaultMessageStore store, String topic, int queueId, byte[] encoded) throws Exception {
        for (int attempt = 0; attempt < 1000; attempt++) {
            MessageExtBatch batch = new MessageExtBatch();
            batch.setTopic(topic);
            batch.setQueueId(queueId);
            batch.setBody(encoded);
            batch.setBornTimestamp(System.currentTimeMillis());
            batch.setBornHost(new InetSocketAddress("127.0.0.1", 1));
            batch.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
            PutMessageResult result = store.putMessages(batch);
            if (result.getPutMessageStatus() == PutMessageStatus.PUT_OK) {
                return;
            }
            Thread.sleep(20); // a busy page cache says so
        }
        throw new IllegalStateException("the store takes no more messages");
    }
}
