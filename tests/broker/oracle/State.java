import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.StoreCheckpoint;

/** What an open store says about itself. */
final class State {
    private static final String[] CHECKPOINT_FIELDS = {
        "PhysicMsgTimestamp", "LogicsMsgTimestamp", "IndexMsgTimestamp", "MasterFlushedOffset", "ConfirmPhyOffset", "MinTimestamp", "MinTimestampIndex"};

    private State() {
    }

    static Map<String, Object> of(DefaultMessageStore store, boolean withEntries) throws Exception {
        Map<String, Object> result = Json.object("minPhyOffset", store.getMinPhyOffset(), "maxPhyOffset", store.getMaxPhyOffset());
        try {
            result.put("confirmOffset", store.getConfirmOffset());
        } catch (Throwable e) {
            result.put("confirmOffset", Reflect.chain(e));
        }
        Object files = Reflect.field(store.getCommitLog(), "mappedFileQueue");
        result.put("flushedWhere", Reflect.call(files, "getFlushedWhere"));
        result.put("committedWhere", Reflect.call(files, "getCommittedWhere"));
        List<Object> mapped = new ArrayList<>();
        for (Object file : (List<?>) Reflect.field(files, "mappedFiles")) {
            String name = new File((String) Reflect.call(file, "getFileName")).getName();
            mapped.add(Json.object("file", name, "wrotePosition", Reflect.call(file, "getWrotePosition")));
        }
        result.put("mappedFiles", mapped);
        result.put("nextQueueOffset", nextQueueOffsets(store));
        result.put("checkpoint", checkpoint(store.getStoreCheckpoint()));
        result.put("dispatchBehindBytes", store.dispatchBehindBytes());
        result.put("queues", Queues.all(store, withEntries));
        result.put("indexFiles", indexFiles(store));
        return result;
    }

    private static Map<String, Object> nextQueueOffsets(DefaultMessageStore store) throws Exception {
        Object table;
        try {
            table = Reflect.field(Reflect.field(Reflect.call(store, "getQueueStore"), "queueOffsetOperator"), "topicQueueTable");
        } catch (ReflectiveOperationException older) {
            table = Reflect.field(store.getCommitLog(), "topicQueueTable");
        }
        Map<String, Object> result = new TreeMap<>();
        for (Map.Entry<?, ?> entry : ((Map<?, ?>) table).entrySet()) {
            result.put(entry.getKey().toString(), entry.getValue());
        }
        return result;
    }

    private static List<Object> indexFiles(DefaultMessageStore store) throws Exception {
        List<Object> result = new ArrayList<>();
        for (Object file : (List<?>) Reflect.field(Reflect.field(store, "indexService"), "indexFileList")) {
            Object header = Reflect.field(file, "indexHeader");
            result.add(Json.object(
                "file", new File((String) Reflect.call(file, "getFileName")).getName(),
                "beginTimestamp", Reflect.call(header, "getBeginTimestamp"), "endTimestamp", Reflect.call(header, "getEndTimestamp"),
                "beginPhyOffset", Reflect.call(header, "getBeginPhyOffset"), "endPhyOffset", Reflect.call(header, "getEndPhyOffset"),
                "hashSlotCount", ((Number) Reflect.call(header, "getHashSlotCount")).longValue(), "indexCount", Reflect.call(header, "getIndexCount")));
        }
        return result;
    }

    private static Map<String, Object> checkpoint(Object checkpoint) throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        for (String name : CHECKPOINT_FIELDS) {
            try {
                result.put(Character.toLowerCase(name.charAt(0)) + name.substring(1), Reflect.call(checkpoint, "get" + name));
            } catch (NoSuchMethodException e) {
                continue; // a field that came with a later release
            }
        }
        return result;
    }

    /** The checkpoint file as the release's class reads it, from a copy, since the class maps it for writing. */
    static Map<String, Object> checkpointFile(String root) throws Exception {
        File file = new File(root, "checkpoint");
        if (!file.exists()) {
            return null;
        }
        Path copy = Files.createTempFile("checkpoint", "");
        Files.copy(file.toPath(), copy, StandardCopyOption.REPLACE_EXISTING);
        Map<String, Object> result = checkpoint(new StoreCheckpoint(copy.toString()));
        Files.delete(copy);
        return result;
    }

    /** All files below a folder, sorted. */
    static List<String> names(String root) throws Exception {
        Path top = Paths.get(root);
        List<String> names = new ArrayList<>();
        try (Stream<Path> walk = Files.walk(top)) {
            walk.filter(Files::isRegularFile).forEach(path -> names.add(top.relativize(path).toString()));
        }
        Collections.sort(names);
        return names;
    }

    /** path -> [size, SHA-256] of all files but the lock, which nobody else may open while it is held. */
    static Map<String, Object> files(String root) throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        for (String name : names(root)) {
            if (!name.equals("lock")) {
                byte[] bytes = Files.readAllBytes(Paths.get(root, name));
                List<Object> entry = new ArrayList<>();
                entry.add((long) bytes.length);
                entry.add(Messages.sha256(bytes));
                result.put(name, entry);
            }
        }
        return result;
    }
}
