package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func (s *session) describe() *cobra.Command {
	var b broker
	var partitions int
	var asJSON bool
	c := &cobra.Command{
		Use:   "describe [DESTINATION…]",
		Short: "What a broker can do, and what a file's subscriptions become on it",
		Long: "DESTINATION is queue:NAME, topic:NAME or stream:NAME. " + fileNames + "\n\n" +
			"For each destination, by need: native, emulated (with the cost), or refused. Without one: a plain\n" +
			"queue, a keyed queue, a topic and a stream. With --file also the pipeline of each subscription of\n" +
			"the file, or why this broker refuses it (exit code 1). --url with --file shows what a swap to that\n" +
			"broker would change.\n\n" + exitCodes,
		Example: "  varal describe --url kafka://localhost:9092 queue:tickets --partitions 8\n" +
			"  varal describe --file examples/05-swap-by-config/varal.yaml --broker memory queue:tickets",
		RunE: func(c *cobra.Command, args []string) error {
			var of []core.Destination
			for _, a := range args {
				d, err := s.destination(&b, a, partitions)
				if err != nil {
					return err
				}
				of = append(of, d)
			}
			if len(of) == 0 && b.file == "" {
				of = []core.Destination{core.Queue("any"), core.Queue("any").Keyed(8), core.Topic("any"), core.Stream("any")}
			}
			return s.runDescribe(c.Context(), &b, of, asJSON)
		},
	}
	f := c.Flags()
	b.flags(f)
	f.IntVar(&partitions, "partitions", 0, "of the destinations named; 0 = no order asked")
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}

// description is what describe prints.
type description struct {
	Broker        string             `json:"broker"`
	Destinations  []destinationEntry `json:"destinations,omitempty"`
	Subscriptions []planned          `json:"subscriptions,omitempty"`
	refused       int
}

type destinationEntry struct {
	Destination  string            `json:"destination"`
	Partitions   int               `json:"partitions,omitempty"`
	Refused      string            `json:"refused,omitempty"`
	Settle       string            `json:"settle"`
	Order        string            `json:"order"`
	MaxBytes     int               `json:"max_bytes,omitempty"`
	Capabilities []core.Resolution `json:"capabilities"`
}

type planned struct {
	Name     string                     `json:"name"`
	Refused  string                     `json:"refused,omitempty"`
	Manifest *core.SubscriptionManifest `json:"manifest,omitempty"`
}

func (s *session) runDescribe(ctx context.Context, b *broker, of []core.Destination, asJSON bool) error {
	file, err := s.load(b)
	if err != nil {
		return err
	}
	client, err := s.open(ctx, b)
	if err != nil {
		return err
	}
	d := description{Broker: client.Describe().Broker}
	for _, dest := range of {
		d.Destinations = append(d.Destinations, entry(client, dest))
	}
	if file != nil {
		d.plan(client, file)
	}
	if asJSON {
		err = s.printJSON(d)
	} else {
		err = s.printDescription(&d)
	}
	if err == nil && d.refused > 0 {
		err = &coded{Failed, errFound}
	}
	return closeClient(client, err)
}

func entry(c *core.Client, of core.Destination) destinationEntry {
	caps := c.Capabilities(of)
	e := destinationEntry{Destination: of.String(), Partitions: of.Partitions, Settle: caps.Settle.String(), Order: caps.Order.String(), MaxBytes: caps.MaxBytes}
	if caps.Settle == 0 {
		e.Refused = "this broker has no " + of.Shape.String()
		if of.Partitions > 0 {
			e.Refused += " with order per key"
		}
	}
	for n := range driver.NeedCount {
		e.Capabilities = append(e.Capabilities, core.Resolve(caps, n))
	}
	return e
}

// plan assembles every subscription of the file without starting it.
func (d *description) plan(c *core.Client, f *adapters.File) {
	for _, name := range f.Subscriptions() {
		p := planned{Name: name}
		sub, layers, err := f.Subscription(name)
		if err == nil {
			var m core.SubscriptionManifest
			if m, err = c.DescribeSubscription(sub, layers...); err == nil {
				p.Manifest = &m
			}
		}
		if err != nil {
			p.Refused = err.Error()
			d.refused++
		}
		d.Subscriptions = append(d.Subscriptions, p)
	}
}

