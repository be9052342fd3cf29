import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Map;

/** Parses lines of "KIND JSON" as the release's own config managers do; prints "=" and what it was for each: loads or refuses. */
public final class ConfigValues {
    private ConfigValues() {
    }

    public static void main(String[] arguments) throws Exception {
        String remoting = "org.apache.rocketmq.remoting.protocol.";
        String common = "org.apache.rocketmq.common.protocol.body.";
        String broker = "org.apache.rocketmq.broker.";
        String delay = "DelayOffsetSerializeWrapper";
        Map<String, Class<?>> types = Map.of(
            "topics", Reflect.firstClass(remoting + "body.TopicConfigSerializeWrapper", common + "TopicConfigSerializeWrapper"),
            "consumerOffset", Class.forName(broker + "offset.ConsumerOffsetManager"),
            "subscriptionGroup", Class.forName(broker + "subscription.SubscriptionGroupManager"),
            "consumerFilter", Class.forName(broker + "filter.ConsumerFilterManager"),
            "delayOffset", Reflect.firstClass(remoting + "body." + delay, "org.apache.rocketmq.store.schedule." + delay,
                broker + "schedule." + delay));
        Method parse = Class.forName(remoting + "RemotingSerializable").getMethod("fromJson", String.class, Class.class);
        for (String line : Files.readAllLines(Paths.get(arguments[0]), StandardCharsets.UTF_8)) {
            int space = line.indexOf(' ');
            String outcome = "=loads";
            try {
                parse.invoke(null, line.substring(space + 1), types.get(line.substring(0, space)));
            } catch (InvocationTargetException e) {
                outcome = "=refuses";
            }
            System.out.println(outcome);
        }
    }
}
