package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/varal-go/varal/cmd/varal/internal/cli"
)

var update = flag.Bool("update", false, "write the golden files anew")

// asVaral makes the test binary behave as varal itself, for tests with real signals
// and pipes.
const asVaral = "VARAL_TEST_AS_VARAL"

func TestMain(m *testing.M) {
	if os.Getenv(asVaral) != "" {
		os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	_ = os.Unsetenv("VARAL_URL")
	_ = os.Unsetenv("VARAL_BROKER")
	goleak.VerifyTestMain(m)
}

const canary = "c4n4ry-S3cret"

// memoryNote is what publish and consume say about a broker that ends with them.
const memoryNote = "varal: memory: lives in this process: what is published here ends with it; use kafka://, amqp://, redis:// or sqs:// between two commands\n"

// run calls varal in this process.
func run(t *testing.T, in string, args ...string) (code int, out, errs string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var o, e bytes.Buffer
	code = cli.Run(ctx, args, strings.NewReader(in), &o, &e)
	return code, o.String(), e.String()
}

var ports = regexp.MustCompile(`127\.0\.0\.1:\d{4,5}`)

// misuse is refused with one line, exit code 2 (or 3), and no secret.
func misuse(t *testing.T, file string) [][]string {
	t.Helper()
	return [][]string{
		{"fly"},
		{"--nope"},
		{"-"},
		{""},
		{"demo", "extra"},
		{"demo", "--nope"},
		{"demo", "--messages", "0"},
		{"demo", "--messages", "-1"},
		{"demo", "--messages", "99999999999999999999"},
		{"demo", "--messages", "many"},
		{"demo", "--seed", "-1"},
		{"demo", "--sabotage", "arson"},
		{"demo", "--patience", "0s"},
		{"demo", "--url", "nats://u:" + canary + "@h"},
		{"demo", "--url", "kafka://127.0.0.1:1"},
		{"publish"},
		{"publish", "-"},
		{"publish", "tickets", "--body", "x"},
		{"publish", "queue:", "--body", "x"},
		{"publish", "pile:tickets", "--body", "x"},
		{"publish", "queue:a", "queue:b", "--body", "x"},
		{"publish", "queue:a"},
		{"publish", "queue:a", "--body", "x"},
		{"publish", "--url", "memory:", "queue:a", "--body", "x", "--header", "=v"},
		{"publish", "--url", "memory:", "queue:a", "--body", "x", "--header", "novalue"},
		{"publish", "--url", "memory:", "queue:a", "--body", "x", "--header", "varal-id=1"},
		{"publish", "--url", "memory:", "queue:a", "--body", "x", "--delay", "-1s"},
		{"publish", "--url", "memory:", "queue:a", "--body", "x", "--delay", "1d"},
		{"publish", "--url", "memory:", "queue:a", "--body", "x", "--priority", "99"},
		{"publish", "--url", "memory:", "queue:a", "--body", "x", "--partitions", "-1"},
		{"publish", "--url", "memory:", "queue:a", "--body", "x", "--timeout", "0s"},
		{"publish", "--url", "memory:", "stream:a", "--body", "x", "--delay", "1s"},
		{"publish", "--url", "memory:", "queue:" + strings.Repeat("n", 10_000), "--body", "x"},
		{"publish", "--url", "memory:", "queue:a\x1b[31m", "--body", "x"},
		{"publish", "--url", "amqp://u:" + canary + "@x@h/", "queue:a", "--body", "x"},
		{"publish", "--url", "kafka://u:" + canary + "@127.0.0.1:1", "queue:a", "--body", "x"},
		{"publish", "--url", "redis://u:" + canary + "@x@h:6379", "queue:a", "--body", "x"},
		{"publish", "--url", "redis://u:" + canary + "@127.0.0.1:1", "queue:a", "--body", "x"},
		{"publish", "--url", "sqs://key:" + canary + "@us-east-1?endpoint=http://127.0.0.1:1", "stream:a", "--body", "x"},
		{"publish", "--broker", "kafka", "queue:a", "--body", "x"},
		{"publish", "--file", "/does/not/exist.yaml", "queue:a", "--body", "x"},
		{"consume"},
		{"consume", "queue:a", "--max", "-1"},
		{"consume", "queue:a", "--idle", "-1s"},
		{"consume", "queue:a", "--from", "yesterday"},
		{"consume", "queue:a"},
		{"consume", "queue:a", "--url", "memory:", "--from", "latest"},
		{"descrbe"},
		{"describe", "--url", "memory:", "--broker", "kafka"},
		{"publish", "--file", file, "topic:tickets", "--body", "x"},
		{"publish", "--file", file, "queue:tickets", "--body", "x", "--partitions", "4"},
		{"describe"},
		{"describe", "tickets"},
		{"describe", "--url", "memory:", "queue:a", "--partitions", "1000000000"},
		{"describe", "--file", file, "--broker", "nope"},
		{"version", "extra"},
		{"bench", "sesions"},
		{"bench", "sessions", "extra"},
		{"bench", "sessions", "--nope"},
		{"bench", "sessions", "--sessions", "0"},
		{"bench", "sessions", "--messages", "9"},
		{"bench", "sessions", "--messages", "many"},
		{"bench", "sessions", "--transient", "1"},
		{"bench", "sessions", "--backoff", "-1s"},
		{"bench", "sessions", "--jitter", "none"},
		{"bench", "sessions", "--payload", "1"},
		{"bench", "sessions", "--partitions", "0"},
		{"bench", "sessions", "--rate", "1000"},
		{"bench", "sessions", "--open-loop", "--messages", "1000"},
		{"bench", "sessions", "--open-loop", "--rate", "0"},
		{"bench", "sessions", "--open-loop", "--duration", "1ms"},
		{"bench", "sessions", "--open-loop", "--peer"},
		{"bench", "sessions", "--url", "nats://u:" + canary + "@h"},
		{"bench", "sessions", "--url", "kafka://u:" + canary + "@127.0.0.1:1"},
	}
}

func TestMisuse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "varal.yaml")
	if err := os.WriteFile(file, []byte("brokers: {memory: {url: \"memory:\"}}\ndestinations: {tickets: {shape: queue, partitions: 8}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, args := range misuse(t, file) {
		start := time.Now()
		code, out, errs := run(t, "", args...)
		if took := time.Since(start); took > 16*time.Second {
			t.Errorf("%q took %v", args, took)
		}
		if code != cli.Usage && code != cli.Unreachable {
			t.Errorf("%q: exit code %d", args, code)
		}
		if out != "" || strings.Count(errs, "\n") != 1 || strings.ContainsAny(errs, "\x1b\x00") {
			t.Errorf("%q: stdout %q, stderr %q", args, out, errs)
		}
		shown := fmt.Sprintf("%.90q", strings.NewReplacer(canary, "SECRET", dir, "DIR").Replace(strings.Join(args, " ")))
		_, _ = fmt.Fprintf(&text, "%s\n    %d %s", shown, code, strings.ReplaceAll(errs, dir, "DIR"))
	}
	golden(t, "misuse.golden", text.String())
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	if strings.Contains(got, canary) {
		t.Errorf("a secret was printed:\n%s", got)
	}
	got = ports.ReplaceAllString(got, "127.0.0.1:PORT")
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	w, g := strings.Split(string(want), "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			t.Errorf("%s:%d\n got %s\nwant %s\n(go test -update writes it anew)", path, i+1, g[i], w[i])
		}
	}
	if len(w) != len(g) {
		t.Errorf("%s: %d lines, want %d", path, len(g), len(w))
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"help"}, {"demo", "--help"}, {"publish", "--help"}, {"consume", "--help"}, {"describe", "--help"}, {"version", "--help"}, {"bench"}, {"bench", "sessions", "--help"}} {
		code, out, errs := run(t, "", args...)
		if code != 0 || errs != "" || !strings.Contains(out, "Examples:") {
			t.Errorf("%q: %d, %q, %q", args, code, out, errs)
		}
	}
}

