// Runs the snippets of query mode in one JShell. Descriptor 62 brings requests, 63 takes reports, framed as in
// framing.py: kind (1 byte), length (4 bytes, big endian), fields of a length and bytes each.
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Locale;
import jdk.jshell.Diag;
import jdk.jshell.EvalException;
import jdk.jshell.JShell;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis;
import sun.misc.Signal;

public class QueryJava {
    private static DataOutputStream reports;
    private static volatile String currentRun;

    /** Stops the present run; again until it ends, since JShell ignores a stop while it compiles. */
    @SuppressWarnings("StringEquality")
    static void stop(JShell shell) {
        String target = currentRun;
        while (target != null && target == currentRun) {
            shell.stop();
            try {
                Thread.sleep(50);
            } catch (InterruptedException error) {
                return;
            }
        }
    }

    static void report(char kind, String... texts) throws IOException {
        ByteArrayOutputStream payload = new ByteArrayOutputStream();
        DataOutputStream fields = new DataOutputStream(payload);
        for (String text : texts) {
            byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
            fields.writeInt(bytes.length);
            fields.write(bytes);
        }
        ByteArrayOutputStream frame = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(frame);
        out.writeByte(kind);
        out.writeInt(payload.size());
        payload.writeTo(out);
        reports.write(frame.toByteArray());
        reports.flush();
    }

    static void fail(String name, String message, String text) throws IOException {
        System.out.flush();
        System.err.println(text);
        report('X', text, name, message);
    }

    /** Shows the value of an expression; returns false if the snippet failed, which ends the run. */
    static boolean show(JShell shell, SnippetEvent event) throws IOException {
        if (event.exception() != null) {
            Exception error = event.exception();
            String name = error instanceof EvalException thrown ? thrown.getExceptionClassName() : error.getClass().getName();
            fail(name, String.valueOf(error.getMessage()), name + ": " + error.getMessage());
            return false;
        }
        if (event.status() == Snippet.Status.REJECTED) {
            StringBuilder text = new StringBuilder();
            shell.diagnostics(event.snippet()).map(diag -> diag.getMessage(Locale.ROOT)).forEach(line -> text.append(line).append('\n'));
            fail("CompileError", text.toString().strip(), text.toString().strip());
            return false;
        }
        boolean isExpression = event.snippet().kind() == Snippet.Kind.EXPRESSION || event.snippet().subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND;
        if (isExpression && event.value() != null && !event.value().isEmpty()) {
            System.out.println(event.value());
        }
        return true;
    }

    static void run(JShell shell, String code) throws IOException {
        String rest = code;
        while (!rest.isBlank()) {
            SourceCodeAnalysis.CompletionInfo info = shell.sourceCodeAnalysis().analyzeCompletion(rest);
            boolean isWhole = info.completeness().isComplete() || info.completeness() == SourceCodeAnalysis.Completeness.CONSIDERED_INCOMPLETE;
            for (SnippetEvent event : shell.eval(isWhole ? info.source() : rest)) {
                if (event.causeSnippet() == null && !show(shell, event)) {
                    return;
                }
            }
            rest = isWhole ? info.remaining() : "";
        }
    }

    public static void main(String[] arguments) throws Exception {
        reports = new DataOutputStream(new FileOutputStream("/proc/self/fd/63"));
        DataInputStream requests = new DataInputStream(new FileInputStream("/proc/self/fd/62"));
        JShell shell = JShell.builder().executionEngine("local").out(System.out).err(System.err).build();
        for (String name : new String[] {"java.io", "java.math", "java.nio.file", "java.util", "java.util.function", "java.util.stream"}) {
            shell.eval("import " + name + ".*;");
        }
        Signal.handle(new Signal("INT"), signal -> stop(shell));
        report('H', System.getProperty("java.version"));
        report('S');
        while (true) {
            requests.readByte();
            requests.readInt();
            String number = new String(requests.readNBytes(requests.readInt()), StandardCharsets.UTF_8);
            String code = new String(requests.readNBytes(requests.readInt()), StandardCharsets.UTF_8);
            currentRun = number;
            try {
                run(shell, code);
            } finally {
                currentRun = null;
                System.out.flush();
                report('D', number);
            }
        }
    }
}
