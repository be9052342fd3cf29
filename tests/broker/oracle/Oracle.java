import java.io.File;
import java.io.FileInputStream;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.store.DefaultMessageStore;

/**
 * Opens a store with the real code of the release on the class path and tells what became of it:
 * Oracle ROOT PROPERTIES REQUESTS ANSWER. ROOT is changed, as a broker would change it. For many stores in one JVM: Oracles.
 *
 * System properties: ha.port, start.millis (how long start() may take; 0: do not start), entries and messages (true: list them),
 * walk (false: do not check every record), served (true: read every queue as a consumer does), deliver (false: no delayed message is
 * delivered), stop (false: no shutdown).
 */
public final class Oracle {
    private static final long DISPATCH_MILLIS = 10_000;
    private static final long SHUTDOWN_MILLIS = 20_000;

    private final String root;
    private final boolean entries = Boolean.getBoolean("entries");
    private final boolean messages = Boolean.getBoolean("messages");
    private final boolean walks = isOn("walk");
    private final boolean serves = Boolean.getBoolean("served");
    private final boolean delivers = isOn("deliver");
    private final boolean stops = isOn("stop");
    private final Map<String, Object> answer = new LinkedHashMap<>();
    private DefaultMessageStore store;

    Oracle(String root) {
        this.root = root;
    }

    public static void main(String[] arguments) throws Exception {
        List<String> requests = Files.readAllLines(Paths.get(arguments[2]), StandardCharsets.UTF_8);
        new Oracle(arguments[0]).tell(properties(arguments[1]), requests, arguments[3]);
        Runtime.getRuntime().halt(0); // a real store leaves threads behind
    }

    static Properties properties(String path) throws Exception {
        Properties properties = new Properties();
        try (InputStream in = new FileInputStream(path)) {
            properties.load(in);
        }
        return properties;
    }

    private static boolean isOn(String option) {
        return Boolean.parseBoolean(System.getProperty(option, "true"));
    }

    /** Opens the store, asks it, and writes the answer to a file. */
    void tell(Properties properties, List<String> requests, String path) throws Exception {
        try {
            run(properties, requests);
        } catch (Throwable e) {
            answer.put("fatal", Reflect.chain(e));
            e.printStackTrace();
        }
        Files.write(Paths.get(path), Json.write(answer).getBytes(StandardCharsets.UTF_8));
    }

    /** Ends the store's threads, as far as they will; what is left of its files does not matter any more. */
    void drop() {
        try {
            if (store != null) {
                store.shutdown();
            }
        } catch (Throwable e) {
            System.err.println("shutdown: " + Reflect.chain(e));
        }
        store = null;
    }

    private void run(Properties properties, List<String> requests) throws Exception {
        answer.put("rocketmq", MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION));
        answer.put("abortPresent", new File(root, "abort").exists());
        answer.put("checkpointAsFound", State.checkpointFile(root));
        boolean loaded = load(properties);
        answer.put("filesAfterLoad", State.files(root));
        if (!loaded) {
            tellRefused();
            return;
        }
        Map<String, Object> afterLoad = State.of(store, entries);
        answer.put("afterLoad", afterLoad);
        if (walks) {
            walk(afterLoad);
        }
        long startMillis = Long.getLong("start.millis", 12_000L);
        if (startMillis > 0) {
            start(startMillis, requests);
        }
    }

    /** 5.x recovers before it refuses an index file; any other refusal leaves a store that tells little, or nothing. */
    private void tellRefused() {
        try {
            answer.put("afterLoad", State.of(store, entries));
        } catch (Throwable e) {
            System.err.println("refused: " + Reflect.chain(e));
        }
    }

    private void walk(Map<String, Object> afterLoad) throws Exception {
        LogWalk walk = new LogWalk(store, messages);
        afterLoad.put("log", walk.walk(root, store.getMaxPhyOffset()));
        StringBuilder lines = new StringBuilder();
        for (long phyOffset : walk.phyOffsets) {
            lines.append(phyOffset).append('\n');
        }
        afterLoad.put("phyOffsetsSha256", Messages.sha256(lines.toString().getBytes()));
        if (messages) {
            answer.put("messages", walk.messages);
        }
    }

    private boolean load(Properties properties) {
        try {
            store = RealStore.open(root, properties, Integer.getInteger("ha.port"));
            if (walks) {
                answer.put("asFound", new LogWalk(store, false).walk(root, -1));
            }
            boolean ok = store.load();
            answer.put("load", Json.object("ok", ok));
            return ok;
        } catch (Throwable e) {
            answer.put("load", Json.object("ok", false, "exception", Reflect.chain(e)));
            return false;
        }
    }

    private void start(long startMillis, List<String> requests) throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        answer.put("afterStart", result);
        if (!delivers) {
            RealStore.holdDelayed(store);
        }
        Throwable[] thrown = new Throwable[1];
        boolean returned = within(startMillis, () -> {
            try {
                store.start();
            } catch (Throwable e) {
                thrown[0] = e;
            }
        });
        result.put("returned", returned);
        if (thrown[0] != null) {
            result.put("exception", Reflect.chain(thrown[0]));
        }
        boolean started = returned && thrown[0] == null;
        if (started) {
            waitForDispatch();
        }
        result.putAll(State.of(store, entries));
        if (!started) {
            return;
        }
        if (serves) {
            result.put("filesAfterStart", State.names(root));
            Queues.serve(store, (List<?>) result.get("queues"));
        }
        List<Object> answers = new ArrayList<>();
        for (String request : requests) {
            answers.add(Requests.answer(store, request));
        }
        answer.put("answers", answers);
        if (!stops) {
            return;
        }
        result.put("shutdownReturned", within(SHUTDOWN_MILLIS, store::shutdown));
        result.put("abortAfterShutdown", new File(root, "abort").exists());
        result.put("filesAfterShutdown", State.files(root));
    }

    private static boolean within(long millis, Runnable work) throws InterruptedException {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
        thread.join(millis);
        return !thread.isAlive();
    }

    /** Until the queues have caught up with the log; the index is built by the same thread, a little later. */
    private void waitForDispatch() throws InterruptedException {
        long end = System.currentTimeMillis() + DISPATCH_MILLIS;
        while (store.dispatchBehindBytes() > 0 && System.currentTimeMillis() < end) {
            Thread.sleep(20);
        }
        Thread.sleep(200);
    }
}
