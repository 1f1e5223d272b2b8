package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
)

// TestFileDestination: publish and consume take name and partitions from the file, so
// that the order the file asks for holds on the command line too.
func TestFileDestination(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "varal.yaml")
	text := "brokers: {memory: {url: \"memory:" + t.Name() + "\"}}\n" +
		"destinations: {tickets: {shape: queue, partitions: 8, name: tickets-eu}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := run(t, "", "publish", "--file", file, "queue:tickets", "--body", "x", "--json")
	if code != 0 || errs != memoryNote || !strings.Contains(out, "queue tickets-eu") {
		t.Errorf("publish: %d, %q, %q", code, out, errs)
	}
	// Memory refuses a number of partitions that is not the one of the publisher.
	code, out, errs = run(t, "", "consume", "--url", "memory:"+t.Name(), "queue:tickets-eu", "--partitions", "8", "--max", "1")
	if code != 0 || out != "\tx\n" {
		t.Errorf("consume without the file: %d, %q, %q", code, out, errs)
	}
	if code, _, errs = run(t, "", "publish", "--file", file, "queue:tickets", "--body", "y"); code != 0 {
		t.Error(errs)
	}
	code, out, errs = run(t, "", "consume", "--file", file, "queue:tickets", "--max", "1")
	if code != 0 || out != "\ty\n" {
		t.Errorf("consume: %d, %q, %q", code, out, errs)
	}
}

// TestWarnings: what the library would log, the command says.
func TestWarnings(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "varal.yaml")
	text := "broker: memory\nbrokers:\n  memory: {url: \"memory:\"}\n  kafka: {url: \"kafka://localhost:9092\", user: u, password: " + canary + "}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, errs := run(t, "", "describe", "--file", file)
	if code != 0 || strings.Count(errs, "\n") != 1 || !strings.HasPrefix(errs, "varal: warning: ") || !strings.Contains(errs, "password") || strings.Contains(errs, canary) {
		t.Errorf("%d, %q", code, errs)
	}
}

// TestExamples: what the help shows works as it stands, given a broker.
func TestExamples(t *testing.T) {
	t.Parallel()
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	for _, command := range []string{"publish", "consume", "describe"} {
		_, help, _ := run(t, "", command, "--help")
		_, rest, _ := strings.Cut(help, "Examples:\n")
		examples, _, _ := strings.Cut(rest, "\n\n")
		for _, line := range strings.Split(examples, "\n") {
			in := ""
			if before, after, piped := strings.Cut(line, " | "); piped {
				in, line = strings.TrimPrefix(strings.TrimSpace(before), "echo "), after
			}
			line = strings.ReplaceAll(line, "localhost:9092", c.ListenAddrs()[0])
			line = strings.ReplaceAll(line, "examples/", "../../../../examples/")
			line = strings.ReplaceAll(line, "--idle 5s", "--idle 2s") // a broker in this process
			args := strings.Fields(line)
			if len(args) < 2 || args[0] != "varal" {
				t.Errorf("%s: no example: %q", command, line)
				continue
			}
			if code, out, errs := run(t, in, args[1:]...); code != 0 || out == "" || errs != "" {
				t.Errorf("%s: %d, %q, %q", line, code, out, errs)
			}
		}
	}
}
