import java.util.List;
import java.util.Map;

/** Writes JSON; the trace needs no more than this. */
final class Json {
    private Json() {}

    static String of(Object value) {
        StringBuilder out = new StringBuilder();
        write(out, value);
        return out.toString();
    }

    private static void write(StringBuilder out, Object value) {
        if (value == null || value instanceof Boolean || value instanceof Number) {
            out.append(value);
        } else if (value instanceof Map<?, ?> map) {
            String separator = "{";
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                out.append(separator);
                quote(out, String.valueOf(entry.getKey()));
                out.append(':');
                write(out, entry.getValue());
                separator = ",";
            }
            out.append(map.isEmpty() ? "{}" : "}");
        } else if (value instanceof Iterable<?> list) {
            String separator = "[";
            boolean empty = true;
            for (Object item : list) {
                out.append(separator);
                write(out, item);
                separator = ",";
                empty = false;
            }
            out.append(empty ? "[]" : "]");
        } else if (value instanceof Object[] array) {
            write(out, List.of(array));
        } else {
            quote(out, value.toString());
        }
    }

    private static void quote(StringBuilder out, String text) {
        out.append('"');
        for (int index = 0; index < text.length(); index++) {
            char letter = text.charAt(index);
            switch (letter) {
                case '"' -> out.append("\\\"");
                case '\\' -> out.append("\\\\");
                case '\n' -> out.append("\\n");
                case '\r' -> out.append("\\r");
                case '\t' -> out.append("\\t");
                default -> {
                    if (letter < ' ') out.append(String.format("\\u%04x", (int) letter));
                    else out.append(letter);
                }
            }
        }
        out.append('"');
    }
}
