import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.Header;
import io.debezium.engine.format.Json;
import io.debezium.engine.format.KeyValueHeaderChangeEventFormat;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Writes Debezium's records as lines, until its standard input ends.
 *
 * <p>Each argument is a file of a connector's settings. This program reads two settings itself:
 * {@code records.file} is the path of the lines, and {@code records.shape} the form of a line.
 * {@code whole} has topic and headers, {@code strings} has the same fields as kcat writes them,
 * {@code pair} has key and value, {@code value} the value alone. For every record of a table called
 * {@code zz_marker}, the program prints {@code marker NAME} once all earlier records are in the file.
 */
public final class Records {
    private final String name;
    private final String shape;
    private final BufferedWriter lines;
    private final DebeziumEngine<ChangeEvent<String, String>> engine;

    private Records(Properties settings) throws IOException {
        name = settings.getProperty("name");
        shape = settings.getProperty("records.shape");
        lines = Files.newBufferedWriter(Path.of(settings.getProperty("records.file")));
        engine = DebeziumEngine
                .create(KeyValueHeaderChangeEventFormat.of(Json.class, Json.class, Json.class))
                .using(settings)
                .using((success, message, error) -> ended(success, message, error))
                .notifying((records, committer) -> {
                    for (ChangeEvent<String, String> record : records) {
                        write(record);
                        committer.markProcessed(record);
                    }
                    committer.markBatchFinished();
                })
                .build();
    }

    private void write(ChangeEvent<String, String> record) {
        String line = switch (shape) {
            case "whole" -> whole(record);
            case "strings" -> strings(record);
            case "pair" -> "{\"key\":" + record.key() + ",\"value\":" + record.value() + "}";
            case "value" -> record.value();
            default -> throw new IllegalArgumentException(shape);
        };
        try {
            if (line != null) {
                lines.write(line);
                lines.write('\n');
            }
            if (record.destination().endsWith(".zz_marker")) {
                lines.flush();
                say("marker " + name);
            }
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Key, value and headers as JSON. */
    private static String whole(ChangeEvent<String, String> record) {
        List<String> headers = new ArrayList<>();
        for (Header<Object> header : record.<Object>headers()) {
            headers.add(text(header.getKey()) + ":" + header.getValue());
        }
        return "{\"topic\":" + text(record.destination()) + ",\"headers\":{"
                + String.join(",", headers) + "},\"key\":" + record.key() + ",\"value\":"
                + record.value() + "}";
    }

    /** Key, value and headers as strings with JSON in them. */
    private static String strings(ChangeEvent<String, String> record) {
        List<String> headers = new ArrayList<>();
        for (Header<Object> header : record.<Object>headers()) {
            headers.add(text(header.getKey()));
            headers.add(text((String) header.getValue()));
        }
        return "{\"topic\":" + text(record.destination()) + ",\"partition\":0,\"headers\":["
                + String.join(",", headers) + "],\"key\":" + text(record.key()) + ",\"payload\":"
                + text(record.value()) + "}";
    }

    private static String text(String string) {
        if (string == null) {
            return "null";
        }
        StringBuilder text = new StringBuilder("\"");
        for (char c : string.toCharArray()) {
            if (c == '"' || c == '\\') {
                text.append('\\').append(c);
            } else if (c < ' ') {
                text.append(String.format("\\u%04x", (int) c));
            } else {
                text.append(c);
            }
        }
        return text.append('"').toString();
    }

    private void ended(boolean success, String message, Throwable error) {
        if (!success) {
            say("failed " + name + " " + message + " " + error);
        }
    }

    private static void say(String line) {
        synchronized (System.out) {
            System.out.println(line);
            System.out.flush();
        }
    }

    public static void main(String[] files) throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        List<Records> all = new ArrayList<>();
        for (String file : files) {
            Properties settings = new Properties();
            try (Reader reader = Files.newBufferedReader(Path.of(file))) {
                settings.load(reader);
            }
            Records records = new Records(settings);
            all.add(records);
            threads.execute(records.engine);
        }
        while (System.in.read() >= 0) {
            // Only its end is waited for.
        }
        for (Records records : all) {
            records.engine.close();
            records.lines.close();
        }
        threads.shutdown();
        System.exit(threads.awaitTermination(1, TimeUnit.MINUTES) ? 0 : 1);
    }
}
