package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/cmd/varal/internal/sessions"
	"github.com/varal-go/varal/core"
)

func (s *session) bench() *cobra.Command {
	c := &cobra.Command{
		Use:     "bench",
		Short:   "Measure, and check every message while doing so",
		Long:    "bench measures varal on a broker. Every figure comes with the law that it was taken under.\n\n" + exitCodes,
		Example: "  varal bench sessions\n  varal bench sessions --url kafka://localhost:9092 --json\n  varal bench soak --messages 40000000 --state soak.json",
		Args:    known,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(s.benchSessions(), s.benchSoak(), s.soakMember())
	return c
}

const sessionsLong = `Numbered messages of many sessions go through a queue in order per session. Of each attempt,
one in ten fails at first and is tried again after a back-off, while what is behind it in its
session waits. Every attempt is checked while it happens, and all of them again at the end
from a log: no message started before the one in front of it had ended, none at the same time
as another of its session, none lost, none worked off twice.

In the closed loop (the default) each session has a feeder that is at most --mailbox messages
ahead; latency counts from the hand-over to the end of the attempt that succeeded. With
--open-loop messages are due at a fixed rate, and latency counts from when a message was due,
however late it was published. What warms up is checked too and not counted.

--peer alternates with the published system's own shape in memory (a goroutine and a channel
as deep as the mailbox for each session, retries that sleep there, a contiguous commit), with
the same feeders, bodies and failures, and prints the ratio.

Since a session's messages run one after the other, no system passes the ceiling
S / (s/(1-p) + p·b/(1-2p)): sessions S, service time s, failures p, mean first back-off b.

`

func (s *session) benchSessions() *cobra.Command {
	var o sessions.Options
	var url, jitter string
	var asJSON bool
	c := &cobra.Command{
		Use:   "sessions",
		Short: "Rate and latency of order per session, through failures",
		Long:  sessionsLong + exitCodes,
		Example: "  varal bench sessions --messages 50000 --sessions 10 --transient 0.1 --backoff 4ms --peer\n" +
			"  varal bench sessions --url kafka://localhost:9092 --open-loop --rate 50000 --duration 60s --sessions 1000 --json",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := finishSessions(&o, c.Flags(), url, jitter); err != nil {
				return err
			}
			return s.runSessions(c.Context(), o, asJSON)
		},
	}
	f := c.Flags()
	f.StringVar(&url, "url", "", "broker; default $"+adapters.EnvURL+", else memory:")
	f.IntVar(&o.Sessions, "sessions", 10, "number of sessions (keys)")
	f.IntVar(&o.Messages, "messages", 50_000, "messages of a round, closed loop")
	f.IntVar(&o.Mailbox, "mailbox", 16, "messages of a session handed over and not finished, closed loop")
	f.BoolVar(&o.OpenLoop, "open-loop", false, "hand over at --rate for --duration, whatever becomes of it")
	f.IntVar(&o.Rate, "rate", 50_000, "messages a second, with --open-loop")
	f.DurationVar(&o.Duration, "duration", time.Minute, "length of a round, with --open-loop")
	f.Float64Var(&o.Transient, "transient", 0.1, "probability that an attempt fails (--open-loop: 0)")
	f.DurationVar(&o.Backoff, "backoff", 5*time.Millisecond, "before the second attempt; doubles")
	f.StringVar(&jitter, "jitter", "half", "half: uniform in [0.5, 1.5) of the back-off; full: in [0, 1)")
	f.DurationVar(&o.Service, "service", 0, "time of an attempt")
	f.IntVar(&o.Payload, "payload", 100, "bytes of a body")
	f.IntVar(&o.Partitions, "partitions", 12, "partitions of the queue")
	f.IntVar(&o.Workers, "workers", 0, "handlers at once; 0 = one a session, at most 1024")
	f.IntVar(&o.Prefetch, "prefetch", 0, "messages in flight; 0 = twice what the mailboxes hold (--open-loop: 16384)")
	f.IntVar(&o.Rounds, "rounds", 1, "rounds to run, each a fresh queue; figures are medians (--peer: 5)")
	f.BoolVar(&o.Peer, "peer", false, "alternate with the published system's shape")
	f.Uint64Var(&o.Seed, "seed", 1, "decides which attempts fail")
	f.DurationVar(&o.Patience, "patience", 15*time.Second, "how long nothing may end before what is missing counts as lost")
	f.BoolVar(&asJSON, "json", false, "print the figures as one JSON object on the last line")
	return c
}

