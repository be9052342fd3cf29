import java.io.File;
import java.lang.reflect.InvocationTargetException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;

/** Goes through every segment from its start with the release's own record check, up to the first thing it rejects. */
final class LogWalk {
    private static final long TOO_LARGE = 60 << 20;

    private final DefaultMessageStore store;
    private final boolean decode;
    final List<Long> phyOffsets = new ArrayList<>();
    final List<Object> messages = new ArrayList<>();

    LogWalk(DefaultMessageStore store, boolean decode) {
        this.store = store;
        this.decode = decode;
    }

    /** limit: stop at this offset, or -1. */
    Map<String, Object> walk(String root, long limit) throws Exception {
        List<Object> files = new ArrayList<>();
        long count = 0;
        for (File file : segments(root)) {
            Map<String, Object> found = Json.object("file", file.getName(), "size", file.length());
            files.add(found);
            count += segment(file, limit, found);
        }
        return Json.object("messages", count, "files", files);
    }

    private static List<File> segments(String root) {
        File[] files = new File(root, "commitlog").listFiles(File::isFile);
        if (files == null) {
            return new ArrayList<>();
        }
        Arrays.sort(files);
        return Arrays.asList(files);
    }

    private long segment(File file, long limit, Map<String, Object> found) throws Exception {
        if (file.length() == 0) {
            found.put("stop", Json.object("at", 0, "why", "empty"));
            return 0;
        }
        if (file.length() > TOO_LARGE) {
            found.put("stop", Json.object("why", "too large to walk here"));
            found.put("messages", 0);
            return 0;
        }
        long base;
        try {
            base = Long.parseLong(file.getName());
        } catch (NumberFormatException e) {
            found.put("stop", Json.object("why", "name"));
            return 0;
        }
        ByteBuffer all = ByteBuffer.wrap(Files.readAllBytes(file.toPath()));
        int before = phyOffsets.size();
        int at = 0;
        for (int size = 1; size > 0; at += size) {
            size = record(all, at, base, limit, found);
        }
        long count = phyOffsets.size() - before;
        found.put("messages", count);
        found.put("first", count > 0 ? phyOffsets.get(before) : -1);
        found.put("last", count > 0 ? phyOffsets.get(phyOffsets.size() - 1) : -1);
        return count;
    }

    /** Size of the record at a place, or 0 where the walk ends; then found says why. */
    private int record(ByteBuffer all, int at, long base, long limit, Map<String, Object> found) throws Exception {
        int left = all.capacity() - at;
        if (limit >= 0 && base + at >= limit || left <= 0) {
            found.put("stop", Json.object("at", base + at, "why", left <= 0 && !(limit >= 0 && base + at >= limit) ? "end" : "limit"));
            return 0;
        }
        ByteBuffer rest = all.duplicate();
        rest.position(at);
        rest = rest.slice();
        Object word0 = left >= 4 ? all.getInt(at) : null;
        Object word1 = left >= 8 ? all.getInt(at + 4) : null;
        DispatchRequest verdict;
        try {
            verdict = RealStore.check(store, rest.duplicate());
        } catch (InvocationTargetException e) {
            String why = "the real check threw " + Reflect.chain(e.getCause());
            found.put("stop", Json.object("at", base + at, "why", why, "word0", word0, "word1", word1));
            return 0;
        }
        if (!verdict.isSuccess()) {
            found.put("stop", Json.object("at", base + at, "why", "check", "size", verdict.getMsgSize(), "word0", word0, "word1", word1));
            return 0;
        }
        if (verdict.getMsgSize() == 0) {
            found.put("blank", Json.object("at", base + at, "size", word0));
            return 0;
        }
        phyOffsets.add(base + at);
        if (decode) {
            rest.limit(verdict.getMsgSize());
            Map<String, Object> message = Messages.decode(rest);
            message.put("tagsCode", verdict.getTagsCode());
            messages.add(message);
        }
        return verdict.getMsgSize();
    }
}
