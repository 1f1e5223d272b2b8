// Package soak sends millions of numbered messages through a group whose members are
// killed, leave and come, and whose handler fails, and judges every single attempt.
package soak

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/varal-go/varal/cmd/varal/internal/ticket"
	"github.com/varal-go/varal/core/driver"
)

// Options of a run. Validate names the field that is wrong by its flag.
type Options struct {
	// URL of the broker. "memory:" has its members in this process, any other as processes
	// of their own.
	URL string
	// Messages in all, and those of a segment: each segment has a queue of its own, and what
	// has been judged is kept when it ends.
	Messages, Segment int
	// Sessions is the number of keys.
	Sessions int
	// Partitions of the queue.
	Partitions int
	// Members of the group at any time.
	Members int
	// Workers of a member: handlers at once.
	Workers int
	// Ahead is the most messages that are published and have not ended.
	Ahead int
	// Trouble is the mean time between two things that happen to a member.
	Trouble time.Duration
	// Kills is the share of those that are kills; the others leave in good order.
	Kills float64
	// Transient is the probability that an attempt fails, one in fifty of them by a panic.
	Transient float64
	// Dead is the probability that a message fails for good.
	Dead float64
	// Service is how long an attempt takes. 0 = no time.
	Service time.Duration
	// Payload is the size of a body in bytes.
	Payload int
	// Seed decides what fails, and what happens when.
	Seed uint64
	// Patience is how long nothing may end before what is missing counts as lost.
	Patience time.Duration
	// State is the file in which the judged segments are kept, "" = none. A run that finds
	// its own goes on behind them.
	State string
	// Watch is called a few times a second. nil = nobody.
	Watch func(Progress)
	// Program starts a member as a process; nil = this program.
	Program []string
	// InProcess has the members of any broker in this process, for tests.
	InProcess bool
	// Wrap is put around the drivers of this process, for planted bugs. nil = nothing is.
	Wrap func(driver.Driver) driver.Driver
}

// Validate names the first option that is out of range by its flag.
func (o *Options) Validate() error {
	for _, f := range []struct {
		flag           string
		v, least, most int
	}{
		{"messages", o.Messages, 1, 1 << 40},
		{"segment", o.Segment, 1, 1 << 31},
		{"sessions", o.Sessions, 1, 1 << 24},
		{"partitions", o.Partitions, 1, 1000},
		{"members", o.Members, 1, 64},
		{"workers", o.Workers, 1, 1024},
		{"ahead", o.Ahead, 1, 1 << 24},
		{"payload", o.Payload, ticket.MinSize, 1 << 20},
	} {
		if f.v < f.least || f.v > f.most {
			return fmt.Errorf("--%s %d is out of range: %d to %d", f.flag, f.v, f.least, f.most)
		}
	}
	for flag, p := range map[string]float64{"transient": o.Transient, "dead": o.Dead, "kills": o.Kills} {
		if !(p >= 0 && p <= 1) || flag == "transient" && p > 0.9 { // NaN is in no range
			return fmt.Errorf("--%s %v is out of range: a probability, of failures at most 0.9", flag, p)
		}
	}
	if o.Service < 0 || o.Service > time.Minute {
		return fmt.Errorf("--service %v is out of range: 0 to 1m", o.Service)
	}
	if o.Trouble < 0 || o.Patience < time.Second {
		return errors.New("--trouble is 0 (none) or more, --patience at least 1s")
	}
	return nil
}

// Progress of a run.
type Progress struct {
	Done, Of   int64
	Rate       float64       // messages a second, lately
	Left       time.Duration // as it goes on; 0 = not known
	Violations int64
	Lost       int64
	Kills      int64
}

