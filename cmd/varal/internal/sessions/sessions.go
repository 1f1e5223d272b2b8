// Package sessions measures order per key: it hands numbered messages of many sessions
// to a subscription whose handler fails at times, checks every single one, and tells rate
// and latency.
package sessions

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/cmd/varal/internal/ticket"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// Options of a run. Validate names the field that is wrong by its flag.
type Options struct {
	// Broker to run on. Names are the run's own, and deleted at its end.
	Broker adapters.Config
	// Sessions is the number of keys. Each gets the same number of messages.
	Sessions int
	// Messages of one round, warm-up not counted. Not with OpenLoop.
	Messages int
	// Mailbox is how many messages of one session are handed over and not finished at
	// the most. Not with OpenLoop.
	Mailbox int
	// OpenLoop hands Rate messages a second over for Duration, whatever becomes of them.
	OpenLoop bool
	// Rate in messages a second, with OpenLoop.
	Rate int
	// Duration of a round, with OpenLoop.
	Duration time.Duration
	// Transient is the probability that an attempt fails.
	Transient float64
	// Backoff before the second attempt; it doubles, up to a minute.
	Backoff time.Duration
	// Jitter of the back-off.
	Jitter core.Jitter
	// Service is how long an attempt takes. 0 = no time.
	Service time.Duration
	// Payload is the size of a body in bytes, at least ticket.MinSize.
	Payload int
	// Partitions of the queue.
	Partitions int
	// Workers is the most handlers at once. 0 = one for each session, at most 1024.
	Workers int
	// Prefetch is the most messages in flight. 0 = twice what the mailboxes hold, since
	// what has ended and is not settled yet counts too; with OpenLoop 16384.
	Prefetch int
	// Rounds to run; figures are medians. At least 1.
	Rounds int
	// Peer alternates with rounds of the published system's own shape, in memory.
	Peer bool
	// Seed decides which attempts fail.
	Seed uint64
	// Patience is how long nothing may end before what is missing counts as lost.
	Patience time.Duration
	// Watch is called a few times a second. nil = nobody.
	Watch func(Progress)
	// Wrap is put around the driver, for planted bugs. nil = nothing is.
	Wrap func(driver.Driver) driver.Driver
}

// Progress of a round.
type Progress struct {
	Round, Rounds int
	Side          string // "varal" or "peer"
	Phase         string // "warm-up" or "measuring"
	Done, Of      int64
	Violations    int64
}

// Figures of one side.
type Figures struct {
	// Rate in messages a second, from the first hand-over to the last end.
	Rate float64 `json:"rate"`
	// Violations of the order: messages that a later one of their session overtook,
	// attempts of a session at the same time, unlawful repetitions, strangers.
	Violations int64 `json:"violations"`
	// Lost messages were confirmed and never came to an end.
	Lost int64 `json:"lost"`
	// Duplicates were worked off again. They are violations too, unless a partition had
	// changed hands before.
	Duplicates int64 `json:"duplicates"`
	// The percentiles of the latency in milliseconds, from hand-over (OpenLoop: from
	// when it was due) to the end of the attempt that succeeded.
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	P999 float64 `json:"p999_ms"`
	Max  float64 `json:"max_ms"`
}

// Report of a run, with everything a figure means nothing without.
type Report struct {
	Figures
	Mode       string   `json:"mode"` // "closed" or "open"
	Broker     string   `json:"broker"`
	Messages   int64    `json:"messages"` // of one round
	Sessions   int      `json:"sessions"`
	ServiceMS  float64  `json:"service_ms"`
	Transient  float64  `json:"transient"`
	BackoffMS  float64  `json:"backoff_ms"`
	Jitter     string   `json:"jitter"`
	Mailbox    int      `json:"mailbox"` // 0 = no bound (open loop)
	KeyLaw     string   `json:"key_law"`
	Partitions int      `json:"partitions"`
	Payload    int      `json:"payload"`
	Workers    int      `json:"workers"`
	Prefetch   int      `json:"prefetch"`
	Cores      int      `json:"cores"`
	Ceiling    float64  `json:"ceiling"`        // messages a second; 0 = none
	Target     int      `json:"rate_asked"`     // open loop; else 0
	Share      float64  `json:"rate_share"`     // of it; else 0
	Rounds     int      `json:"rounds"`         // of each side
	Seed       uint64   `json:"seed"`           //
	Checked    int64    `json:"checked"`        // attempts that the order was checked of, in all rounds
	Peer       *Figures `json:"peer,omitempty"` //
	Ratio      float64  `json:"ratio,omitempty"`
	P50Ratio   float64  `json:"p50_ratio,omitempty"`
	Notes      []string `json:"notes,omitempty"`
	All        []Sample `json:"samples,omitempty"`
}

