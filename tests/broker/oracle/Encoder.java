import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.lang.reflect.Constructor;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Map;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** Encodes messages of a file by the release's own encoder: for each its record, or nothing where it is refused. */
final class Encoder {
    private Encoder() {
    }

    public static void main(String[] args) throws Exception {
        Object encoder = encoder();
        try (DataInputStream in = new DataInputStream(new BufferedInputStream(Files.newInputStream(Paths.get(args[0]))));
            DataOutputStream out = new DataOutputStream(new BufferedOutputStream(Files.newOutputStream(Paths.get(args[1]))))) {
            for (int left = in.readInt(); left > 0; left--) {
                byte[] record = encode(encoder, message(in));
                out.writeInt(record.length);
                out.write(record);
            }
        }
        System.exit(0);
    }

    private static Object encoder() throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        Class<?> type = Reflect.firstClass(
            "org.apache.rocketmq.store.MessageExtEncoder", "org.apache.rocketmq.store.CommitLog$MessageExtEncoder");
        for (Constructor<?> constructor : type.getDeclaredConstructors()) {
            if (constructor.getParameterCount() == 1) {
                constructor.setAccessible(true);
                boolean takesConfig = constructor.getParameterTypes()[0] == MessageStoreConfig.class;
                return constructor.newInstance(takesConfig ? config : (Object) config.getMaxMessageSize());
            }
        }
        throw new NoSuchMethodException(type.getName());
    }

    private static byte[] encode(Object encoder, MessageExt message) throws Exception {
        if (Reflect.call(encoder, "encode", message) != null) {
            return new byte[0];
        }
        ByteBuffer buffer = (ByteBuffer) Reflect.call(encoder, "getEncoderBuffer");
        byte[] record = new byte[buffer.getInt(buffer.position())];
        buffer.get(record);
        return record;
    }

    /** What a broker makes of a producer's message before it is encoded. */
    private static MessageExt message(DataInputStream in) throws Exception {
        Class<?> type = Reflect.firstClass(
            "org.apache.rocketmq.common.message.MessageExtBrokerInner", "org.apache.rocketmq.store.MessageExtBrokerInner");
        MessageExt message = (MessageExt) type.getDeclaredConstructor().newInstance();
        message.setTopic(text(in));
        message.setBody(bytes(in));
        Map<String, String> properties = MessageDecoder.string2messageProperties(text(in));
        for (int added = in.readInt(); added > 0; added--) {
            properties.put(text(in), text(in));
        }
        Reflect.call(message, "setPropertiesString", MessageDecoder.messageProperties2String(properties));
        message.setQueueId(in.readInt());
        message.setFlag(in.readInt());
        message.setSysFlag(in.readInt());
        message.setBornTimestamp(in.readLong());
        message.setStoreTimestamp(in.readLong());
        message.setReconsumeTimes(in.readInt());
        message.setPreparedTransactionOffset(in.readLong());
        message.setBornHost(host(in));
        message.setStoreHost(host(in));
        if (((InetSocketAddress) message.getBornHost()).getAddress().getAddress().length > 4) {
            Reflect.call(message, "setBornHostV6Flag");
        }
        if (((InetSocketAddress) message.getStoreHost()).getAddress().getAddress().length > 4) {
            Reflect.call(message, "setStoreHostAddressV6Flag");
        }
        message.setBodyCRC(UtilAll.crc32(message.getBody()));
        if (message.getTopic().length() > Byte.MAX_VALUE && Reflect.hasClass("org.apache.rocketmq.common.message.MessageVersion")) {
            Class<?> version = Class.forName("org.apache.rocketmq.common.message.MessageVersion");
            Reflect.call(message, "setVersion", version.getEnumConstants()[1]);
        }
        return message;
    }

    private static InetSocketAddress host(DataInputStream in) throws Exception {
        return new InetSocketAddress(InetAddress.getByAddress(bytes(in)), in.readInt());
    }

    private static String text(DataInputStream in) throws Exception {
        return new String(bytes(in), StandardCharsets.UTF_8);
    }

    private static byte[] bytes(DataInputStream in) throws Exception {
        byte[] bytes = new byte[in.readInt()];
        in.readFully(bytes);
        return bytes;
    }
}
