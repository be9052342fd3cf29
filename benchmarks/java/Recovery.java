import java.io.FileInputStream;
import java.io.InputStream;
import java.lang.management.ManagementFactory;
import java.util.Properties;
import org.apache.rocketmq.store.DefaultMessageStore;

/**
 * The real broker's recovery of a store that has nothing but its log: Recovery ROOT PROPERTIES loads and starts the store, waits until queues and index are
 * built, and says "recovered SECONDS PROCESSOR_SECONDS LOAD_SECONDS LOAD_PROCESSOR_SECONDS": of all, and of loading alone.
 */
public final class Recovery {
    private Recovery() {
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (InputStream in = new FileInputStream(arguments[1])) {
            properties.load(in);
        }
        DefaultMessageStore store = RealStore.open(arguments[0], properties, Integer.getInteger("ha.port"));
        long started = System.nanoTime();
        long used = processorNanos();
        if (!store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        double loaded = (System.nanoTime() - started) / 1e9;
        double usedToLoad = (processorNanos() - used) / 1e9;
        store.start();
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(5);
        }
        double seconds = (System.nanoTime() - started) / 1e9;
        System.out.println("recovered " + seconds + " " + (processorNanos() - used) / 1e9 + " " + loaded + " " + usedToLoad);
        System.out.flush();
        Runtime.getRuntime().halt(0); // a real store leaves threads behind
    }

    private static long processorNanos() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
