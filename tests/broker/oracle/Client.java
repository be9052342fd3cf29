import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** A real client of a running broker: Client NAME_SERVER ANSWER pull|send TOPIC... */
public final class Client {
    private static final int BATCH = 32;
    private static final long PULL_MILLIS = 3000;
    private static final int ROUTE_TRIES = 100;

    private Client() {
    }

    public static void main(String[] arguments) throws Exception {
        List<String> topics = Arrays.asList(arguments).subList(3, arguments.length);
        Map<String, Object> answer = new LinkedHashMap<>();
        try {
            answer.put("queues", arguments[2].equals("pull") ? pull(arguments[0], topics) : send(arguments[0], topics));
        } catch (Throwable e) {
            answer.put("exception", Reflect.chain(e));
        }
        Files.write(Paths.get(arguments[1]), Json.write(answer).getBytes(StandardCharsets.UTF_8));
        Runtime.getRuntime().halt(0);
    }

    private interface Route {
        Collection<MessageQueue> queues() throws Exception;
    }

    /** The queues of a topic, once the broker has told the name server about it. */
    private static TreeSet<MessageQueue> queues(Route route) throws Exception {
        for (int tries = 1;; tries++) {
            try {
                TreeSet<MessageQueue> found = new TreeSet<>(route.queues());
                if (!found.isEmpty()) {
                    return found;
                }
            } catch (Exception e) {
                if (tries >= ROUTE_TRIES) {
                    throw e;
                }
            }
            Thread.sleep(200);
        }
    }

    /** Everything from min to max of every queue, as a consumer gets it. */
    private static Map<String, Object> pull(String nameServer, List<String> topics) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("oracle_puller");
        consumer.setNamesrvAddr(nameServer);
        consumer.start();
        Map<String, Object> result = new LinkedHashMap<>();
        for (String topic : topics) {
            for (MessageQueue queue : queues(() -> consumer.fetchSubscribeMessageQueues(topic))) {
                result.put(topic + "-" + queue.getQueueId(), pullQueue(consumer, queue));
            }
        }
        return result;
    }

    private static Map<String, Object> pullQueue(DefaultMQPullConsumer consumer, MessageQueue queue) throws Exception {
        long min = consumer.minOffset(queue);
        long max = consumer.maxOffset(queue);
        List<Object> messages = new ArrayList<>();
        List<Object> odd = new ArrayList<>();
        Map<String, Object> result = Json.object("min", min, "max", max, "messages", messages, "odd", odd);
        for (long offset = min; offset < max;) {
            PullResult found;
            try {
                found = consumer.pull(queue, "*", offset, BATCH, PULL_MILLIS);
            } catch (Exception e) {
                result.put("exception", Reflect.chain(e));
                break;
            }
            if (found.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : found.getMsgFoundList()) {
                    messages.add(Messages.fields(message));
                }
            } else {
                odd.add(Json.object("offset", offset, "status", found.getPullStatus(), "nextBeginOffset", found.getNextBeginOffset()));
                if (found.getNextBeginOffset() <= offset) {
                    break;
                }
            }
            offset = found.getNextBeginOffset();
        }
        return result;
    }

    /** One message into every queue. */
    private static Map<String, Object> send(String nameServer, List<String> topics) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("oracle_sender");
        producer.setNamesrvAddr(nameServer);
        producer.start();
        Map<String, Object> result = new LinkedHashMap<>();
        for (String topic : topics) {
            for (MessageQueue queue : queues(() -> producer.fetchPublishMessageQueues(topic))) {
                Message message = new Message(topic, "oracle", "oracle-key", "sent by a client".getBytes(StandardCharsets.UTF_8));
                SendResult sent = producer.send(message, queue);
                result.put(topic + "-" + queue.getQueueId(), Json.object(
                    "status", sent.getSendStatus(), "queueOffset", sent.getQueueOffset(), "offsetMsgId", sent.getOffsetMsgId()));
            }
        }
        return result;
    }
}
