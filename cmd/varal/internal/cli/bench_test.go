package cli_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
)

// TestBenchSessions: small runs, whose figures come with their law.
func TestBenchSessions(t *testing.T) {
	t.Parallel()
	small := []string{"bench", "sessions", "--sessions", "5", "--messages", "500", "--backoff", "200us", "--payload", "64", "--partitions", "4"}
	t.Run("table", func(t *testing.T) {
		t.Parallel()
		code, out, errs := run(t, "", append(small, "--peer", "--rounds", "2", "--jitter", "full")...)
		if code != 0 || errs != "" || strings.Contains(out, "\x1b") {
			t.Errorf("%d, %q, %q", code, out, errs)
		}
		for _, want := range []string{"\nvaral ", "\npeer ", "nothing lost, nothing out of order", "ratio to the peer: rate", "mailbox q = 16", "S = 5", "ceiling S / (s/(1-p) + p·b/(1-2p))", "400000 msg/s"} {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in %s", want, out)
			}
		}
	})
	t.Run("json", func(t *testing.T) {
		t.Parallel()
		code, out, errs := run(t, "", append(small, "--json")...)
		if code != 0 || errs != "" || !strings.HasPrefix(out, `{"rate":`) || strings.Count(out, "\n") != 1 {
			t.Fatalf("%d, %q, %q", code, out, errs)
		}
		var v map[string]any
		if err := json.Unmarshal([]byte(out), &v); err != nil {
			t.Fatal(err)
		}
		for _, field := range []string{"rate", "violations", "lost", "duplicates", "p50_ms", "p99_ms", "p999_ms", "max_ms", "sessions", "service_ms", "transient", "backoff_ms", "mailbox", "key_law", "partitions", "payload", "cores", "ceiling"} {
			if _, ok := v[field]; !ok {
				t.Errorf("no %q in %s", field, out)
			}
		}
	})
	t.Run("open loop", func(t *testing.T) {
		t.Parallel()
		code, out, errs := run(t, "", "bench", "sessions", "--open-loop", "--rate", "1000", "--duration", "300ms", "--sessions", "20")
		if code != 0 || errs != "" || !strings.Contains(out, "open loop: 300 messages, 1000 a second asked") {
			t.Errorf("%d, %q, %q", code, out, errs)
		}
	})
	t.Run("kafka", func(t *testing.T) {
		t.Parallel()
		c, err := kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		code, out, errs := run(t, "", append(small, "--url", "kafka://"+c.ListenAddrs()[0])...)
		if code != 0 || errs != "" {
			t.Errorf("%d, %q, %q", code, out, errs)
		}
	})
}

// TestBenchSoak: in this process, and with members that are processes.
func TestBenchSoak(t *testing.T) {
	t.Parallel()
	small := []string{"bench", "soak", "--messages", "2000", "--segment", "1000", "--sessions", "20", "--members", "2", "--workers", "4", "--dead", "0.01"}
	t.Run("table", func(t *testing.T) {
		t.Parallel()
		code, out, errs := run(t, "", small...)
		if code != 0 || errs != "" || strings.Contains(out, "\x1b") {
			t.Errorf("%d, %q, %q", code, out, errs)
		}
		for _, want := range []string{"messages", "2000", "violations", "every attempt was checked: nothing lost, nothing out of order", "memory: 20 sessions", "segments of 1000"} {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in %s", want, out)
			}
		}
	})
	t.Run("processes", func(t *testing.T) {
		t.Parallel()
		cl, err := kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cl.Close)
		c := exec.CommandContext(t.Context(), os.Args[0], append(small, "--url", "kafka://"+cl.ListenAddrs()[0], "--trouble", "0", "--json")...)
		c.Env = append(os.Environ(), asVaral+"=1")
		out, err := c.Output()
		var v map[string]any
		if err != nil || json.Unmarshal(out, &v) != nil || v["messages"] != 2000.0 || v["violations"] != 0.0 || v["lost"] != 0.0 || v["rate"] == 0.0 || v["broker"] != "kafka" {
			t.Errorf("%v, %s", err, out)
		}
	})
	t.Run("misuse", func(t *testing.T) {
		t.Parallel()
		code, out, errs := run(t, "", "bench", "soak", "--members", "0")
		if code != 2 || out != "" || !strings.Contains(errs, "--members 0 is out of range: 1 to 64") {
			t.Errorf("%d, %q, %q", code, out, errs)
		}
	})
}
