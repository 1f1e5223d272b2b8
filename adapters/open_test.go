package adapters_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// sdks of the brokers, by the adapter that may link them.
var sdks = map[string]string{
	"kafka":    "github.com/twmb/franz-go",
	"rabbitmq": "github.com/rabbitmq/amqp091-go",
	"redis":    "github.com/redis/go-redis",
	"aws":      "github.com/aws/",
	"memory":   "",
}

// TestAdaptersLinkOneSDK: an application that imports one adapter must not link the
// client library of another broker.
func TestAdaptersLinkOneSDK(t *testing.T) {
	t.Parallel()
	const module = "github.com/varal-go/varal/"
	for name := range sdks {
		for _, dep := range deps(t, module+"adapters/"+name, module+"core", module+"middleware") {
			for other, sdk := range sdks {
				if other != name && (sdk != "" && strings.HasPrefix(dep, sdk) || strings.HasPrefix(dep, module+"adapters/"+other)) {
					t.Errorf("adapters/%s links %s, which belongs to adapters/%s", name, dep, other)
				}
			}
			if strings.HasPrefix(dep, "github.com/goccy/") || dep == module+"adapters" {
				t.Errorf("adapters/%s links %s, which belongs to package adapters", name, dep)
			}
		}
	}
	for _, dep := range deps(t, module+"adapters") {
		if strings.HasPrefix(dep, module+"middleware") || strings.HasPrefix(dep, module+"patterns") {
			t.Errorf("adapters links %s", dep)
		}
	}
	for _, dep := range deps(t, module+"core", module+"middleware") {
		host, _, _ := strings.Cut(dep, "/")
		if strings.Contains(host, ".") && !strings.HasPrefix(dep, module) {
			t.Errorf("core or middleware links %s: they are to use the standard library only", dep)
		}
	}
}

func deps(t *testing.T, packages ...string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps"}, packages...)...).Output()
	if err != nil {
		t.Fatalf("go list -deps: %v", err)
	}
	return strings.Fields(string(out))
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "varal.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// logged returns a logger and what it was told.
func logged() (*slog.Logger, *bytes.Buffer) {
	var b bytes.Buffer
	return slog.New(slog.NewTextHandler(&b, nil)), &b
}

// TestSwap runs one subscription of one file on every broker that is here, chosen by a
// word.
func TestSwap(t *testing.T) {
	text := strings.Replace(good, "    user: kitchen\n    password: ${env:VARAL_TEST_MISSING}\n    tls: {server_name: kafka.example.com}\n", "", 1)
	text = strings.Replace(text, "kafka://localhost:9092", "kafka://"+fakeKafka(t), 1)
	names := []string{"memory", "kafka"}
	if url := os.Getenv("VARAL_REDIS_URL"); url != "" {
		names = append(names, "redis")
		text = strings.Replace(text, "brokers:\n", "brokers:\n  redis: {url: \""+url+"?namespace=swap-"+rand.Text()+"\"}\n", 1)
	}
	if url := os.Getenv("VARAL_SQS_URL"); url != "" {
		names = append(names, "sqs")
		text = strings.Replace(text, "brokers:\n", "brokers:\n  sqs: {url: \"sqs://us-east-1?endpoint="+url+"&wait=1s&prefix=swap-"+rand.Text()+"-\", user: test, password: test}\n", 1)
	}
	path := write(t, text)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Setenv(adapters.EnvBroker, name)
			f, err := adapters.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			l, _ := logged()
			client, err := f.Open(t.Context(), adapters.Config{Options: core.Options{Logger: l}})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := client.Close(context.WithoutCancel(t.Context())); err != nil {
					t.Error(err)
				}
			}()
			workOff(t, f, client)
			m := client.Describe()
			if m.Prefix != "dev-" || m.Provision != "create" || !strings.HasPrefix(m.Broker, name) {
				t.Errorf("manifest: %+v", m)
			}
			gone := []driver.Resource{{Destination: core.Queue("dev-tickets").Keyed(8)}, {Destination: core.Queue("dev-tickets.dlq")}}
			if _, err := client.Admin().Apply(t.Context(), gone, driver.Delete); err != nil && !errors.Is(err, core.ErrNotFound) {
				t.Error(err)
			}
		})
	}
}

