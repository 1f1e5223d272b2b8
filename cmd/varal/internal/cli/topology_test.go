package cli_test

import (
	"crypto/rand"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/varal-go/varal/cmd/varal/internal/cli"
)

const topologyFile = `broker: memory
brokers: {memory: {url: "memory:"}}
prefix: eu.
destinations: {tickets: {shape: queue, partitions: 8}, pizzas: {shape: topic}, diary: {shape: stream}}
subscriptions:
  kitchen: {from: tickets, group: kitchen, order: by-key, retry: {attempts: 5}, dead_letter: tickets.dlq}
  screen: {from: pizzas, group: screen}
  radio: {from: pizzas, group: radio}
  reader: {from: diary, group: reader, temporary: true}
`

type topologyOutput struct {
	Mode          string
	Checked, Open int
	Changes       []struct {
		Subject, Field, Have, Want string
		Done                       bool
	}
}

// All that the file's subscriptions need is made, once, under the file's prefix.
func TestTopologyMakesWhatAFileNeeds(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "varal.yaml")
	if err := os.WriteFile(file, []byte(topologyFile), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		verb, flag, mode string
		code             int
		done             bool
	}{
		{"verify", "--json", "verify", 1, false},
		{"apply", "--dry-run", "plan", 1, false},
		{"apply", "--json", "create", 0, true},
	} {
		code, out, errs := run(t, "", "topology", c.verb, "--file", file, c.flag, "--json", "queue:tickets")
		var got topologyOutput
		if err := json.Unmarshal([]byte(out), &got); err != nil || code != c.code || got.Mode != c.mode {
			t.Errorf("%s: exit code %d, %v, mode %q; %s", c.mode, code, err, got.Mode, errs)
		}
		// tickets and its dead letter, pizzas and its two groups, diary.
		if got.Checked != 6 {
			t.Errorf("%s: %d looked at", c.mode, got.Checked)
		}
		var subjects []string
		for _, ch := range got.Changes {
			subjects = append(subjects, ch.Subject)
			if ch.Done != c.done || !strings.Contains(ch.Subject, "eu.") {
				t.Errorf("%s: %+v", c.mode, ch)
			}
		}
		for _, name := range []string{"eu.tickets", "eu.tickets.dlq", "eu.pizzas", "eu.diary"} {
			if n := len(slices.DeleteFunc(slices.Clone(subjects), func(s string) bool { return !strings.HasSuffix(s, " "+name) })); n != 1 {
				t.Errorf("%s: %s is named %d times in %q", c.mode, name, n, subjects)
			}
		}
		if c.done != (got.Open == 0) {
			t.Errorf("%s: %d open", c.mode, got.Open)
		}
	}
}

// On every broker there is: missing, made, there.
func TestTopologyOnRealBrokers(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"kafka", "rabbitmq", "redis"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			variable := "VARAL_" + strings.ToUpper(name) + "_URL"
			url := os.Getenv(variable)
			switch {
			case url != "":
			case strings.Contains(os.Getenv("VARAL_REQUIRE"), name):
				t.Fatal(variable + " is not set and VARAL_REQUIRE names " + name)
			default:
				t.Skip(variable + " is not set: no " + name + " to ask")
			}
			of := []string{"--url", url, "queue:topology-q-" + rand.Text(), "topic:topology-t-" + rand.Text()}
			for _, c := range []struct {
				verb, says string
				code       int
			}{
				{"verify", "0 changed, 2 open", 1},
				{"apply", "2 changed, 0 open", 0},
				{"apply", "0 changed, 0 open", 0},
				{"verify", "0 changed, 0 open", 0},
			} {
				code, out, errs := run(t, "", append([]string{"topology", c.verb}, of...)...)
				if code != c.code || !strings.Contains(out, c.says) {
					t.Errorf("%s: exit code %d, want %d: %s%s", c.verb, code, c.code, out, errs)
				}
			}
		})
	}
}

// What was made before something else failed is told: it is there.
func TestTopologyThatStopsHalfWay(t *testing.T) {
	t.Parallel()
	url := os.Getenv("VARAL_REDIS_URL")
	switch {
	case url != "":
	case strings.Contains(os.Getenv("VARAL_REQUIRE"), "redis"):
		t.Fatal("VARAL_REDIS_URL is not set and VARAL_REQUIRE names redis")
	default:
		t.Skip("VARAL_REDIS_URL is not set: no redis to ask")
	}
	for _, flag := range []string{"--json=false", "--json"} {
		name := "topology-h-" + rand.Text()
		code, out, errs := run(t, "", "topology", "apply", "--url", url, flag, "queue:"+name, "stream:"+name)
		if code != 2 || !strings.Contains(errs, "is a queue and not a stream") {
			t.Errorf("exit code %d: %s", code, errs)
		}
		if !strings.Contains(out, "queue "+name) {
			t.Errorf("nothing tells that the queue was made: %q", out)
		}
	}
}

// What differs differs, also where nobody reads how: the exit code is what a script looks at.
func TestTopologyIntoAClosedPipe(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--json=false", "--json"} {
		args := []string{"topology", "verify", "--url", "memory:", flag, "queue:missing"}
		if code := cli.Run(t.Context(), args, strings.NewReader(""), &brokenPipe{}, io.Discard); code != 1 {
			t.Errorf("%s: exit code %d", flag, code)
		}
	}
}

func TestTopologyOfNothing(t *testing.T) {
	t.Parallel()
	if code, _, errs := run(t, "", "topology", "apply", "--url", "memory:"); code != 2 || !strings.Contains(errs, "--file") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}