func (s *session) printDescription(d *description) error {
	if _, err := fmt.Fprintln(s.out, "broker", d.Broker); err != nil {
		return err
	}
	for _, e := range d.Destinations {
		title := e.Destination
		if e.Partitions > 0 {
			title += ", " + strconv.Itoa(e.Partitions) + " partitions"
		}
		if e.Refused != "" {
			if _, err := fmt.Fprintf(s.out, "\n%s\n  %s %s\n", s.paint(bold, title), s.paint(red, "refused:"), e.Refused); err != nil {
				return err
			}
			continue
		}
		_, err := fmt.Fprintf(s.out, "\n%s\n  settle %s, order %s, at most %s a message\n", s.paint(bold, title), e.Settle, e.Order, size(e.MaxBytes))
		if err != nil {
			return err
		}
		if err := s.printNeeds(e.Capabilities); err != nil {
			return err
		}
	}
	for _, p := range d.Subscriptions {
		if err := s.printPlanned(s.out, p); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) printNeeds(list []core.Resolution) error {
	var rows [][]string
	for _, r := range list {
		rows = append(rows, []string{" ", r.Need.String(), r.Support.String(), r.Cost})
	}
	colour := func(row, col int) string {
		if col != 2 {
			return ""
		}
		return map[core.Support]string{core.Native: green, core.Refused: dim}[list[row].Support]
	}
	return s.table(s.out, rows, func(int) bool { return false }, colour)
}

func (s *session) printPlanned(w io.Writer, p planned) error {
	if p.Manifest == nil {
		_, err := fmt.Fprintf(w, "\n%s\n  %s %s\n", s.paint(bold, "subscription "+p.Name), s.paint(red, "refused:"), plainClass(p.Refused))
		return err
	}
	m := p.Manifest
	var b strings.Builder
	title := fmt.Sprintf("subscription %s: %s %s", m.Name, m.Shape, m.From)
	if m.Group != "" {
		title += ", group " + m.Group
	}
	_, _ = fmt.Fprintf(&b, "\n%s\n", s.paint(bold, title)) // a Builder does not fail, here and below
	_, _ = fmt.Fprintf(&b, "  pipeline     %s\n", strings.ReplaceAll(strings.Join(m.Chain, " → "), "timeout "+m.Timeout.String(), "timeout "+short(m.Timeout)))
	_, _ = fmt.Fprintf(&b, "  in flight    %d messages, %s; %d handlers at once; order %s; settle %s\n",
		m.MaxInFlight, size(int(m.MaxInFlightBytes)), m.Concurrency, m.Order, m.Settle)
	printFailures(&b, m)
	if m.Timeout > 0 {
		_, _ = fmt.Fprintf(&b, "  timeout      %s\n", short(m.Timeout))
	}
	_, _ = fmt.Fprintf(&b, "  drain        %s\n", short(max(m.DrainTimeout, 0).Round(time.Millisecond)))
	for _, n := range m.Missing {
		_, _ = fmt.Fprintf(&b, "  missing      %s is preferred and not there\n", n)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	return s.printNeeds(m.Capabilities)
}

// printFailures says what is promised, and what becomes of a message that fails.
func printFailures(b *strings.Builder, m *core.SubscriptionManifest) {
	if m.AckFirst {
		b.WriteString("  promise      at most once (ack_first): a crash loses what is running or waiting\n" +
			"  exhausted    discard: the first failure is the last, the message is acknowledged\n")
		return
	}
	attempts := "no limit of attempts"
	if m.Retry.Attempts > 0 {
		attempts = strconv.Itoa(m.Retry.Attempts) + " attempts"
	}
	exhausted := m.Exhausted
	switch {
	case m.AfterTerminal == core.HaltKey.String():
		exhausted = "halt key: the message stays, its key waits for varal sessions resume, replay or skip"
	case m.DeadLetter != "":
		exhausted = "dead letter " + m.DeadLetter
	case m.NativeDeadLetter:
		exhausted = "dead letter of the broker"
	case exhausted != core.ExhaustedDiscard.String():
		exhausted = "halt: the subscription stops, the message stays with the broker"
	}
	_, _ = fmt.Fprintf(b, "  promise      at least once\n  retry        %s, %s doubling to %s\n  exhausted    %s\n",
		attempts, short(m.Retry.Base), short(m.Retry.Cap), exhausted)
	if m.AfterTerminal == core.DeadLetterKey.String() {
		b.WriteString("               what follows in its key goes there, too\n")
	}
	printStuck(b, m.Stuck)
	if p := m.Breaker; p != nil {
		_, _ = fmt.Fprintf(b, "  breaker      after %d failures in a row nothing starts for %s, then one attempt decides\n", p.Failures, short(p.OpenFor))
	}
	if d := m.Dedup; d != nil {
		_, _ = fmt.Fprintf(b, "  dedup        an id is remembered for %s, in scope %s\n", short(d.Keep), d.Scope)
	}
	if p := m.RetryBudget; p != nil {
		_, _ = fmt.Fprintf(b, "  budget       %d retries a second, and %d %% of what succeeds\n", p.PerSecond, p.Percent)
	}
}

// printStuck says what is done about work that does not end, where it is more than a
// warning.
func printStuck(b *strings.Builder, p core.StuckPolicy) {
	var steps []string
	for _, s := range []struct {
		what string
		d    time.Duration
	}{{"cancel", p.Cancel}, {"abandon", p.Abandon}, {"skip the gap", p.GapSkip}} {
		if s.d > 0 {
			steps = append(steps, s.what+" after "+short(s.d))
		}
	}
	if len(steps) > 0 {
		_, _ = fmt.Fprintf(b, "  stuck        %s\n", strings.Join(steps, ", "))
	}
}

// short prints a duration without the zeros at its end: 1m and not 1m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// size prints bytes in the largest unit that divides them.
func size(n int) string {
	switch {
	case n == 0:
		return "the broker's limit"
	case n%(1<<20) == 0:
		return strconv.Itoa(n>>20) + " MiB"
	case n%(1<<10) == 0:
		return strconv.Itoa(n>>10) + " KiB"
	}
	return strconv.Itoa(n) + " bytes"
}