// workOff publishes three messages and handles them in order.
func workOff(t *testing.T, f *adapters.File, client *core.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tickets, err := f.Destination("tickets")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := client.Publish(ctx, tickets, &core.Message{Key: "table-7", Body: fmt.Append(nil, i)}); err != nil {
			t.Fatal(err)
		}
	}
	sub, layers, err := f.Subscription("kitchen")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var got []string
	err = client.Consume(ctx, sub, func(_ context.Context, d *core.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if got = append(got, string(d.Body)); len(got) == 3 {
			cancel()
		}
		return nil
	}, layers...)
	if err != nil {
		t.Error(err)
	}
	if s := strings.Join(got, " "); s != "0 1 2" {
		t.Errorf("handled %q", s)
	}
}

// TestLayers reads every field of a subscription and looks at what core makes of it.
func TestLayers(t *testing.T) {
	t.Parallel()
	f, err := adapters.Parse("varal.yaml", []byte(good+`    prefetch_bytes: 1048576
    timeout: 30s
    drain: 5s
    start: earliest
    reset: latest
    after_terminal: dead-letter-key
    block_for: 10m
    max_per_key: 7
    quarantine: 2
    stuck: {warn: 10s, cancel: 1m, abandon: 10s}
    breaker: {failures: 20, open_for: 3s}
    retry_budget: {per_second: 50, percent: 10}
    prefer: [dedup]
  radio:
    from: pizzas
    group: radio
    ack_first: true
    concurrency: 2
  reader:
    from: diary
    retry: {base: 10ms, attempts: 3, max_elapsed: 1h, jitter: none}
    on_exhausted: discard
`))
	if err != nil {
		t.Fatal(err)
	}
	client, err := f.Open(t.Context(), adapters.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close(context.WithoutCancel(t.Context())) }()
	got := map[string]core.SubscriptionManifest{}
	for _, name := range f.Subscriptions() {
		sub, layers, err := f.Subscription(name)
		if err != nil {
			t.Fatal(err)
		}
		if got[name], err = client.DescribeSubscription(sub, layers...); err != nil {
			t.Fatal(err)
		}
		if name == "kitchen" && (sub.Start.Kind != core.Earliest || sub.Reset != core.Latest) {
			t.Errorf("start %v, reset %v", sub.Start.Kind, sub.Reset)
		}
	}
	k := got["kitchen"]
	if k.Order != "by key" || k.Concurrency != 16 || k.MaxInFlight != 256 || k.MaxInFlightBytes != 1<<20 || k.Timeout != 30*time.Second ||
		k.DrainTimeout != 5*time.Second || k.DeadLetter != "queue tickets.dlq" || k.Retry.Attempts != 5 || k.Retry.Base != time.Second ||
		k.Retry.Cap != time.Minute || len(k.Missing) != 1 || len(k.Require) != 1 || k.Partitions != 8 {
		t.Errorf("kitchen: %+v", k)
	}
	if k.AfterTerminal != "dead-letter key" || k.Stuck != (core.StuckPolicy{Warn: 10 * time.Second, Cancel: time.Minute, Abandon: 10 * time.Second}) {
		t.Errorf("kitchen: %s, %+v", k.AfterTerminal, k.Stuck)
	}
	if k.Breaker == nil || *k.Breaker != (core.BreakerPolicy{Failures: 20, OpenFor: 3 * time.Second}) {
		t.Errorf("kitchen: %+v", k.Breaker)
	}
	if k.RetryBudget == nil || *k.RetryBudget != (core.RetryBudgetPolicy{PerSecond: 50, Percent: 10}) {
		t.Errorf("kitchen: %+v", k.RetryBudget)
	}
	if r := got["radio"]; !r.AckFirst || r.Concurrency != 2 || r.Group != "radio" {
		t.Errorf("radio: %+v", r)
	}
	if r := got["reader"]; r.From != "shift-diary" || r.Exhausted != "discard" || r.Retry.MaxElapsed != time.Hour || r.Retry.Jitter != core.NoJitter {
		t.Errorf("reader: %+v", r)
	}
}

// TestFileAndCodeDisagree: a setting of the file and the same one in code is refused.
func TestFileAndCodeDisagree(t *testing.T) {
	t.Parallel()
	f, err := adapters.Parse("varal.yaml", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	client, err := f.Open(t.Context(), adapters.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close(context.WithoutCancel(t.Context())) }()
	sub, layers, err := f.Subscription("kitchen")
	if err != nil {
		t.Fatal(err)
	}
	layers = append(layers, core.Layer{Name: "Prefetch", Edit: func(*core.Policy) error { return nil }})
	if _, err := client.DescribeSubscription(sub, layers...); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("want a refusal, got %v", err)
	}
}