// Totals are what the judged segments add up to.
type Totals struct {
	Messages   int64 `json:"messages"`
	Violations int64 `json:"violations"`
	Lost       int64 `json:"lost"`
	// Duplicates are messages that were worked off again, lawfully: a kill, or a loss of
	// ownership, came before their settlement was known.
	Duplicates int64 `json:"duplicates"`
	Attempts   int64 `json:"attempts"`
	// Faults are attempts that failed.
	Faults int64 `json:"faults"`
	// Dead letters owed and found; Missing were owed and not found.
	DeadLetters int64 `json:"dead_letters"`
	Missing     int64 `json:"dead_letters_missing"`
	// Overlaps are attempts beside one of a member that was dead or had lost its session.
	Overlaps int64    `json:"overlaps"`
	Kills    int64    `json:"kills"`
	Leaves   int64    `json:"leaves"`
	Losses   int64    `json:"ownership_losses"`
	Seconds  float64  `json:"seconds"`
	Segments int      `json:"segments"`
	Notes    []string `json:"notes,omitempty"`
}

// Law is what a run was made under. A state file holds for its own law only.
type Law struct {
	Broker     string  `json:"broker"`
	Asked      int     `json:"messages_asked"`
	Segment    int     `json:"segment"`
	Sessions   int     `json:"sessions"`
	Partitions int     `json:"partitions"`
	Members    int     `json:"members"`
	Workers    int     `json:"workers"`
	Transient  float64 `json:"transient"`
	Dead       float64 `json:"dead"`
	TroubleMS  float64 `json:"trouble_ms"`
	KillShare  float64 `json:"kill_share"`
	ServiceMS  float64 `json:"service_ms"`
	Payload    int     `json:"payload"`
	Seed       uint64  `json:"seed"`
}

// Report of a run.
type Report struct {
	Rate float64 `json:"rate"`
	Totals
	Law
}

// Clean tells that nothing was lost, and nothing out of order.
func (r *Report) Clean() bool { return r.Violations == 0 && r.Lost == 0 && r.Missing == 0 }

func (o *Options) law() Law {
	broker, _, _ := strings.Cut(o.URL, ":")
	return Law{
		broker, o.Messages, o.Segment, o.Sessions, o.Partitions, o.Members, o.Workers,
		o.Transient, o.Dead, float64(o.Trouble) / float64(time.Millisecond), o.Kills,
		float64(o.Service) / float64(time.Millisecond), o.Payload, o.Seed,
	}
}

// Run runs all segments that the state file does not have yet. Its error says why the run
// ended early: ctx, a broker that does not answer; what was found is in the Report.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	kept, err := load(o.State, o.law())
	if err != nil {
		return nil, err
	}
	if strings.TrimSuffix(o.URL, ":") == "memory" { // one broker for all members
		o.URL, o.InProcess = "memory:soak-"+strings.ToLower(rand.Text()[:8])+"?lease=1s", true
	}
	o.InProcess = o.InProcess || strings.HasPrefix(o.URL, "memory:")
	if !o.InProcess && o.Program == nil {
		if o.Program, err = self(); err != nil {
			return nil, err
		}
	}
	total := kept
	for total.Messages < int64(o.Messages) {
		s := newSegment(&o, total)
		got, err := s.run(ctx)
		if err != nil {
			return report(total, o.law()), err
		}
		total.add(got)
		if err := save(o.State, o.law(), total); err != nil {
			return report(total, o.law()), err
		}
		if got.Lost > 0 {
			break // what follows would wait for as long, and tell nothing new
		}
	}
	return report(total, o.law()), nil
}

func report(t Totals, l Law) *Report {
	r := &Report{Totals: t, Law: l}
	if t.Seconds > 0 {
		r.Rate = float64(t.Messages) / t.Seconds
	}
	return r
}

func (t *Totals) add(s Totals) {
	t.Messages += s.Messages
	t.Violations += s.Violations
	t.Lost += s.Lost
	t.Duplicates += s.Duplicates
	t.Attempts += s.Attempts
	t.Faults += s.Faults
	t.DeadLetters += s.DeadLetters
	t.Missing += s.Missing
	t.Overlaps += s.Overlaps
	t.Kills += s.Kills
	t.Leaves += s.Leaves
	t.Losses += s.Losses
	t.Seconds += s.Seconds
	t.Segments++
	t.Notes = append(t.Notes, s.Notes...)
	t.Notes = t.Notes[:min(len(t.Notes), maxNotes)]
}
