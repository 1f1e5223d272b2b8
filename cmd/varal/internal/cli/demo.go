package cli

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/cmd/varal/internal/demo"
)

const maxDemo = 1_000_000

func (s *session) demo() *cobra.Command {
	var o demo.Options
	var asJSON, verbose bool
	var url string
	c := &cobra.Command{
		Use:   "demo",
		Short: "An evening in the pizzeria: every ticket is counted",
		Long: `The counter publishes tickets to a queue, in order per table. Three cooks take them, each
with a client of his own; one ticket in ten fails at first, one in a hundred never works and
ends in the dead-letter queue, and one cook walks out in the middle of a pizza. Every finished
pizza is an event on a topic that billing and the screen each get, and an entry of a stream
that is replayed at the end. The account then tells, ticket by ticket, what was lost, came
twice, or came out of order.

--sabotage plants a bug under the same code, so that you see the account catch it:
  early-ack  ` + demo.Sabotages["early-ack"] + `
  swap       ` + demo.Sabotages["swap"] + `
  drop       ` + demo.Sabotages["drop"] + `

A shape that the broker does not have is named and left out of the account.
Destinations get names of their own and are deleted at the end.

` + exitCodes,
		Example: "  varal demo\n  varal demo --sabotage early-ack\n  varal demo --url amqp://guest:guest@localhost:5672/ --json\n  varal demo --url redis://localhost:6379" +
			"\n  varal demo --url 'sqs://test:test@us-east-1?endpoint=http://127.0.0.1:4566'",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case o.Messages < 1 || o.Messages > maxDemo:
				return usage("--messages %d is not within 1 and %d", o.Messages, maxDemo)
			case o.Sabotage != "" && demo.Sabotages[o.Sabotage] == "":
				return usage("there is no --sabotage %.40q: there are early-ack, swap and drop", o.Sabotage)
			case o.Patience < 100*time.Millisecond || o.Patience > time.Hour:
				return usage("--patience %v is not within 100ms and 1h", o.Patience)
			}
			o.Broker = adapters.Config{URL: orMemory(url)}
			if !c.Flags().Changed("patience") && strings.HasPrefix(o.Broker.URL, "memory:") {
				o.Patience = 2 * time.Second // in one process nothing is that late
			}
			if verbose {
				o.Logger = slog.New(slog.NewTextHandler(s.err, nil))
			}
			return s.runDemo(c.Context(), o, asJSON)
		},
	}
	f := c.Flags()
	f.StringVar(&url, "url", "", "broker; default $"+adapters.EnvURL+", else memory:")
	f.IntVar(&o.Messages, "messages", 3000, "number of tickets")
	f.Uint64Var(&o.Seed, "seed", 1, "decides which tickets fail")
	f.StringVar(&o.Sabotage, "sabotage", "", "plant a bug: early-ack, swap or drop")
	f.DurationVar(&o.Patience, "patience", 15*time.Second, "how long nothing may move before what is missing counts as lost (memory: 2s)")
	f.BoolVar(&asJSON, "json", false, "print the account as one JSON object on the last line")
	f.BoolVarP(&verbose, "verbose", "v", false, "log what the clients do to stderr")
	return c
}

func (s *session) runDemo(ctx context.Context, o demo.Options, asJSON bool) error {
	o.Watch = func(p demo.Progress) {
		s.status("tickets %d/%d  retried %d  dead letters %d  billed %d  on screen %d  diary %d",
			p.Done+p.Rejected, p.Messages, p.Retried, p.DeadLettered, p.Billed, p.Shown, p.DiaryRead)
	}
	r, err := demo.Run(ctx, o)
	s.clearStatus()
	if err != nil {
		return err
	}
	return s.report(r, r.Clean(), asJSON, func() error { return s.printAccount(r) })
}

// printAccount is the table at the end.
func (s *session) printAccount(r *demo.Report) error {
	rows := [][]string{{"shape", "destination", "published", "handled", "retried", "dead-lettered", "duplicates", "out of order", "lost"}}
	for _, row := range r.Shapes {
		order := strconv.Itoa(row.OutOfOrder)
		if row.OutOfOrder < 0 {
			order = "–"
		}
		rows = append(rows, []string{
			row.Shape, row.Name, strconv.Itoa(row.Published), strconv.Itoa(row.Handled), strconv.Itoa(row.Retried),
			strconv.Itoa(row.DeadLettered), strconv.Itoa(row.Duplicates), order, strconv.Itoa(row.Lost),
		})
	}
	colour := func(row, col int) string {
		switch {
		case row == 0:
			return bold
		case col < 7 || rows[row][col] == "–":
			return ""
		case rows[row][col] == "0":
			return green
		}
		return red
	}
	if err := s.table(s.out, rows, func(col int) bool { return col > 1 }, colour); err != nil {
		return err
	}
	where, order := strings.TrimSuffix(r.Broker, ":"), "nothing out of order"
	if len(r.Shapes) > 0 && r.Shapes[0].OutOfOrder < 0 {
		order = "no order promised"
	}
	verdict := s.paint(green, fmt.Sprintf("%d tickets on %s in %.1f s: nothing lost, %s", r.Published, where, r.Seconds, order))
	if !r.Clean() {
		verdict = s.paint(red, fmt.Sprintf("%d tickets on %s in %.1f s: %d lost, %d out of order", r.Published, where, r.Seconds, r.Lost, r.OutOfOrder))
	}
	if r.WalkedOut {
		verdict += "\none cook walked out in the middle of a pizza; his tickets "
		verdict += map[bool]string{true: "came to the others", false: "are in the account"}[r.Clean()]
	}
	if r.Sabotage != "" {
		verdict += "\nsabotage " + r.Sabotage + ": " + demo.Sabotages[r.Sabotage]
	}
	for _, n := range r.Notes {
		verdict += "\n" + s.paint(dim, n)
	}
	_, err := fmt.Fprintln(s.out, "\n"+verdict)
	return err
}

// orMemory is the URL of commands that run without any broker too.
func orMemory(url string) string {
	if url == "" {
		url = os.Getenv(adapters.EnvURL)
	}
	if url == "" {
		url = "memory:"
	}
	return url
}

// noArgs is cobra.NoArgs with our exit code and a text that helps.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("%s takes no argument; there is %.80q", c.Name(), args[0])
	}
	return nil
}
