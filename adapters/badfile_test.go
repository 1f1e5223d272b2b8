package adapters_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
)

// good is a whole file; the cases below put something wrong into it.
const good = `broker: memory
brokers:
  memory: {url: "memory:"}
  kafka:
    url: kafka://localhost:9092
    user: kitchen
    password: ${env:VARAL_TEST_MISSING}
    tls: {server_name: kafka.example.com}
prefix: dev-
provision: create
destinations:
  tickets: {shape: queue, partitions: 8}
  pizzas: {shape: topic}
  diary: {shape: stream, name: shift-diary}
subscriptions:
  kitchen:
    from: tickets
    group: kitchen
    order: by-key
    concurrency: 16
    prefetch: 256
    retry: {base: 1s, cap: 1m, attempts: 5}
    dead_letter: tickets.dlq
    require: [ordered]
`

// with replaces one text of good by another.
func with(text, other string) string {
	if !strings.Contains(good, text) {
		panic("good does not hold " + text)
	}
	return strings.Replace(good, text, other, 1)
}

// set changes a field of the subscription.
func set(line string) string {
	key, _, _ := strings.Cut(line, ":")
	for _, l := range strings.Split(good, "\n") {
		if strings.HasPrefix(l, "    "+key+":") && strings.Index(good, l) > strings.Index(good, "subscriptions:") {
			return strings.Replace(good, l, "    "+line, 1)
		}
	}
	return good + "    " + line + "\n"
}

// badFiles are refused when they are read.
var badFiles = []struct{ name, text string }{
	{"empty", ""},
	{"only a comment", "# nothing\n"},
	{"a list", "- a\n- b\n"},
	{"a word", "hello\n"},
	{"byte order mark", "\xef\xbb\xbf" + good},
	{"not UTF-8", with("dev-", "d\xffv-")},
	{"control character", with("dev-", "d\x1bv-")},
	{"UTF-16", "b\x00r\x00"},
	{"two documents", good + "---\nbroker: memory\n"},
	{"syntax", with("shape: topic}", "shape: topic")},
	{"tab indentation", with("  tickets:", "\ttickets:")},
	{"anchors bomb", "a: &a [x,x,x]\nb: &b [*a,*a,*a]\nbrokers: *b\n"},
	{"alias", with("from: tickets", "from: *tickets")},
	{"anchor", with("from: tickets", "from: &t tickets")},
	{"merge", with("    from: tickets", "    <<: {from: tickets}")},
	{"tag", with("from: tickets", "from: !!binary dGlja2V0cw==")},
	{"deep flow", "brokers: " + strings.Repeat("[", 10_000)},
	{"deep dashes", "brokers: " + strings.Repeat("- ", 10_000)},
	{"too large", good + "#" + strings.Repeat("x", 300<<10)},
	{"unknown key at the top", good + "colour: red\n"},
	{"unknown key in a broker", with("user: kitchen", "passwd: "+canary)},
	{"unknown key in a subscription", set("retries: 3")},
	{"unknown key in tls", with("server_name: kafka.example.com", "verify: no")},
	{"unknown key in retry", set("retry: {bse: 1s}")},
	{"duplicate key", with("    group: kitchen", "    group: kitchen\n    group: bar")},
	{"duplicate section", with("  kafka:", "  memory: {url: \"memory:\"}\n  kafka:")},
	{"no brokers", "broker: memory\n"},
	{"unknown broker", with("broker: memory", "broker: rabbit")},
	{"no url", with("    url: kafka://localhost:9092\n", "")},
	{"empty url", with("url: kafka://localhost:9092", "url:")},
	{"password without user", with("    user: kitchen\n", "")},
	{"user without password", with("    password: ${env:VARAL_TEST_MISSING}\n", "")},
	{"password is a list", with("${env:VARAL_TEST_MISSING}", "["+canary+"]")},
	{"provision", with("provision: create", "provision: maybe")},
	{"no shape", with("{shape: topic}", "{}")},
	{"unknown shape", with("shape: topic", "shape: exchange")},
	{"partitions 0", with("partitions: 8", "partitions: 0")},
	{"partitions -1", with("partitions: 8", "partitions: -1")},
	{"partitions 1e9", with("partitions: 8", "partitions: 1e9")},
	{"partitions .inf", with("partitions: 8", "partitions: .inf")},
	{"from is unknown", set("from: tikets")},
	{"from is missing", with("    from: tickets\n", "")},
	{"topic without group", with("    from: tickets\n    group: kitchen\n", "    from: pizzas\n")},
	{"order", set("order: fifo")},
	{"concurrency 0", set("concurrency: 0")},
	{"concurrency -1", set("concurrency: -1")},
	{"concurrency 1e9", set("concurrency: 1e9")},
	{"concurrency 1000000000", set("concurrency: 1000000000")},
	{"concurrency many", set("concurrency: many")},
	{"prefetch 9e99", set("prefetch: 99999999999999999999999")},
	{"base 1d", set("retry: {base: 1d}")},
	{"base -1s", set("retry: {base: -1s}")},
	{"base 0", set("retry: {base: 0}")},
	{"base 5", set("retry: {base: 5}")},
	{"base 9999999h", set("retry: {base: 9999999h}")},
	{"cap 8 days", set("retry: {cap: 192h}")},
	{"attempts 0", set("retry: {attempts: 0}")},
	{"attempts 1001", set("retry: {attempts: 1001}")},
	{"jitter", set("retry: {jitter: some}")},
	{"retry is a number", set("retry: 5")},
	{"timeout empty", set("timeout: \"\"")},
	{"ack_first maybe", set("ack_first: maybe")},
	{"on_exhausted", set("on_exhausted: explode")},
	{"attempts without an end", with("    dead_letter: tickets.dlq\n", "")},
	{"on_exhausted beside a dead letter", set("on_exhausted: halt")},
	{"two dead letters", set("native_dead_letter: true")},
	{"after_terminal", set("after_terminal: explode")},
	{"block_for alone", set("block_for: 1h")},
	{"quarantine over", set("quarantine: 8")},
	{"stuck unknown", set("stuck: {wait: 1s}")},
	{"abandon without cancel", set("stuck: {abandon: 1s}")},
	{"breaker without failures", set("breaker: {open_for: 1s}")},
	{"retry budget without a rate", set("retry_budget: {percent: 10}")},
	{"retry budget over", set("retry_budget: {per_second: 1000001}")},
	{"breaker unknown", set("breaker: {after: 1s}")},
	{"ack_first with retry", set("ack_first: true")},
	{"ack_first with a dead letter", strings.Replace(set("ack_first: true"), "    retry: {base: 1s, cap: 1m, attempts: 5}\n", "", 1)},
	{"require is a word", set("require: ordered")},
	{"require is unknown", set("require: [exactly-once]")},
	{"start", set("start: yesterday")},
	{"missing variable", set("group: ${env:VARAL_TEST_MISSING}")},
	{"reference not closed", set("group: \"${env:HOME\"")},
	{"unknown reference", set("group: \"${exec:id}\"")},
	{"empty reference", set("group: \"${env:}\"")},
	{"missing file", set("group: \"${file:/does/not/exist}\"")},
	{"file is a directory", set("group: \"${file:/etc}\"")},
	{"file is a device", set("group: \"${file:/dev/zero}\"")},
	{"forged log line", with("  tickets: {shape", "  \"x\\nERROR forged\": {shap")},
	{"huge key", strings.Repeat("k", 10_000) + ": 1\n"},
}