// finishSessions fills what depends on other flags, and refuses what contradicts them.
func finishSessions(o *sessions.Options, f *pflag.FlagSet, url, jitter string) error {
	for _, name := range []string{"rate", "duration"} {
		if f.Changed(name) && !o.OpenLoop {
			return usage("--%s belongs to --open-loop, which is not given", name)
		}
	}
	for _, name := range []string{"messages", "mailbox"} {
		if f.Changed(name) && o.OpenLoop {
			return usage("--%s belongs to the closed loop: drop it, or --open-loop", name)
		}
	}
	switch jitter {
	case "half":
		o.Jitter = core.HalfJitter
	case "full":
		o.Jitter = core.FullJitter
	default:
		return usage("there is no --jitter %.40q: there are half and full", jitter)
	}
	if o.OpenLoop && !f.Changed("transient") {
		o.Transient = 0
	}
	if o.Peer && !f.Changed("rounds") {
		o.Rounds = 5
	}
	o.Broker = adapters.Config{URL: orMemory(url)}
	if err := o.Validate(); err != nil {
		return &coded{Usage, err}
	}
	return nil
}

func (s *session) runSessions(ctx context.Context, o sessions.Options, asJSON bool) error {
	o.Watch = func(p sessions.Progress) {
		s.status("round %d/%d  %s  %s  %d/%d  violations %d", p.Round, p.Rounds, p.Side, p.Phase, p.Done, p.Of, p.Violations)
	}
	r, err := sessions.Run(ctx, o)
	s.clearStatus()
	if err != nil {
		return err
	}
	return s.report(r, r.Clean(), asJSON, func() error { return s.printSessions(r) })
}

// printSessions is the table at the end.
func (s *session) printSessions(r *sessions.Report) error {
	rows := [][]string{{"", "msg/s", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "violations", "lost", "duplicates"}}
	add := func(side string, f *sessions.Figures) {
		row := []string{side, strconv.FormatFloat(f.Rate, 'f', 0, 64)}
		for _, v := range []float64{f.P50, f.P99, f.P999, f.Max} {
			row = append(row, strconv.FormatFloat(v, 'f', 2, 64))
		}
		for _, v := range []int64{f.Violations, f.Lost, f.Duplicates} {
			row = append(row, strconv.FormatInt(v, 10))
		}
		rows = append(rows, row)
	}
	add("varal", &r.Figures)
	if r.Peer != nil {
		add("peer", r.Peer)
	}
	colour := func(row, col int) string {
		switch {
		case row == 0:
			return bold
		case col < 6 || col == 8:
			return ""
		case rows[row][col] == "0":
			return green
		}
		return red
	}
	if err := s.table(s.out, rows, func(col int) bool { return col > 0 }, colour); err != nil {
		return err
	}
	_, err := fmt.Fprintln(s.out, "\n"+s.sessionsText(r))
	return err
}

// sessionsText is the law of the run and the verdict.
func (s *session) sessionsText(r *sessions.Report) string {
	var b strings.Builder
	where := strings.TrimSuffix(r.Broker, ":")
	if r.Clean() {
		b.WriteString(s.paint(green, fmt.Sprintf("%d attempts checked one by one on %s: nothing lost, nothing out of order", r.Checked, where)))
	} else {
		b.WriteString(s.paint(red, fmt.Sprintf("%d attempts checked one by one on %s: %d violations of the order, %d lost", r.Checked, where, r.Violations, r.Lost)))
	}
	if r.Peer != nil {
		fmt.Fprintf(&b, "\nratio to the peer: rate %.3f, p50 %.3f (medians of %d pairs)", r.Ratio, r.P50Ratio, r.Rounds)
	}
	if r.Mode == "open" {
		fmt.Fprintf(&b, "\nopen loop: %d messages, %d a second asked, %.2f %% reached", r.Messages, r.Target, 100*r.Share)
	} else {
		fmt.Fprintf(&b, "\nclosed loop: %d messages, mailbox q = %d", r.Messages, r.Mailbox)
	}
	fmt.Fprintf(&b, "\nsessions S = %d (%s), service s = %g ms, failures p = %g, back-off b = %g ms doubling, jitter %s, seed %d",
		r.Sessions, r.KeyLaw, r.ServiceMS, r.Transient, r.BackoffMS, r.Jitter, r.Seed)
	fmt.Fprintf(&b, "\n%d partitions, payload %d bytes, %d workers, prefetch %d, %d cores", r.Partitions, r.Payload, r.Workers, r.Prefetch, r.Cores)
	b.WriteString("\n" + ceiling(r))
	for _, n := range r.Notes {
		b.WriteString("\n" + s.paint(dim, n))
	}
	return b.String()
}

func ceiling(r *sessions.Report) string {
	const formula = "S / (s/(1-p) + p·b/(1-2p))"
	half := ""
	if r.Jitter == "full" {
		half = " with b/2, the mean of full jitter,"
	}
	if r.Ceiling == 0 {
		return "ceiling " + formula + half + ": none here"
	}
	return fmt.Sprintf("ceiling %s%s = %.0f msg/s", formula, half, r.Ceiling)
}
