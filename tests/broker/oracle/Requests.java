import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;

/** Questions to a started store: one line each, fields separated by tabs. */
final class Requests {
    private Requests() {
    }

    static Object answer(DefaultMessageStore store, String line) {
        String[] f = line.split("\t", -1);
        try {
            switch (f[0]) {
                case "look":
                    return look(store, Long.parseLong(f[1]));
                case "pull":
                    return pull(store, f[1], Integer.parseInt(f[2]), Long.parseLong(f[3]), Integer.parseInt(f[4]));
                case "keys":
                    return keys(store, f[1], f[2], Integer.parseInt(f[3]), Long.parseLong(f[4]), Long.parseLong(f[5]));
                case "time":
                    return Json.object("queueOffset", byTime(store, f[1], Integer.parseInt(f[2]), Long.parseLong(f[3]), f[4]));
                case "put":
                    return put(store, f);
                case "expire":
                    return expire(store, Long.parseLong(f[1]), Boolean.parseBoolean(f[2]));
                default:
                    throw new IllegalArgumentException(f[0]);
            }
        } catch (Throwable e) {
            return Json.object("exception", Reflect.chain(e));
        }
    }

    /** What the store's own clean-up does, at once: segments first, then queues and index. */
    private static Object expire(DefaultMessageStore store, long millis, boolean atOnce) throws Exception {
        int segments = 0;
        int round;
        do {
            round = store.getCommitLog().deleteExpiredFile(millis, 0, 0, atOnce);
            segments += round;
        } while (round > 0);
        Object queues;
        try {
            queues = Reflect.field(store, "cleanConsumeQueueService");
        } catch (NoSuchFieldException newer) {
            queues = Reflect.field(Reflect.field(store, "consumeQueueStore"), "cleanConsumeQueueService");
        }
        Reflect.call(queues, "run");
        Reflect.call(Reflect.field(store, "indexService"), "deleteExpiredFile", store.getMinPhyOffset());
        return Json.object("segments", segments, "minPhyOffset", store.getMinPhyOffset());
    }

    private static Object look(DefaultMessageStore store, long phyOffset) throws Exception {
        MessageExt message = store.lookMessageByOffset(phyOffset);
        return message == null ? null : Messages.fields(message);
    }

    /** What a consumer's pull gets, without a filter. */
    private static Object pull(DefaultMessageStore store, String topic, int queueId, long offset, int max) throws Exception {
        GetMessageResult found = store.getMessage("oracle", topic, queueId, offset, max, null);
        List<Object> messages = new ArrayList<>();
        for (ByteBuffer record : found.getMessageBufferList()) {
            messages.add(Messages.decode(record));
        }
        Map<String, Object> result = Json.object(
            "status", found.getStatus(), "nextBeginOffset", found.getNextBeginOffset(),
            "minOffset", found.getMinOffset(), "maxOffset", found.getMaxOffset(), "messages", messages);
        found.release();
        return result;
    }

    /** The releases that know boundaries have another method for them. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Object byTime(DefaultMessageStore store, String topic, int queueId, long timestamp, String boundary) throws Exception {
        if (boundary.isEmpty()) {
            return store.getOffsetInQueueByTime(topic, queueId, timestamp);
        }
        Class type = Class.forName("org.apache.rocketmq.common.BoundaryType");
        return Reflect.call(store, "getOffsetInQueueByTime", topic, queueId, timestamp, Enum.valueOf(type, boundary.toUpperCase()));
    }

    private static Object keys(DefaultMessageStore store, String topic, String key, int max, long begin, long end) throws Exception {
        QueryMessageResult found = store.queryMessage(topic, key, max, begin, end);
        List<Object> messages = new ArrayList<>();
        for (ByteBuffer record : found.getMessageBufferList()) {
            messages.add(Messages.decode(record));
        }
        Map<String, Object> result = Json.object("indexLastPhyOffset", found.getIndexLastUpdatePhyoffset(), "indexLastTimestamp", found.getIndexLastUpdateTimestamp(), "messages", messages);
        found.release();
        return result;
    }

    /** put TOPIC QUEUE_ID BODY [NAME VALUE]... */
    private static Object put(DefaultMessageStore store, String[] f) throws Exception {
        Class<?> type = Reflect.firstClass(
            "org.apache.rocketmq.common.message.MessageExtBrokerInner", "org.apache.rocketmq.store.MessageExtBrokerInner");
        MessageExt message = (MessageExt) type.getConstructor().newInstance();
        message.setTopic(f[1]);
        message.setQueueId(Integer.parseInt(f[2]));
        message.setBody(f[3].getBytes(StandardCharsets.UTF_8));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(new InetSocketAddress("127.0.0.1", 1));
        message.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
        Map<String, String> properties = new HashMap<>();
        for (int i = 4; i + 1 < f.length; i += 2) {
            properties.put(f[i], f[i + 1]);
            Reflect.call(message, "putProperty", f[i], f[i + 1]);
        }
        type.getMethod("setPropertiesString", String.class).invoke(message, MessageDecoder.messageProperties2String(properties));
        Object result = DefaultMessageStore.class.getMethod("putMessage", type).invoke(store, message);
        Object appended = Reflect.call(result, "getAppendMessageResult");
        Map<String, Object> answer = Json.object("status", Reflect.call(result, "getPutMessageStatus"));
        if (appended != null) {
            answer.put("phyOffset", Reflect.call(appended, "getWroteOffset"));
            answer.put("storeSize", Reflect.call(appended, "getWroteBytes"));
            answer.put("queueOffset", Reflect.call(appended, "getLogicsOffset"));
            answer.put("storeTimestamp", Reflect.call(appended, "getStoreTimestamp"));
        }
        return answer;
    }
}