func TestBadFiles(t *testing.T) {
	t.Parallel()
	if _, err := adapters.Parse("varal.yaml", []byte(good)); err != nil {
		t.Fatalf("the file that all cases begin with: %v", err)
	}
	var out []string
	for _, c := range badFiles {
		start := time.Now()
		_, err := adapters.Parse("varal.yaml", []byte(c.text))
		if took := time.Since(start); took > time.Second {
			t.Errorf("%s: took %v", c.name, took)
		}
		text := "no error"
		if err == nil {
			t.Errorf("%s: no error", c.name)
		} else {
			text = describe(t, err)
		}
		out = append(out, c.name, "    "+text)
	}
	golden(t, "bad_file.golden", out)
}

// badOpens are fine as files and refused when they are opened.
func TestBadOpens(t *testing.T) {
	t.Setenv("VARAL_TEST_EMPTY", "")
	dir := t.TempDir()
	path := filepath.Join(dir, "varal.yaml")
	text := good + "# the file is complete above; these are more brokers\n"
	text = strings.Replace(text, "brokers:\n", `brokers:
  both: {url: "kafka://u:`+canary+`@localhost:9092", user: u, password: "`+canary+`"}
  empty: {url: "${env:VARAL_TEST_EMPTY}"}
  memory-user: {url: "memory:x", user: u, password: "`+canary+`"}
  memory-tls: {url: "memory:", tls: {}}
  scheme: {url: "nats://u:`+canary+`@localhost"}
  unparseable: {url: "amqp://u:`+canary+`@x@localhost/"}
  plain: {url: "kafka://kafka.example.com", user: u, password: "`+canary+`"}
  ca: {url: "kafka://localhost", tls: {ca: /does/not/exist.pem}}
  redis-both: {url: "redis://:`+canary+`@localhost:6379", user: u, password: "`+canary+`"}
  redis-plain: {url: "redis://redis.example.com", user: u, password: "`+canary+`"}
  redis-ca: {url: "redis://localhost", tls: {ca: /does/not/exist.pem}}
  redis-db: {url: "redis://localhost/first"}
  redis-hosts: {url: "redis://s1:26379,s2:26379", user: u, password: "`+canary+`"}
  redis-sentinel: {url: "redis://s1:26379,s2:26379?sentinel=kitchen&sentinel_password=${env:VARAL_TEST_EMPTY}"}
  redis-cluster-db: {url: "redis://n1:7000,n2:7001/1?cluster=true"}
  redis-sentinel-plain: {url: "redis://localhost,s2.example.com?sentinel=kitchen&sentinel_password=`+canary+`"}
  sqs-both: {url: "sqs://key:`+canary+`@us-east-1", user: key, password: "`+canary+`"}
  sqs-region: {url: "sqs://", user: key, password: "`+canary+`"}
  sqs-plain: {url: "sqs://us-east-1?endpoint=http://emulator.example.com", user: key, password: "`+canary+`"}
  sqs-plain-tls: {url: "sqs://us-east-1?endpoint=http://localhost:4566", user: key, password: "`+canary+`", tls: {}}
  sqs-ca: {url: "sqs://us-east-1", user: key, password: "`+canary+`", tls: {ca: /does/not/exist.pem}}
  sqs-tls: {url: "sqs://us-east-1?server_name=a", user: key, password: "`+canary+`", tls: {server_name: b}}
  sqs-token: {url: "sqs://us-east-1?session_token=${env:VARAL_TEST_EMPTY}", user: key, password: "`+canary+`"}
  redis-tls: {url: "rediss://localhost?server_name=a", tls: {server_name: b}}
`, 1)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out []string
	add := func(name string, c adapters.Config) {
		out = append(out, name, "    "+strings.ReplaceAll(open(t, c), dir, "DIR"))
	}
	for _, b := range []string{"both", "empty", "memory-user", "memory-tls", "scheme", "unparseable", "plain", "ca", "redis-both", "redis-plain", "redis-ca", "redis-db", "redis-hosts", "redis-cluster-db", "redis-sentinel", "redis-sentinel-plain", "redis-tls", "sqs-both", "sqs-region", "sqs-plain", "sqs-plain-tls", "sqs-ca", "sqs-tls", "sqs-token", "kafka", "nope"} {
		add("section "+b, adapters.Config{File: path, Broker: b})
	}
	t.Setenv(adapters.EnvBroker, "elsewhere")
	add("VARAL_BROKER", adapters.Config{File: path})
	t.Setenv(adapters.EnvBroker, "")
	add("no such file", adapters.Config{File: filepath.Join(dir, "missing.yaml")})
	add("a directory", adapters.Config{File: dir})
	add("broker without file", adapters.Config{URL: "memory:", Broker: "kafka"})
	add("prefix twice", adapters.Config{URL: "memory:", Options: core.Options{Prefix: "x"}})
	add("tls on memory", adapters.Config{URL: "memory:", TLS: &adapters.TLS{}})
	add("tls twice", adapters.Config{URL: "kafkas://localhost?tls_server_name=a", TLS: &adapters.TLS{ServerName: "b"}})
	golden(t, "bad_open.golden", out)

	if _, err := adapters.OpenDriver(t.Context(), adapters.Config{URL: "memory:", Prefix: "x"}); !errors.Is(err, core.ErrPermanent) {
		t.Errorf("OpenDriver with a prefix: %v", err)
	}
}

