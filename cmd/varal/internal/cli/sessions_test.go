package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varal-go/varal/cmd/varal/internal/cli"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/middleware"
	"github.com/varal-go/varal/middleware/control"
	"github.com/varal-go/varal/test/varaltest"
)

// haltedService runs a subscription with a halted key "table-7" that three messages are
// behind, and serves its control handler. cured lets the head succeed.
func haltedService(t *testing.T) (url string, c *core.Client, cured *atomic.Bool) {
	t.Helper()
	h := varaltest.New(t)
	from := core.Queue("tickets").Keyed(4)
	publishHalted(t, h.Client, from)
	url, cured = haltedOn(t, h.Client, from)
	return url, h.Client, cured
}

func publishHalted(t *testing.T, c *core.Client, to core.Destination) {
	t.Helper()
	for _, body := range []string{"0", "1", "2", "3"} {
		if err := c.Publish(t.Context(), to, &core.Message{Key: "table-7", Body: []byte(body)}); err != nil {
			t.Fatal(err)
		}
	}
}

// haltedOn consumes what publishHalted has published, until its key halts.
func haltedOn(t *testing.T, c *core.Client, from core.Destination) (url string, cured *atomic.Bool) {
	t.Helper()
	cured = new(atomic.Bool)
	_, err := c.Start(t.Context(), core.Subscription{From: from, Name: "kitchen"}, func(_ context.Context, d *core.Delivery) error {
		if d.Key == "table-7" && string(d.Body) == "0" && !cured.Load() {
			return core.Permanent(errors.New("no such\x1b[31m pizza"))
		}
		return nil
	}, middleware.SessionOrder(4), middleware.HaltKey(), middleware.DeadLetter(core.Queue("dead")))
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(control.Handler(c))
	t.Cleanup(srv.Close)
	s, _ := c.Consumer("kitchen")
	varaltest.Eventually(t, func() bool { k := s.Keys(0); return len(k) == 1 && k[0].State == "halted" && k[0].Waiting == 3 })
	return srv.URL, cured
}

func varal(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	code = cli.Run(ctx, args, strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

func TestSessionsShowsAndFreesAHaltedKey(t *testing.T) {
	t.Parallel()
	url, c, cured := haltedService(t)
	code, out, errs := varal(t, "sessions", "--control", url)
	if code != cli.OK || !strings.Contains(out, "table-7") || !strings.Contains(out, "halted") || !strings.Contains(out, "no such") || strings.Contains(out, "\x1b") {
		t.Errorf("%d %q %q", code, out, errs)
	}
	code, out, _ = varal(t, "sessions", "--control", url, "--json", "--subscription", "kitchen")
	var list []control.SubscriptionKeys
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != cli.OK || len(list) != 1 || list[0].Keys[0].Waiting != 3 || list[0].Total != 1 {
		t.Errorf("%d %v %s", code, err, out)
	}
	s, _ := c.Consumer("kitchen")
	if code, _, errs := varal(t, "sessions", "resume", "table-7", "--control", url); code != cli.OK {
		t.Errorf("resume: %d %s", code, errs)
	}
	varaltest.Eventually(t, func() bool {
		return s.Status().Totals.Failed == 2 && len(s.Keys(0)) == 1 && s.Keys(0)[0].State == "halted"
	})
	cured.Store(true)
	if code, _, errs := varal(t, "sessions", "replay", "table-7", "--control", url, "--subscription", "kitchen"); code != cli.OK {
		t.Errorf("replay: %d %s", code, errs)
	}
	varaltest.Eventually(t, func() bool { return s.Status().InFlight == 0 && s.Status().Totals.Handled == 6 })
}

func TestSessionsSkip(t *testing.T) {
	t.Parallel()
	url, c, _ := haltedService(t)
	s, _ := c.Consumer("kitchen")
	if code, _, errs := varal(t, "sessions", "skip", "table-7", "--control", url); code != cli.OK {
		t.Errorf("skip: %d %s", code, errs)
	}
	varaltest.Eventually(t, func() bool {
		st := s.Status()
		return st.InFlight == 0 && st.Totals.DeadLettered == 1 && st.Totals.KeysSkipped == 1
	})
}

func TestSessionsRefusals(t *testing.T) {
	t.Parallel()
	url, _, _ := haltedService(t)
	for _, tc := range []struct {
		code int
		says string
		args []string
	}{
		{cli.Failed, "not halted", []string{"skip", "table-8", "--control", url}},
		{cli.Failed, "no such subscription", []string{"--subscription", "nobody", "--control", url}},
		{cli.Failed, "no such subscription", []string{"skip", "table-7", "--subscription", "nobody", "--control", url}},
		{cli.Usage, "needs one KEY", []string{"skip", "--control", url}},
		{cli.Usage, "--limit", []string{"--limit", "0", "--control", url}},
		{cli.Usage, "--every", []string{"--watch", "--every", "1ms", "--control", url}},
		{cli.Usage, "--control", []string{"--control", "localhost"}},
		{cli.Unreachable, "no control handler", []string{"--control", "http://127.0.0.1:1"}},
		{cli.Usage, "loopback", nil},
	} {
		args := append([]string{"sessions"}, tc.args...)
		if tc.args == nil {
			args = []string{"consume", "--url", "memory:", "--create", "queue:any", "--idle", "1s", "--control", "0.0.0.0:0"}
		}
		if code, _, errs := varal(t, args...); code != tc.code || !strings.Contains(errs, tc.says) {
			t.Errorf("%v: %d %q, want %d and %q", args, code, errs, tc.code, tc.says)
		}
	}
}
