package sessions_test

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/cmd/varal/internal/sessions"
	"github.com/varal-go/varal/core"
)

var openFor = flag.Duration("open", 5*time.Second, "length of a round of the open loop")

// brokers that need nothing else: `varal bench sessions --url` measures the rest.
var brokers = map[string]func(testing.TB) string{
	"memory": func(testing.TB) string { return "memory:" },
	"kfake": func(t testing.TB) string {
		c, err := kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return "kafka://" + c.ListenAddrs()[0]
	},
}

func names() []string { return []string{"memory", "kfake"} }

// measure runs o once an iteration and reports the medians.
func measure(b *testing.B, o sessions.Options) {
	b.Helper()
	var all []*sessions.Report
	for b.Loop() {
		r, err := sessions.Run(b.Context(), o)
		if err != nil {
			b.Fatal(err)
		}
		if !r.Clean() || r.Duplicates > 0 {
			b.Errorf("%+v", r)
		}
		all = append(all, r)
	}
	mid := func(unit string, of func(*sessions.Report) float64) {
		var v []float64
		for _, r := range all {
			v = append(v, of(r))
		}
		slices.Sort(v)
		b.ReportMetric(v[len(v)/2], unit)
	}
	b.ReportMetric(0, "ns/op") // an iteration is no message
	mid("msg/s", func(r *sessions.Report) float64 { return r.Rate })
	mid("p50-ms", func(r *sessions.Report) float64 { return r.P50 })
	mid("p99-ms", func(r *sessions.Report) float64 { return r.P99 })
	mid("p999-ms", func(r *sessions.Report) float64 { return r.P999 })
	mid("max-ms", func(r *sessions.Report) float64 { return r.Max })
	if o.Peer {
		mid("peer-msg/s", func(r *sessions.Report) float64 { return r.Peer.Rate })
		mid("rate-ratio", func(r *sessions.Report) float64 { return r.Ratio })
		mid("p50-ratio", func(r *sessions.Report) float64 { return r.P50Ratio })
	} else if o.OpenLoop {
		mid("share", func(r *sessions.Report) float64 { return r.Share })
	}
}

// BenchmarkClosed is seed A, an iteration one pair of rounds: 50,000 messages of 10
// sessions, of which a tenth of the attempts fail. Run it with -benchtime 5x.
func BenchmarkClosed(b *testing.B) {
	for _, broker := range names() {
		for _, c := range []struct {
			jitter  core.Jitter
			backoff time.Duration
		}{
			{core.HalfJitter, 5 * time.Millisecond},
			{core.HalfJitter, 4 * time.Millisecond},
			{core.HalfJitter, time.Millisecond},
			{core.FullJitter, 5 * time.Millisecond},
			{core.FullJitter, 4 * time.Millisecond},
			{core.NoJitter, 0},
		} {
			b.Run(fmt.Sprintf("%s/jitter=%s/b=%v", broker, [...]string{"full", "half", "none"}[c.jitter], c.backoff), func(b *testing.B) {
				o := closed(b, broker, 10, 50_000)
				o.Jitter, o.Backoff = c.jitter, c.backoff
				measure(b, o)
			})
		}
	}
}

// BenchmarkMany is the same law with 1,000 sessions.
func BenchmarkMany(b *testing.B) {
	for _, broker := range names() {
		b.Run(broker, func(b *testing.B) { measure(b, closed(b, broker, 1000, 500_000)) })
	}
}

func closed(tb testing.TB, broker string, keys, messages int) sessions.Options {
	return sessions.Options{
		Broker: adapters.Config{URL: brokers[broker](tb)}, Sessions: keys, Messages: messages, Mailbox: 16, Transient: 0.1,
		Backoff: 5 * time.Millisecond, Jitter: core.HalfJitter, Payload: 100, Partitions: 12, Rounds: 1, Peer: true, Seed: 1, Patience: 15 * time.Second,
	}
}

// BenchmarkOpen is seed B: 50,000 messages a second of 1,000 sessions for -open (in full:
// -benchtime 1x -args -open 60s).
func BenchmarkOpen(b *testing.B) {
	for _, broker := range names() {
		b.Run(broker, func(b *testing.B) {
			measure(b, sessions.Options{
				Broker: adapters.Config{URL: brokers[broker](b)}, Sessions: 1000, OpenLoop: true, Rate: 50_000, Duration: *openFor,
				Payload: 100, Partitions: 12, Rounds: 1, Seed: 1, Patience: 15 * time.Second, Jitter: core.HalfJitter,
			})
		})
	}
}
