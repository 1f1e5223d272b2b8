package cli_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/varaltest"
)

// TestOnSQS runs each command that asks a broker on SQS, or an emulator of it.
func TestOnSQS(t *testing.T) {
	t.Parallel()
	endpoint := os.Getenv("VARAL_SQS_URL")
	if endpoint == "" {
		if strings.Contains(os.Getenv("VARAL_REQUIRE"), "sqs") {
			t.Fatal("VARAL_REQUIRE names sqs and VARAL_SQS_URL is not set")
		}
		t.Skip("VARAL_SQS_URL is not set: no sqs to ask")
	}
	base := "sqs://test:test@us-east-1?wait=1s&endpoint=" + endpoint
	url := base + "&prefix=cli-" + strings.ToLower(rand.Text()[:8]) + "-"
	t.Cleanup(func() { deleteOnSQS(t, url) })
	for _, c := range []struct {
		args []string
		code int
		want string // of the output, or where it fails of the error
	}{
		{[]string{"describe", "queue:tickets", "--partitions", "4"}, 0, "ordered        native"},
		{[]string{"describe", "stream:diary"}, 0, "refused: this broker has no stream"},
		{[]string{"publish", "queue:tickets", "--partitions", "4", "--key", "table-7", "--body", "margherita"}, 2, "queue tickets does not exist"},
		{[]string{"topology", "apply", "queue:plain", "topic:pizzas"}, 0, "2 changed, 0 open"},
		{[]string{"topology", "verify", "queue:plain", "topic:pizzas"}, 0, "0 changed, 0 open"},
		{[]string{"publish", "queue:plain", "--body", "marinara"}, 0, "\n"},
		{[]string{"consume", "queue:plain", "--max", "1", "--idle", "10s"}, 0, "marinara"},
		{[]string{"publish", "--create", "queue:tickets", "--partitions", "4", "--key", "table-7", "--body", "margherita"}, 0, "\n"},
		{[]string{"consume", "queue:tickets", "--partitions", "4", "--max", "1", "--idle", "10s"}, 0, "margherita"},
		{[]string{"consume", "--create", "topic:pizzas", "--group", "billing", "--idle", "3s"}, 0, ""},
		{[]string{"publish", "topic:pizzas", "--body", "diavola"}, 0, "\n"},
		{[]string{"consume", "topic:pizzas", "--group", "billing", "--max", "1", "--idle", "10s"}, 0, "diavola"},
		{[]string{"publish", "--create", "stream:diary", "--body", "opened"}, 2, "SQS and SNS have no stream"},
		{[]string{"consume", "--create", "stream:diary", "--idle", "1s"}, 2, "SQS and SNS have no stream"},
	} {
		code, out, errs := run(t, "", append(c.args, "--url", url)...)
		if code != c.code || !strings.Contains(out+errs, c.want) {
			t.Errorf("%q: %d, %q, %q", c.args, code, out, errs)
		}
	}
	demoOnSQS(t, base)
	benchOnSQS(t, url)
	sessionsOnSQS(t, url)
}

// benchOnSQS: a size for an emulator that does some hundred messages a second.
func benchOnSQS(t *testing.T, url string) {
	t.Helper()
	var v map[string]any
	code, out, errs := run(t, "", "bench", "sessions", "--messages", "300", "--sessions", "20", "--json", "--url", url)
	if code != 0 || json.Unmarshal([]byte(out), &v) != nil || v["messages"] != 300.0 || v["violations"] != 0.0 || v["lost"] != 0.0 {
		t.Errorf("bench sessions: %d, %q, %q", code, out, errs)
	}
}

// sessionsOnSQS: a halted key of a message group is shown and freed as any other.
func sessionsOnSQS(t *testing.T, url string) {
	t.Helper()
	client, err := adapters.Open(t.Context(), adapters.Config{URL: url, Provision: core.ProvisionCreate})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := client.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	from := core.Queue("halting").Keyed(4)
	// Before the start: what is published behind a message that is out stays in the queue.
	publishHalted(t, client, from)
	control, cured := haltedOn(t, client, from)
	code, out, errs := varal(t, "sessions", "--control", control)
	if code != 0 || !strings.Contains(out, "table-7") || !strings.Contains(out, "halted") {
		t.Errorf("sessions: %d, %q, %q", code, out, errs)
	}
	cured.Store(true)
	if code, _, errs := varal(t, "sessions", "replay", "table-7", "--control", control); code != 0 {
		t.Errorf("replay: %d, %s", code, errs)
	}
	s, _ := client.Consumer("kitchen")
	varaltest.Eventually(t, func() bool {
		return s.Status().InFlight == 0 && s.Status().Totals.DeadLettered == 0 && len(s.Keys(0)) == 0
	})
}

// TestDescribeWithoutStream: a shape that is not there is refused once, by name. Describing
// SQS asks no server.
func TestDescribeWithoutStream(t *testing.T) {
	t.Parallel()
	const url = "sqs://key:" + canary + "@us-east-1"
	code, out, errs := run(t, "", "describe", "--url", url, "stream:diary", "queue:tickets")
	diary, tickets, both := strings.Cut(out, "queue tickets")
	if code != 0 || errs != "" || !both || !strings.HasSuffix(diary, "\nstream diary\n  refused: this broker has no stream\n\n") {
		t.Errorf("%d, %q, %q", code, out, errs)
	}
	if strings.Contains(tickets, "this broker has no") || !strings.Contains(tickets, "settle each") {
		t.Errorf("a queue there is: %q", tickets)
	}
	var v struct {
		Destinations []struct{ Destination, Refused string }
	}
	_, out, _ = run(t, "", "describe", "--url", url, "--json")
	err := json.Unmarshal([]byte(out), &v)
	if err != nil || len(v.Destinations) != 4 || v.Destinations[0].Refused != "" || v.Destinations[3].Refused != "this broker has no stream" {
		t.Errorf("%v, %q", err, out)
	}
}

// demoOnSQS: an evening without a diary loses nothing, and says what it does without.
func demoOnSQS(t *testing.T, url string) {
	t.Helper()
	code, out, errs := run(t, "", "demo", "--messages", "300", "--json", "--url", url)
	var r struct {
		Lost       int              `json:"lost"`
		OutOfOrder int              `json:"out_of_order"`
		Published  int              `json:"published"`
		Notes      []string         `json:"notes"`
		Shapes     []map[string]any `json:"shapes"`
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil || code != 0 {
		t.Fatalf("demo: %d, %v, %q, %q", code, err, out, errs)
	}
	if r.Published != 300 || r.Lost != 0 || r.OutOfOrder != 0 || len(r.Shapes) != 4 || r.Shapes[0]["out_of_order"] != 0.0 {
		t.Errorf("demo: %+v", r)
	}
	if !strings.Contains(strings.Join(r.Notes, "\n"), "refuses a stream (replay)") {
		t.Errorf("the demo does not say that there is no stream: %q", r.Notes)
	}
}

// deleteOnSQS deletes what the test has left.
func deleteOnSQS(t *testing.T, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	client, err := adapters.Open(ctx, adapters.Config{URL: url})
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = client.Close(ctx) }()
	for _, d := range []core.Destination{core.Queue("tickets").Keyed(4), core.Queue("halting").Keyed(4), core.Queue("plain"), core.Topic("pizzas")} {
		_, err := client.Admin().Apply(ctx, []driver.Resource{{Destination: d}}, driver.Delete)
		if err != nil && !errors.Is(err, core.ErrNotFound) {
			t.Error(err)
		}
	}
}
