package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/cmd/varal/internal/soak"
)

const soakLong = `Millions of numbered messages of many sessions go through a queue in order per session, while
members of the group are killed, leave and come, and the handler fails, panics, and gives some
messages up. Every start and every end of an attempt is judged as it happens: no message
starts before the one in front of it has ended, none beside another of its session, none is
lost, and one that has ended starts again only where its member was killed, or had lost its
session, before the broker knew. What failed for good is looked for among the dead letters.

On memory: the members are part of this process, and a killed one is cut off from broker and
judge in the middle of whatever it does. On any other broker a member is a process, and is
killed with SIGKILL; it waits for the judge's answer around each attempt, so that what is
judged is one order of events and not a guess from clocks.

A segment has a queue of its own, deleted when it has been judged. With --state the judged
segments are kept in a file: an interrupted run goes on behind them when it is repeated.

`

func (s *session) benchSoak() *cobra.Command {
	var o soak.Options
	var asJSON bool
	c := &cobra.Command{
		Use:   "soak",
		Short: "Millions of messages amid kills and faults, every one checked",
		Long:  soakLong + exitCodes,
		Example: "  varal bench soak --messages 40000000 --state soak.json\n" +
			"  varal bench soak --url kafka://localhost:9092 --messages 4000000 --trouble 10s --json",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			o.URL = orMemory(o.URL)
			if strings.HasPrefix(o.URL, "memory:") && !c.Flags().Changed("trouble") {
				o.Trouble = 300 * time.Millisecond // it is noticed as fast there
			}
			if err := o.Validate(); err != nil {
				return &coded{Usage, err}
			}
			return s.runSoak(c.Context(), o, asJSON)
		},
	}
	f := c.Flags()
	f.StringVar(&o.URL, "url", "", "broker; default $"+adapters.EnvURL+", else memory:")
	f.IntVar(&o.Messages, "messages", 5_000_000, "messages in all")
	f.IntVar(&o.Segment, "segment", 1_000_000, "messages of a segment")
	f.IntVar(&o.Sessions, "sessions", 1000, "number of sessions (keys)")
	f.IntVar(&o.Partitions, "partitions", 12, "partitions of the queue")
	f.IntVar(&o.Members, "members", 4, "members of the group")
	f.IntVar(&o.Workers, "workers", 64, "handlers at once of a member")
	f.IntVar(&o.Ahead, "ahead", 50_000, "messages published and not ended, at the most")
	f.DurationVar(&o.Trouble, "trouble", 5*time.Second, "mean time between two kills or leaves, in memory 300ms; 0 = none")
	f.Float64Var(&o.Kills, "kills", 0.5, "share of kills among them")
	f.Float64Var(&o.Transient, "transient", 0.05, "probability that an attempt fails")
	f.Float64Var(&o.Dead, "dead", 0.0005, "probability that a message fails for good")
	f.DurationVar(&o.Service, "service", 0, "time of an attempt")
	f.IntVar(&o.Payload, "payload", 100, "bytes of a body")
	f.Uint64Var(&o.Seed, "seed", 1, "decides what fails, and who is killed")
	f.DurationVar(&o.Patience, "patience", time.Minute, "how long nothing may end before what is missing counts as lost")
	f.StringVar(&o.State, "state", "", "file that keeps the judged segments, and is gone on with")
	f.BoolVar(&asJSON, "json", false, "print the figures as one JSON object on the last line")
	return c
}

// soakMember is what a soak runs as a process of its own.
func (s *session) soakMember() *cobra.Command {
	return &cobra.Command{
		Use:    "soak-member",
		Short:  "A member of varal bench soak; not for use by hand",
		Hidden: true,
		Args:   noArgs,
		RunE:   func(*cobra.Command, []string) error { return soak.Member(s.in, s.out) },
	}
}

func (s *session) runSoak(ctx context.Context, o soak.Options, asJSON bool) error {
	o.Watch = func(p soak.Progress) {
		s.status("%d/%d  %.0f msg/s  %s left  kills %d  violations %d  lost %d", p.Done, p.Of, p.Rate, p.Left.Round(time.Second), p.Kills, p.Violations, p.Lost)
	}
	r, err := soak.Run(ctx, o)
	s.clearStatus()
	if err != nil {
		if r != nil && o.State != "" && r.Segments > 0 {
			return fmt.Errorf("%w\n%d messages are judged and kept in %s: the same command goes on behind them", err, r.Messages, o.State)
		}
		return err
	}
	return s.report(r, r.Clean(), asJSON, func() error { return s.printSoak(r) })
}

// printSoak is the account at the end.
func (s *session) printSoak(r *soak.Report) error {
	count := func(n int64) string { return strconv.FormatInt(n, 10) }
	rows := [][]string{
		{"messages", count(r.Messages)},
		{"violations", count(r.Violations)},
		{"lost", count(r.Lost)},
		{"dead letters missing", count(r.Missing)},
		{"attempts", count(r.Attempts)},
		{"of them failed", count(r.Faults)},
		{"dead letters", count(r.DeadLetters)},
		{"kills", count(r.Kills)},
		{"leaves", count(r.Leaves)},
		{"sessions lost", count(r.Losses)},
		{"done again after those", count(r.Duplicates)},
		{"overlaps with the dead", count(r.Overlaps)},
		{"msg/s", strconv.FormatFloat(r.Rate, 'f', 0, 64)},
		{"seconds", strconv.FormatFloat(r.Seconds, 'f', 1, 64)},
	}
	colour := func(row, col int) string {
		switch {
		case row == 0 || row > 3 || col == 0:
			return ""
		case rows[row][1] == "0":
			return green
		}
		return red
	}
	if err := s.table(s.out, rows, func(col int) bool { return col > 0 }, colour); err != nil {
		return err
	}
	verdict := s.paint(green, "\nevery attempt was checked: nothing lost, nothing out of order")
	if !r.Clean() {
		verdict = s.paint(red, "\n"+strings.Join(append([]string{"not clean"}, r.Notes...), "\n"))
	}
	_, err := fmt.Fprintf(s.out, "%s\n%s: %d sessions, %d partitions, %d members of %d workers, failures p = %g, for good %g, service %g ms,\na kill or a leave each %v (kills %g), payload %d bytes, segments of %d, seed %d\n",
		verdict, r.Broker, r.Sessions, r.Partitions, r.Members, r.Workers, r.Transient, r.Dead, r.ServiceMS,
		time.Duration(r.TroubleMS*float64(time.Millisecond)), r.KillShare, r.Payload, r.Segment, r.Seed)
	return err
}