// TestSecrets plants a password in every place it may stand, and looks for it in all
// that is printed.
func TestSecrets(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte(canary+"\n"), 0o604); err != nil {
		t.Fatal(err)
	}
	t.Setenv("VARAL_TEST_PASSWORD", canary)
	nobody := closedPort(t)
	path := write(t, `broker: env
brokers:
  env: {url: "kafka://`+nobody+`", user: u, password: "${env:VARAL_TEST_PASSWORD}"}
  file: {url: "kafka://`+nobody+`", user: u, password: "${file:`+secret+`}"}
  inside: {url: "amqp://u:${env:VARAL_TEST_PASSWORD}@`+nobody+`/"}
  literal: {url: "amqp://`+nobody+`/", user: u, password: "`+canary+`"}
`)
	l, log := logged()
	slog.SetDefault(l) // whatever logs without being asked must be seen here
	var printed strings.Builder
	for _, b := range []string{"env", "file", "inside", "literal"} {
		c := adapters.Config{File: path, Broker: b, Options: core.Options{Logger: l}}
		printed.WriteString(open(t, c) + "\n")
	}
	f, err := adapters.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	printed.WriteString(strings.Join(f.Warnings(), "\n"))
	c := adapters.Config{URL: "amqp://u:" + canary + "@h/", File: path}
	_, _ = fmt.Fprintf(&printed, "%v %+v %#v %s %+v", c, c, c, c, &c)
	if err := json.NewEncoder(&printed).Encode(c); err != nil {
		t.Fatal(err)
	}
	l.Info("config", "c", c)
	s := adapters.NewSecret(canary)
	_, _ = fmt.Fprintf(&printed, "%v %+v %#v %s %q %x %d %v", s, s, s, s, s, s, s, struct{ S adapters.Secret }{s})
	if err := json.NewEncoder(&printed).Encode(map[string]any{"s": s, "p": &s}); err != nil {
		t.Fatal(err)
	}
	l.Info("secret", "s", s)
	all := printed.String() + log.String()
	if strings.Contains(all, canary) || strings.Contains(all, fmt.Sprintf("%x", canary)) {
		t.Errorf("a secret was printed:\n%s", all)
	}
	if s.Reveal() != canary {
		t.Error("Reveal does not reveal")
	}
	if !strings.Contains(strings.Join(f.Warnings(), "\n"), "password is written in the file") {
		t.Errorf("no warning about the literal password: %v", f.Warnings())
	}
}

// TestWarnings: a secret everybody can read is used, and said.
func TestWarnings(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "prefix")
	if err := os.WriteFile(secret, []byte("dev-\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	l, log := logged()
	client, err := adapters.Open(t.Context(), adapters.Config{
		File:    write(t, "brokers: {memory: {url: \"memory:\"}}\nprefix: \"${file:"+secret+"}\"\n"),
		Options: core.Options{Logger: l},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close(context.WithoutCancel(t.Context())) }()
	if !strings.Contains(log.String(), "can be read by everyone") {
		t.Errorf("no warning: %s", log)
	}
	if p := client.Describe().Prefix; p != "dev-" {
		t.Errorf("prefix %q", p)
	}
}

// TestOpenDriver: one named memory broker, seen by two drivers.
func TestOpenDriver(t *testing.T) {
	t.Parallel()
	var events []core.Event
	d, err := adapters.OpenDriver(t.Context(), adapters.Config{URL: "memory:" + t.Name(), Notify: func(e core.Event) { events = append(events, e) }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close(context.WithoutCancel(t.Context())) }()
	q := core.Queue("q")
	if _, err := d.Admin().Apply(t.Context(), []driver.Resource{{Destination: q}}, driver.Create); err != nil {
		t.Fatal(err)
	}
	client, err := adapters.Open(t.Context(), adapters.Config{URL: "memory:" + t.Name(), Provision: core.ProvisionVerify})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close(context.WithoutCancel(t.Context())) }()
	if err := client.Publish(t.Context(), q, &core.Message{}); err != nil {
		t.Error(err)
	}
	if len(events) == 0 || events[0].Kind != driver.Connected {
		t.Errorf("events: %v", events)
	}
	if h := client.Health(); !h.Ready {
		t.Errorf("health: %+v", h)
	}
}
