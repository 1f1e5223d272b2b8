package sessions_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/cmd/varal/internal/sessions"
	"github.com/varal-go/varal/cmd/varal/internal/ticket"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/conformance/mutant"
)

// small is a run that takes a moment.
func small() sessions.Options {
	return sessions.Options{
		Broker: adapters.Config{URL: "memory:"}, Sessions: 7, Messages: 1000, Mailbox: 16, Transient: 0.1,
		Backoff: 200 * time.Microsecond, Jitter: core.HalfJitter, Payload: 64, Partitions: 4, Rounds: 1, Seed: 1, Patience: 10 * time.Second,
	}
}

func TestClosedLoop(t *testing.T) {
	t.Parallel()
	o := small()
	o.Peer, o.Rounds = true, 2
	r, err := sessions.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Clean() || r.Duplicates != 0 || r.Peer == nil || r.Peer.Violations != 0 || r.Peer.Lost != 0 {
		t.Errorf("%+v", r)
	}
	// Each side's attempts: 1000 and the warm-up, and about a ninth more of them.
	if r.Rate <= 0 || r.Ratio <= 0 || r.P50 <= 0 || r.P50 > r.P99 || r.P99 > r.P999 || r.P999 > r.Max || r.Checked < 4*1100 {
		t.Errorf("%+v", r)
	}
	if r.Mode != "closed" || r.Prefetch != 2*7*16 || r.Workers != 7 || len(r.All) != 4 {
		t.Errorf("%+v", r)
	}
}

func TestOpenLoop(t *testing.T) {
	t.Parallel()
	o := small()
	o.OpenLoop, o.Rate, o.Duration, o.Sessions = true, 2000, 500*time.Millisecond, 13
	r, err := sessions.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Clean() || r.Duplicates != 0 || r.Messages != 1000 || r.Rate <= 0 || r.Rate > 2100 || r.Mailbox != 0 || r.Mode != "open" {
		t.Errorf("%+v", r)
	}
}

// TestPlantedBugsAreCaught: a broken driver under the whole run.
func TestPlantedBugsAreCaught(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"swap", "duplicate", "lost-message", "key-dropped"} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			o := small()
			o.Patience = 500 * time.Millisecond
			at := slices.IndexFunc(mutant.All(), func(m mutant.Mutant) bool { return m.ID == id })
			o.Wrap = mutant.All()[at].Wrap
			r, err := sessions.Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if r.Clean() || len(r.Notes) == 0 {
				t.Errorf("%+v", r)
			}
			if id == "lost-message" && r.Lost == 0 || id == "duplicate" && r.Duplicates == 0 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// failing refuses every publish after the first few.
type failing struct {
	driver.Driver
	left int
}

var errRefused = errors.New("planted")

func (f *failing) Publish(ctx context.Context, to driver.Destination, batch []*driver.Message) error {
	if f.left--; f.left < 0 {
		return driver.Errorf("publish", driver.Denied, "%w", errRefused)
	}
	return f.Driver.Publish(ctx, to, batch)
}

func TestAFailedPublishEndsTheRun(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{false, true} {
		o := small()
		o.Sessions, o.OpenLoop, o.Rate, o.Duration = 1, open, 1000, time.Second
		o.Wrap = func(d driver.Driver) driver.Driver { return &failing{d, 3} }
		if r, err := sessions.Run(t.Context(), o); !errors.Is(err, errRefused) {
			t.Errorf("open loop %v: %+v, %v", open, r, err)
		}
	}
}

func TestCancelledRun(t *testing.T) {
	t.Parallel()
	for _, peer := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		o := small()
		o.Messages, o.Backoff, o.Peer, o.Rounds = 1_000_000, time.Millisecond, peer, 2
		o.Watch = func(p sessions.Progress) {
			if p.Phase == "measuring" {
				cancel()
			}
		}
		if r, err := sessions.Run(ctx, o); !errors.Is(err, context.Canceled) {
			t.Errorf("%+v, %v", r, err)
		}
		cancel()
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*sessions.Options){
		"--sessions 0":         func(o *sessions.Options) { o.Sessions = 0 },
		"--messages 3":         func(o *sessions.Options) { o.Messages = 3 }, // fewer than sessions
		"--messages 99999999":  func(o *sessions.Options) { o.Messages = 99999999 },
		"--mailbox 0":          func(o *sessions.Options) { o.Mailbox = 0 },
		"--payload 23":         func(o *sessions.Options) { o.Payload = 23 },
		"--partitions 0":       func(o *sessions.Options) { o.Partitions = 0 },
		"--workers -1":         func(o *sessions.Options) { o.Workers = -1 },
		"--prefetch -1":        func(o *sessions.Options) { o.Prefetch = -1 },
		"--rounds 0":           func(o *sessions.Options) { o.Rounds = 0 },
		"--transient 0.95":     func(o *sessions.Options) { o.Transient = 0.95 },
		"--transient NaN":      func(o *sessions.Options) { o.Transient = math.NaN() },
		"--transient -0.1":     func(o *sessions.Options) { o.Transient = -0.1 },
		"--backoff -1ns":       func(o *sessions.Options) { o.Backoff = -1 },
		"--service 2h0m0s":     func(o *sessions.Options) { o.Service = 2 * time.Hour },
		"--patience 0s":        func(o *sessions.Options) { o.Patience = 0 },
		"--jitter":             func(o *sessions.Options) { o.Jitter = 9 },
		"--rate 0":             func(o *sessions.Options) { o.OpenLoop = true },
		"--duration 0s":        func(o *sessions.Options) { o.OpenLoop, o.Rate = true, 1 },
		"--rate 1000000 for":   func(o *sessions.Options) { o.OpenLoop, o.Rate, o.Duration = true, 1_000_000, time.Hour },
		"drop --open-loop or ": func(o *sessions.Options) { o.OpenLoop, o.Rate, o.Duration, o.Peer = true, 1, time.Second, true },
	} {
		o := small()
		change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
		if _, err := sessions.Run(t.Context(), o); err == nil {
			t.Errorf("%s: it ran", want)
		}
	}
}

func TestLaw(t *testing.T) {
	t.Parallel()
	o := small()
	o.Sessions, o.Backoff = 10, 5*time.Millisecond
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > want/1000 {
			t.Errorf("%s: ceiling %v, want %v", what, got, want)
		}
	}
	near("half jitter", o.Ceiling(), 16000)
	o.Jitter = core.FullJitter
	near("full jitter", o.Ceiling(), 32000)
	o.Jitter, o.Service = core.HalfJitter, 900*time.Microsecond
	near("with service", o.Ceiling(), 10/(0.001+0.000625))
	o.Transient = 0.5
	near("no bound", o.Ceiling()+1, 1)
	o.Transient, o.Service = 0, 0
	near("nothing takes time", o.Ceiling()+1, 1)

	o.Transient = 0.1
	again := o
	failed := 0
	for n := range uint32(100_000) {
		now := o.Fails(n%10, n, 1)
		if now {
			failed++
		}
		if now != again.Fails(n%10, n, 1) {
			t.Fatal("the same attempt fails and does not")
		}
	}
	if failed < 9_500 || failed > 10_500 {
		t.Errorf("%d of 100000 attempts failed", failed)
	}
}

func TestBodies(t *testing.T) {
	t.Parallel()
	for _, size := range []int{ticket.MinSize, 25, 100, 1 << 17} {
		if s, n, at, ok := sessions.RoundTrip(9, 1<<29, -5, size); s != 9 || n != 1<<29 || at != -5 || !ok {
			t.Errorf("size %d: %d, %d, %d, %v", size, s, n, at, ok)
		}
	}
}
