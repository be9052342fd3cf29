import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;

/** Calls what has moved or changed its signature between releases, so that one source serves them all. */
final class Reflect {
    private Reflect() {
    }

    static Object field(Object owner, String name) throws Exception {
        for (Class<?> type = owner.getClass(); type != null; type = type.getSuperclass()) {
            try {
                Field field = type.getDeclaredField(name);
                field.setAccessible(true);
                return field.get(owner);
            } catch (NoSuchFieldException e) {
                continue;
            }
        }
        throw new NoSuchFieldException(name);
    }

    /** Calls a method by name and number of arguments; throws what the method threw. */
    static Object call(Object owner, String name, Object... arguments) throws Exception {
        for (Class<?> type = owner.getClass(); type != null; type = type.getSuperclass()) {
            for (Method method : type.getDeclaredMethods()) {
                if (method.getName().equals(name) && method.getParameterCount() == arguments.length && !method.isBridge()) {
                    method.setAccessible(true);
                    try {
                        return method.invoke(owner, arguments);
                    } catch (IllegalArgumentException e) {
                        continue; // an overload with other types
                    } catch (InvocationTargetException e) {
                        if (e.getCause() instanceof Exception) {
                            throw (Exception) e.getCause();
                        }
                        throw (Error) e.getCause();
                    }
                }
            }
        }
        for (Class<?> type : owner.getClass().getInterfaces()) {
            for (Method method : type.getMethods()) {
                if (method.getName().equals(name) && method.getParameterCount() == arguments.length) {
                    return method.invoke(owner, arguments);
                }
            }
        }
        throw new NoSuchMethodException(name);
    }

    static Class<?> firstClass(String... names) throws ClassNotFoundException {
        for (String name : names) {
            try {
                return Class.forName(name);
            } catch (ClassNotFoundException e) {
                continue;
            }
        }
        throw new ClassNotFoundException(String.join(" or ", names));
    }

    static boolean hasClass(String name) {
        try {
            Class.forName(name);
            return true;
        } catch (ClassNotFoundException e) {
            return false;
        }
    }

    /** An exception and its causes in one line, without the folders of this machine. */
    static String chain(Throwable thrown) {
        StringBuilder text = new StringBuilder();
        for (int depth = 0; thrown != null && depth < 4; depth++, thrown = thrown.getCause()) {
            String message = thrown.getMessage() == null ? "null" : thrown.getMessage().replaceAll("/[^ ]*/", "");
            text.append(depth > 0 ? " <- " : "").append(thrown.getClass().getName()).append(": ").append(message);
        }
        return text.toString();
    }
}