func TestCRLF(t *testing.T) {
	t.Parallel()
	f, err := adapters.Parse("varal.yaml", bytes.ReplaceAll([]byte(good), []byte("\n"), []byte("\r\n")))
	if err != nil {
		t.Fatal(err)
	}
	if sub, _, err := f.Subscription("kitchen"); err != nil || sub.Group != "kitchen" {
		t.Errorf("group %q, %v", sub.Group, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	for _, c := range badFiles {
		if len(c.text) < 4096 {
			f.Add([]byte(c.text))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		start := time.Now()
		file, err := adapters.Parse("fuzz.yaml", data)
		if time.Since(start) > time.Second {
			t.Errorf("took %v", time.Since(start))
		}
		if err != nil {
			describe(t, err)
			return
		}
		for _, name := range file.Subscriptions() {
			if _, _, err := file.Subscription(name); err != nil {
				t.Errorf("subscription %q: %v", name, err)
			}
		}
	})
}

func FuzzOpenURL(f *testing.F) {
	for _, u := range badURLs {
		f.Add(u)
	}
	f.Fuzz(func(t *testing.T, u string) {
		if !strings.HasPrefix(u, "memory") {
			u += "#" // may be right: it must not dial anybody
		}
		c, err := adapters.Open(t.Context(), adapters.Config{URL: u})
		if err != nil {
			if u != "" {
				describe(t, err)
			}
			return
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
