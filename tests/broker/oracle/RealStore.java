import java.io.File;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.MessageArrivingListener;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** Makes the release's own store over a root folder, with the broker's own settings. */
final class RealStore {
    static final boolean V5 = Reflect.hasClass("org.apache.rocketmq.store.queue.ConsumeQueueInterface");

    private RealStore() {
    }

    private static Object sharedStatistics; // it has threads of its own, and knows nothing of a store

    static DefaultMessageStore open(String root, Properties properties, int haPort) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        MixAll.properties2Object(properties, config);
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + "/commitlog");
        config.setHaListenPort(haPort);
        BrokerConfig broker = new BrokerConfig();
        MixAll.properties2Object(properties, broker);
        MessageArrivingListener nobody = (MessageArrivingListener) Proxy.newProxyInstance(
            RealStore.class.getClassLoader(), new Class<?>[] {MessageArrivingListener.class}, (proxy, method, arguments) -> null);
        Class<?> type = "defaultRocksDB".equals(properties.getProperty("storeType"))
            ? Class.forName("org.apache.rocketmq.store.RocksDBMessageStore") : DefaultMessageStore.class;
        Constructor<?> longest = null;
        for (Constructor<?> constructor : type.getConstructors()) {
            if (longest == null || constructor.getParameterCount() > longest.getParameterCount()) {
                longest = constructor;
            }
        }
        Object statistics = statistics(broker);
        Object made = longest.getParameterCount() == 5
            ? longest.newInstance(config, statistics, nobody, broker, topics(new File(root, "config/topics.json")))
            : longest.newInstance(config, statistics, nobody, broker);
        return (DefaultMessageStore) made;
    }

    /** Keeps the store's delay service, where it has one (4.x), from delivering: what it puts into the log is not part of a start. */
    static void holdDelayed(DefaultMessageStore store) throws Exception {
        Object service;
        try {
            service = Reflect.field(store, "scheduleMessageService");
        } catch (NoSuchFieldException newer) {
            return;
        }
        try {
            ((AtomicBoolean) Reflect.field(service, "started")).set(true);
        } catch (NoSuchFieldException oldest) {
            ((Map<?, ?>) Reflect.field(service, "delayLevelTable")).clear(); // which nothing else reads behind the load there
        }
    }

    private static synchronized Object statistics(BrokerConfig broker) throws Exception {
        if (sharedStatistics == null) {
            sharedStatistics = newStatistics(broker);
        }
        return sharedStatistics;
    }

    private static BrokerStatsManager newStatistics(BrokerConfig broker) throws Exception {
        try {
            return BrokerStatsManager.class.getConstructor(BrokerConfig.class).newInstance(broker);
        } catch (NoSuchMethodException older) {
            try {
                return BrokerStatsManager.class.getConstructor(String.class, boolean.class).newInstance("oracle", false);
            } catch (NoSuchMethodException oldest) {
                return BrokerStatsManager.class.getConstructor(String.class).newInstance("oracle");
            }
        }
    }

    /** The topic table as the broker reads it; an unreadable one counts as empty. */
    private static ConcurrentMap<String, TopicConfig> topics(File file) {
        ConcurrentMap<String, TopicConfig> found = new ConcurrentHashMap<>();
        if (!file.exists()) {
            return found;
        }
        try {
            Class<?> wrapper = Reflect.firstClass(
                "org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper",
                "org.apache.rocketmq.common.protocol.body.TopicConfigSerializeWrapper");
            Method fromJson = Class.forName("org.apache.rocketmq.remoting.protocol.RemotingSerializable")
                .getMethod("fromJson", String.class, Class.class);
            String text = new String(Files.readAllBytes(file.toPath()), StandardCharsets.UTF_8);
            Object table = wrapper.getMethod("getTopicConfigTable").invoke(fromJson.invoke(null, text, wrapper));
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) table).entrySet()) {
                found.put((String) entry.getKey(), (TopicConfig) entry.getValue());
            }
        } catch (Exception e) {
            System.err.println("topics.json: " + Reflect.chain(e));
        }
        return found;
    }

    /** The release's own check of one record, body checksum included. */
    static DispatchRequest check(DefaultMessageStore store, ByteBuffer record) throws Exception {
        for (Method method : CommitLog.class.getMethods()) {
            if (method.getName().equals("checkMessageAndReturnSize")) {
                if (V5 && method.getParameterCount() == 4) {
                    return (DispatchRequest) method.invoke(store.getCommitLog(), record, true, store.getMessageStoreConfig().isDuplicationEnable(), true);
                }
                if (!V5 && method.getParameterCount() == 3) {
                    return (DispatchRequest) method.invoke(store.getCommitLog(), record, true, true);
                }
            }
        }
        throw new NoSuchMethodException("checkMessageAndReturnSize");
    }
}