func TestPublishConsume(t *testing.T) {
	t.Parallel()
	url := "memory:" + t.Name()
	for i, body := range []string{"margherita", "two\nlines", "\xff\xfe"} {
		code, out, errs := run(t, body, "publish", "--url", url, "queue:tickets", "--partitions", "2", "--key", "table-7", "--type", "ticket", "--header", "shift=late", "--body", "-")
		if code != 0 || len(strings.TrimSpace(out)) != 26 || errs != memoryNote {
			t.Fatalf("publish %d: %d, %q, %q", i, code, out, errs)
		}
	}
	code, out, errs := run(t, "", "consume", "--url", url, "queue:tickets", "--partitions", "2", "--max", "1")
	if code != 0 || out != "table-7\tmargherita\n" || errs != memoryNote {
		t.Errorf("consume: %d, %q, %q", code, out, errs)
	}
	code, out, errs = run(t, "", "consume", "--url", url, "queue:tickets", "--partitions", "2", "--json", "--idle", "300ms")
	if code != 0 || errs != memoryNote {
		t.Errorf("consume: %d, %q", code, errs)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines: %q", len(lines), out)
	}
	var m struct {
		Key, Type, Body string
		Base64          string `json:"body_base64"`
	}
	if err := json.Unmarshal([]byte(lines[0]), &m); err != nil || m.Body != "two\nlines" || m.Type != "ticket" {
		t.Errorf("%q: %+v, %v", lines[0], m, err)
	}
	if err := json.Unmarshal([]byte(lines[1]), &m); err != nil || m.Base64 != "//4=" {
		t.Errorf("%q: %+v, %v", lines[1], m, err)
	}
}

