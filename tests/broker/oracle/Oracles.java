import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * Opens many stores in one JVM, several at a time: Oracles PROPERTIES. Each line of standard input is NAME, ROOT and ANSWER, separated by
 * tabs, and PROPERTIES where a store has other ones; when a store's answer is written, a line "told", a tab and NAME follows on standard output. A store's load is done by a
 * thread with its NAME, so that log lines can be told apart. System properties as in Oracle, and threads.
 */
public final class Oracles {
    private final Properties properties;
    private final ExecutorService droppers = Executors.newCachedThreadPool();

    private Oracles(Properties properties) {
        this.properties = properties;
    }

    public static void main(String[] arguments) throws Exception {
        Oracles oracles = new Oracles(Oracle.properties(arguments[0]));
        ExecutorService workers = Executors.newFixedThreadPool(Integer.getInteger("threads", 8));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        boolean isFirst = true;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] job = line.split("\t", -1);
            Properties own = job.length > 3 ? Oracle.properties(job[3]) : oracles.properties;
            Runnable work = () -> oracles.tell(job[0], job[1], job[2], own);
            Future<?> done = workers.submit(work);
            if (isFirst) {
                done.get(); // what a release sets up once is set up by one store alone
                isFirst = false;
            }
        }
        workers.shutdown();
        workers.awaitTermination(10, TimeUnit.MINUTES);
        Runtime.getRuntime().halt(0);
    }

    private void tell(String name, String root, String path, Properties own) {
        Thread.currentThread().setName(name);
        Oracle oracle = new Oracle(root);
        try {
            oracle.tell(own, Collections.emptyList(), path);
        } catch (Throwable e) {
            e.printStackTrace();
        }
        synchronized (System.out) {
            System.out.println("\ntold\t" + name);
            System.out.flush();
        }
        droppers.execute(oracle::drop);
    }
}