// Sample is one round of one side.
type Sample struct {
	Side string `json:"side"`
	Figures
	checked int64
	notes   []string
}

// Clean reports whether every message came to its end once and in order, on our side.
func (r *Report) Clean() bool { return r.Violations == 0 && r.Lost == 0 }

// Run measures. The error is about the run itself; broken order is in the Report.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.setDefaults()
	var samples []Sample
	for i := range o.Rounds {
		sides := []opener{openVaral}
		if o.Peer && i%2 == 0 { // each pair in the order opposite to the last
			sides = []opener{openVaral, openPeer}
		} else if o.Peer {
			sides = []opener{openPeer, openVaral}
		}
		for _, open := range sides {
			runtime.GC() // what the other side left is not this one's to collect
			got, err := play(ctx, &o, i+1, open)
			if err != nil {
				return nil, err
			}
			samples = append(samples, got)
		}
	}
	return o.report(samples), nil
}

func (o *Options) setDefaults() {
	if o.Workers == 0 {
		o.Workers = min(o.Sessions, 1024)
	}
	if o.Prefetch == 0 && o.OpenLoop {
		o.Prefetch = 16 << 10
	} else if o.Prefetch == 0 {
		o.Prefetch = min(2*o.Sessions*o.Mailbox, maxPrefetch)
	}
	if o.OpenLoop {
		o.Mailbox = 0
	}
}

// total is the number of messages of one round.
func (o *Options) total() int64 {
	if o.OpenLoop {
		return int64(float64(o.Rate) * o.Duration.Seconds())
	}
	return int64(o.Messages)
}

const (
	maxSessions = 1_000_000
	maxPrefetch = 1 << 24    // core takes no more
	maxMessages = 20_000_000 // a round keeps some 20 bytes of each
)

// Validate refuses options out of range.
func (o *Options) Validate() error {
	type bound struct {
		flag        string
		v, from, to int
	}
	bounds := []bound{
		{"sessions", o.Sessions, 1, maxSessions},
		{"payload", o.Payload, ticket.MinSize, 1 << 20},
		{"partitions", o.Partitions, 1, 100_000},
		{"workers", o.Workers, 0, 1 << 16},
		{"prefetch", o.Prefetch, 0, maxPrefetch},
		{"rounds", o.Rounds, 1, 1000},
	}
	if o.OpenLoop {
		bounds = append(bounds, bound{"rate", o.Rate, 1, 10_000_000})
	} else {
		bounds = append(bounds, bound{"messages", o.Messages, o.Sessions, maxMessages}, bound{"mailbox", o.Mailbox, 1, 1 << 16})
	}
	for _, b := range bounds {
		if b.v < b.from || b.v > b.to {
			return fmt.Errorf("--%s %d is not within %d and %d", b.flag, b.v, b.from, b.to)
		}
	}
	return o.validateLaw()
}

func (o *Options) validateLaw() error {
	switch {
	case !(o.Transient >= 0 && o.Transient <= 0.9): // NaN too
		return fmt.Errorf("--transient %v is not within 0 and 0.9", o.Transient)
	case o.Backoff < 0 || o.Backoff > time.Minute:
		return fmt.Errorf("--backoff %v is not within 0s and 1m", o.Backoff)
	case o.Service < 0 || o.Service > time.Minute:
		return fmt.Errorf("--service %v is not within 0s and 1m", o.Service)
	case o.Patience < 100*time.Millisecond || o.Patience > time.Hour:
		return fmt.Errorf("--patience %v is not within 100ms and 1h", o.Patience)
	case o.Jitter > core.NoJitter:
		return fmt.Errorf("--jitter is neither half nor full")
	case !o.OpenLoop:
		return nil
	case o.Duration < 100*time.Millisecond || o.Duration > time.Hour:
		return fmt.Errorf("--duration %v is not within 100ms and 1h", o.Duration)
	case o.total() > maxMessages:
		return fmt.Errorf("--rate %d for --duration %v is more than %d messages", o.Rate, o.Duration, maxMessages)
	case o.Peer:
		return fmt.Errorf("--peer is compared in the closed loop: drop --open-loop or --peer")
	}
	return nil
}
