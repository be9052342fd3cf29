import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.Collections;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/** Records as the release's own decoder reads them. */
final class Messages {
    private static final int COMPRESSED = 1;

    private Messages() {
    }

    /** The record that fills the buffer. */
    static Map<String, Object> decode(ByteBuffer record) throws Exception {
        MessageExt stored = MessageDecoder.decode(record.slice(), true, false);
        if (stored == null) {
            return Json.object("undecodable", true);
        }
        Map<String, Object> result = fields(stored);
        result.put("magic", record.getInt(record.position() + 4));
        if ((stored.getSysFlag() & COMPRESSED) != 0) {
            MessageExt plain = MessageDecoder.decode(record.slice(), true, true);
            byte[] body = plain == null ? null : plain.getBody();
            result.put("plainLength", body == null ? -1 : body.length);
            result.put("plainSha256", body == null ? null : sha256(body));
        }
        return result;
    }

    static Map<String, Object> fields(MessageExt message) throws Exception {
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        Map<String, String> properties = message.getProperties() == null ? Collections.emptyMap() : message.getProperties();
        return Json.object(
            "phyOffset", message.getCommitLogOffset(), "storeSize", message.getStoreSize(),
            "topic", message.getTopic(), "queueId", message.getQueueId(), "queueOffset", message.getQueueOffset(),
            "flag", message.getFlag(), "sysFlag", message.getSysFlag(),
            "bornTimestamp", message.getBornTimestamp(), "bornHost", host(message.getBornHost()),
            "storeTimestamp", message.getStoreTimestamp(), "storeHost", host(message.getStoreHost()),
            "bodyCRC", message.getBodyCRC(), "reconsumeTimes", message.getReconsumeTimes(),
            "preparedTransactionOffset", message.getPreparedTransactionOffset(),
            "bodyLength", body.length, "bodySha256", sha256(body),
            "msgId", message.getMsgId(), "properties", new TreeMap<>(properties));
    }

    static String sha256(byte[] bytes) throws Exception {
        StringBuilder text = new StringBuilder();
        for (byte b : MessageDigest.getInstance("SHA-256").digest(bytes)) {
            text.append(String.format("%02x", b));
        }
        return text.toString();
    }

    private static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        return host == null ? null : host.getAddress().getHostAddress() + "|" + host.getPort();
    }
}