func TestPublishJSON(t *testing.T) {
	t.Parallel()
	code, out, _ := run(t, "", "publish", "--url", "memory:", "topic:pizzas", "--body", "x", "--json")
	var v map[string]string
	if err := json.Unmarshal([]byte(out), &v); code != 0 || err != nil || v["to"] != "topic pizzas" || v["id"] == "" {
		t.Errorf("%d, %q, %v", code, out, err)
	}
}

func TestBodyTooLarge(t *testing.T) {
	t.Parallel()
	code, _, errs := run(t, strings.Repeat("x", 2<<20), "publish", "--url", "memory:", "queue:a", "--body", "-")
	if code != cli.Usage || !strings.Contains(errs, "larger") {
		t.Errorf("%d, %q", code, errs)
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "varal.yaml")
	text := `broker: memory
brokers: {memory: {url: "memory:"}}
destinations: {tickets: {shape: queue, partitions: 8, name: tickets-eu}, bag: {shape: queue}, pizzas: {shape: topic}}
subscriptions:
  radio: {from: pizzas, group: radio, ack_first: true, timeout: 1m}
  strict: {from: bag, retry: {base: 1m, cap: 2h, attempts: 3}, on_exhausted: discard}
  patient: {from: bag}
  kitchen: {from: tickets, group: kitchen, order: by-key, retry: {attempts: 5}, dead_letter: tickets.dlq}
  impossible: {from: bag, order: by-key}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := run(t, "", "describe", "--file", file, "queue:tickets")
	if code != cli.Failed || errs != "" {
		t.Errorf("a refused subscription: %d, %q", code, errs)
	}
	golden(t, "describe.golden", out)
	code, out, _ = run(t, "", "describe", "--url", "memory:", "--json")
	var v struct{ Destinations []any }
	if err := json.Unmarshal([]byte(out), &v); code != 0 || err != nil || len(v.Destinations) != 4 {
		t.Errorf("%d, %v, %q", code, err, out)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	_, plain, _ := run(t, "", "version")
	if code, flag, errs := run(t, "", "--version"); code != 0 || flag != plain || errs != "" {
		t.Errorf("--version: %d, %q, %q; version: %q", code, flag, errs, plain)
	}
	code, out, _ := run(t, "", "version", "--json")
	var v map[string]any
	if err := json.Unmarshal([]byte(out), &v); code != 0 || err != nil || v["go"] == "" {
		t.Errorf("%d, %q, %v", code, out, err)
	}
}

// TestDemo: the exit code is the account.
func TestDemo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"demo", "--messages", "600"}, 0, "nothing lost, nothing out of order"},
		{[]string{"demo", "--messages", "600", "--sabotage", "swap"}, 1, "out of order"},
		{[]string{"demo", "--messages", "600", "--sabotage", "drop"}, 1, "lost"},
		{[]string{"demo", "--messages", "600", "--sabotage", "early-ack", "--json"}, 1, `"lost":`},
		{[]string{"demo", "--messages", "600", "--json"}, 0, `{"lost":0,"out_of_order":0,`},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			t.Parallel()
			code, out, errs := run(t, "", c.args...)
			if code != c.code || !strings.Contains(out, c.want) || errs != "" || strings.Contains(out, "\x1b") {
				t.Errorf("%d, %q, %q", code, out, errs)
			}
		})
	}
}

// TestDemoOnKafka: the same command over another broker, in this process.
func TestDemoOnKafka(t *testing.T) {
	t.Parallel()
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	code, out, errs := run(t, "", "demo", "--messages", "600", "--json", "--url", "kafka://"+c.ListenAddrs()[0])
	if code != 0 {
		t.Errorf("%d, %q, %q", code, out, errs)
	}
}

// brokenPipe fails as a pipe whose reader has gone.
type brokenPipe struct{ after int }

func (b *brokenPipe) Write(p []byte) (int, error) {
	if b.after--; b.after < 0 {
		return 0, &os.PathError{Op: "write", Path: "|1", Err: syscall.EPIPE}
	}
	return len(p), nil
}

// TestClosedStdout: a reader that has seen enough is no failure, and costs no message.
func TestClosedStdout(t *testing.T) {
	t.Parallel()
	url := "memory:" + t.Name()
	for i := range 3 {
		if code, _, errs := run(t, "", "publish", "--url", url, "queue:q", "--body", fmt.Sprint(i)); code != 0 {
			t.Fatal(errs)
		}
	}
	var errs bytes.Buffer
	code := cli.Run(t.Context(), []string{"consume", "--url", url, "queue:q"}, nil, &brokenPipe{after: 1}, &errs)
	if code != 0 || errs.String() != memoryNote {
		t.Errorf("consume: %d, %q", code, errs.String())
	}
	_, out, _ := run(t, "", "consume", "--url", url, "queue:q", "--idle", "300ms")
	if n := strings.Count(out, "\n"); n != 2 {
		t.Errorf("%d messages are left of the two that nobody saw: %q", n, out)
	}
	code = cli.Run(t.Context(), []string{"demo", "--messages", "600", "--sabotage", "drop"}, nil, &brokenPipe{}, io.Discard)
	if code != cli.Failed {
		t.Errorf("a loss with a closed stdout: exit code %d", code)
	}
	for _, args := range [][]string{{"version"}, {"describe", "--url", "memory:"}, {"publish", "--url", url, "queue:q", "--body", "x"}, {"demo", "--messages", "50"}} {
		if code := cli.Run(t.Context(), args, nil, &brokenPipe{}, io.Discard); code != 0 {
			t.Errorf("%q with a closed stdout: exit code %d", args, code)
		}
	}
}

// process starts varal as a process of its own.
func process(t *testing.T, args ...string) (*exec.Cmd, *lines) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), exe, args...)
	c.Env = append(os.Environ(), asVaral+"=1")
	out := &lines{}
	c.Stdout, c.Stderr = out, out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c, out
}

type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// TestSignals: the first signal drains, and tells what that means in the exit code.
func TestSignals(t *testing.T) {
	t.Parallel()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "q"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	url := "kafka://" + c.ListenAddrs()[0]
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		if code, _, errs := run(t, "", "publish", "--url", url, "queue:q", "--body", s.String()); code != 0 {
			t.Fatal(errs)
		}
		p, out := process(t, "consume", "--url", url, "queue:q", "--from", "earliest")
		await(t, out, s.String())
		stop(t, p, s)
		if code := p.ProcessState.ExitCode(); code != cli.OK {
			t.Errorf("consume after %v: exit code %d: %s", s, code, out)
		}
	}
	p, out := process(t, "demo", "--messages", "1000000", "-v")
	await(t, out, "connected", "retried", "revoked", "dead_lettered")
	stop(t, p, syscall.SIGINT)
	if code := p.ProcessState.ExitCode(); code != cli.Interrupted {
		t.Errorf("demo after SIGINT: exit code %d: %.500s", code, out)
	}
}

// await waits until the process has printed one of the texts.
func await(t *testing.T, out *lines, texts ...string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for _, text := range texts {
			if strings.Contains(out.String(), text) {
				return
			}
		}
	}
	t.Fatalf("none of %q was printed: %s", texts, out)
}

// stop sends a signal and waits for the end.
func stop(t *testing.T, p *exec.Cmd, s os.Signal) {
	t.Helper()
	if err := p.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	select {
	case err := <-ended:
		if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
			t.Fatal(err)
		}
	case <-time.After(20 * time.Second):
		_ = p.Process.Kill()
		<-ended
		t.Fatalf("%v did not end it", s)
	}
}
