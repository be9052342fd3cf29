import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/** Every queue of an open store: its bounds, its entries, and whether each leads to the right message. */
final class Queues {
    private static final int MAX_MESSAGE = 8 << 20;
    private static final int ENTRY = 20;
    private static final int PULLED = 32;

    private Queues() {
    }

    @SuppressWarnings("unchecked")
    static List<Object> all(DefaultMessageStore store, boolean withEntries) throws Exception {
        List<Object> result = new ArrayList<>();
        Map<String, Object> topics = new TreeMap<>((Map<String, Object>) Reflect.call(store, "getConsumeQueueTable"));
        for (Map.Entry<String, Object> topic : topics.entrySet()) {
            for (Map.Entry<Integer, Object> queue : new TreeMap<>((Map<Integer, Object>) topic.getValue()).entrySet()) {
                result.add(one(store, topic.getKey(), queue.getKey(), queue.getValue(), withEntries));
            }
        }
        return result;
    }

    /**
     * Adds to each queue's state what a consumer gets that goes from its min to its max, and what it gets that asks at every offset for
     * one message: log offset and size of all that is served.
     */
    @SuppressWarnings("unchecked")
    static void serve(DefaultMessageStore store, List<?> queues) throws Exception {
        for (Object each : queues) {
            Map<String, Object> queue = (Map<String, Object>) each;
            List<long[]> served = new ArrayList<>();
            List<long[]> singly = new ArrayList<>();
            String topic = (String) queue.get("topic");
            int queueId = (Integer) queue.get("queueId");
            long max = (Long) queue.get("max");
            long min = Math.max(0, (Long) queue.get("min"));
            for (long at = min; at < max;) {
                at = Math.max(at + 1, pull(store, topic, queueId, at, PULLED, served));
            }
            for (long at = min; at < max; at++) {
                pull(store, topic, queueId, at, 1, singly);
            }
            queue.put("served", served);
            queue.put("servedSingly", singly);
        }
    }

    /** One pull; gives where the consumer goes on, or -1 where the pull fails. */
    private static long pull(DefaultMessageStore store, String topic, int queueId, long at, int count, List<long[]> served) throws Exception {
        GetMessageResult found;
        try {
            found = store.getMessage("oracle", topic, queueId, at, count, null);
        } catch (RuntimeException e) {
            return -1;
        }
        for (SelectMappedBufferResult part : found.getMessageMapedList()) {
            served.add(new long[] {part.getStartOffset(), part.getSize()});
        }
        long next = found.getNextBeginOffset();
        found.release();
        return next;
    }

    private static Map<String, Object> one(DefaultMessageStore store, String topic, int queueId, Object queue, boolean withEntries) throws Exception {
        Map<String, Object> result = Json.object("topic", topic, "queueId", queueId);
        long min = -2;
        long max = -2;
        String error = null;
        try {
            min = store.getMinOffsetInQueue(topic, queueId);
            max = store.getMaxOffsetInQueue(topic, queueId);
        } catch (Throwable e) {
            error = Reflect.chain(e);
        }
        result.put("min", min);
        result.put("max", max);
        result.put("maxPhysic", Reflect.call(queue, "getMaxPhysicOffset"));
        result.put("type", queue.getClass().getSimpleName());
        if (error != null) {
            result.put("error", error);
        }
        List<long[]> entries;
        try {
            entries = RealStore.V5 ? entries5(queue, Math.max(0, min), max) : entries4(queue, Math.max(0, min), max);
        } catch (Throwable e) {
            result.put("entriesError", Reflect.chain(e));
            return result;
        }
        summary(store, topic, entries, result);
        if (withEntries) {
            result.put("entries", entries);
        }
        return result;
    }

    private static void summary(DefaultMessageStore store, String topic, List<long[]> entries, Map<String, Object> result) throws Exception {
        StringBuilder lines = new StringBuilder();
        long unreadable = 0;
        long foreign = 0;
        long drifted = 0;
        long firstBad = -1;
        for (long[] entry : entries) {
            lines.append(Arrays.toString(entry).replace(" ", "")).append('\n');
            MessageExt message = message(store, entry);
            boolean bad = true;
            if (message == null) {
                unreadable++;
            } else if (!belongs(message, topic) && !topic.equals(message.getTopic())) {
                foreign++;
            } else if (message.getQueueOffset() != entry[0] && entry.length == 4 && !belongs(message, topic)) {
                drifted++;
            } else {
                bad = false;
            }
            firstBad = bad && firstBad < 0 ? entry[0] : firstBad;
        }
        result.put("entryCount", entries.size());
        result.put("entriesSha256", Messages.sha256(lines.toString().getBytes()));
        result.put("unreadable", unreadable);
        result.put("foreign", foreign);
        result.put("drifted", drifted);
        if (firstBad >= 0) {
            result.put("firstBadIndex", firstBad);
        }
        if (!entries.isEmpty()) {
            result.put("firstEntry", entries.get(0));
            result.put("lastEntry", entries.get(entries.size() - 1));
        }
    }

    private static MessageExt message(DefaultMessageStore store, long[] entry) {
        try {
            return entry[1] >= 0 && entry[2] > 0 && entry[2] < MAX_MESSAGE ? store.lookMessageByOffset(entry[1], (int) entry[2]) : null;
        } catch (Throwable e) {
            return null;
        }
    }

    /** Whether a message was dispatched to this topic too. */
    private static boolean belongs(MessageExt message, String topic) {
        String others = message.getProperty("INNER_MULTI_DISPATCH");
        return others != null && Arrays.asList(others.split(",")).contains(topic);
    }

    private static List<long[]> entries4(Object queue, long min, long max) throws Exception {
        List<long[]> result = new ArrayList<>();
        for (long index = min; index < max;) {
            SelectMappedBufferResult part = (SelectMappedBufferResult) Reflect.call(queue, "getIndexBuffer", index);
            if (part == null) {
                result.add(new long[] {index++, -1, -1, -1});
                continue;
            }
            ByteBuffer bytes = part.getByteBuffer();
            int count = part.getSize() / ENTRY;
            for (int i = 0; i < count && index < max; i++) {
                result.add(new long[] {index++, bytes.getLong(), bytes.getInt(), bytes.getLong()});
            }
            part.release();
            if (count == 0) {
                break;
            }
        }
        return result;
    }

    private static List<long[]> entries5(Object queue, long min, long max) throws Exception {
        List<long[]> result = new ArrayList<>();
        for (long index = min; index < max;) {
            Iterator<?> units = iterate(queue, index);
            long before = index;
            while (units != null && units.hasNext() && index < max) {
                Object unit = units.next();
                if (unit == null) {
                    break;
                }
                long[] entry = unit(queue, unit);
                result.add(entry);
                index = entry[0] + Math.max(1, ((Number) Reflect.call(unit, "getBatchNum")).intValue());
            }
            if (units != null) {
                release(units);
            }
            if (index < before) {
                break; // a wrong number leads back, where this begins again
            }
            if (index == before) {
                result.add(new long[] {index++, -1, -1, -1});
            }
        }
        return result;
    }

    private static Iterator<?> iterate(Object queue, long index) {
        try {
            for (Method method : Class.forName("org.apache.rocketmq.store.queue.ConsumeQueueInterface").getMethods()) {
                if (method.getName().equals("iterateFrom") && method.getParameterCount() == 1) {
                    return (Iterator<?>) method.invoke(queue, index);
                }
            }
        } catch (ReflectiveOperationException e) {
            return null; // what the store will not iterate over is shown as unreadable
        }
        return null;
    }

    private static void release(Iterator<?> units) throws Exception {
        try {
            Reflect.call(units, "release");
        } catch (NoSuchMethodException e) {
            return; // not every iterator holds a file
        }
    }

    private static long[] unit(Object queue, Object unit) throws Exception {
        long index = (Long) Reflect.call(unit, "getQueueOffset");
        long at = (Long) Reflect.call(unit, "getPos");
        long size = ((Number) Reflect.call(unit, "getSize")).longValue();
        long tags = (Long) Reflect.call(unit, "getTagsCode");
        long batch = ((Number) Reflect.call(unit, "getBatchNum")).longValue();
        Object ext = Reflect.call(unit, "getCqExtUnit");
        String type = queue.getClass().getSimpleName();
        if (batch > 1 || type.startsWith("Batch") || type.startsWith("Sparse")) {
            return new long[] {index, at, size, tags, batch};
        }
        if (ext != null) {
            return new long[] {index, at, size, tags, -1, (Long) Reflect.call(ext, "getTagsCode"), (Long) Reflect.call(ext, "getMsgStoreTime")};
        }
        return new long[] {index, at, size, tags};
    }
}
