package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func (s *session) topology() *cobra.Command {
	c := &cobra.Command{
		Use:   "topology",
		Short: "Create what destinations and subscriptions need on a broker, or check it",
		Long: "A service that may not create anything (provision: verify, the default) needs its queues, topics,\n" +
			"streams, groups and dead letters to be there. topology makes them from the same file.\n\n" + exitCodes,
		Example: "  varal topology apply --file varal.yaml --dry-run\n  varal topology apply --url kafka://localhost:9092 queue:tickets --partitions 8",
	}
	c.AddCommand(
		s.topologyVerb("apply", "Create what is missing",
			"What is there and differs is reported and not changed: then the exit code is 1, as it is with --dry-run\nwhere anything would have to be done."),
		s.topologyVerb("verify", "Report what is missing or differs, without the right to create",
			"The exit code is 1 if anything is missing or differs."))
	return c
}

func (s *session) topologyVerb(verb, short, long string) *cobra.Command {
	var b broker
	var partitions int
	var asJSON, dry bool
	c := &cobra.Command{
		Use:   verb + " [DESTINATION…]",
		Short: short,
		Long: "DESTINATION is queue:NAME, topic:NAME or stream:NAME. " + fileNames + "\nWith --file also all destinations of the file, and the groups and dead letters of its subscriptions.\n\n" +
			long + "\n\n" + exitCodes,
		Example: "  varal topology " + verb + " --file varal.yaml\n  varal topology " + verb + " --url amqp://localhost:5672 queue:tickets --json",
		RunE: func(c *cobra.Command, args []string) error {
			mode := map[string]driver.Mode{"apply": driver.Create, "verify": driver.Verify}[verb]
			if dry {
				mode = driver.Plan
			}
			var want []driver.Resource
			for _, a := range args {
				d, err := s.destination(&b, a, partitions)
				if err != nil {
					return err
				}
				want = append(want, driver.Resource{Destination: d})
			}
			if len(want) == 0 && b.file == "" {
				return usage("nothing is named: write destinations such as queue:tickets, or --file")
			}
			return s.runTopology(c.Context(), &b, want, mode, asJSON)
		},
	}
	f := c.Flags()
	b.flags(f)
	_ = f.MarkHidden("create") // what the verb says
	f.IntVar(&partitions, "partitions", 0, "of the destinations named; 0 = no order asked")
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	if verb == "apply" {
		f.BoolVar(&dry, "dry-run", false, "say what would be done, and do nothing")
	}
	return c
}

// changes is what topology prints.
type changes struct {
	Broker  string          `json:"broker"`
	Mode    string          `json:"mode"`
	Checked int             `json:"checked"` // destinations and groups; if an error ended it, up to so many
	Open    int             `json:"open"`    // differences that are left
	Changes []driver.Change `json:"changes"`

	stopped bool // by an error, with some not looked at
}

func (s *session) runTopology(ctx context.Context, b *broker, want []driver.Resource, mode driver.Mode, asJSON bool) error {
	file, err := s.load(b)
	if err != nil {
		return err
	}
	client, err := s.open(ctx, b)
	if err != nil {
		return err
	}
	s.noteMemory(client)
	err = s.topologyOf(ctx, b, client, file, want, mode, asJSON)
	return closeClient(client, err)
}

func (s *session) topologyOf(ctx context.Context, b *broker, client *core.Client, file *adapters.File, want []driver.Resource, mode driver.Mode, asJSON bool) error {
	if file != nil {
		of, err := resources(client, file)
		if err != nil {
			return err
		}
		want = append(want, of...)
	}
	m := client.Describe()
	want = distinct(want, m.Prefix)
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	found, failed := client.Admin().Apply(ctx, want, mode)
	if failed != nil {
		failed = fmt.Errorf("%s: %w", mode, failed)
	}
	if failed != nil && len(found) == 0 {
		return failed
	}
	// What was made before something failed is there, and nobody else tells of it.
	out := changes{Broker: m.Broker, Mode: mode.String(), Checked: len(want), Changes: []driver.Change{}, stopped: failed != nil}
	for _, c := range found {
		if slices.Contains(out.Changes, c) {
			continue // a topic that is not there is missing for each of its groups
		}
		out.Changes = append(out.Changes, c)
		if !c.Done {
			out.Open++
		}
	}
	return s.tellChanges(&out, failed, asJSON)
}

// tellChanges prints what was found, and returns how the command ends.
func (s *session) tellChanges(out *changes, failed error, asJSON bool) (err error) {
	if asJSON {
		err = s.printJSON(out)
	} else {
		err = s.printChanges(out)
	}
	switch {
	case failed != nil:
		return failed
	case out.Open > 0:
		return &coded{Failed, errFound} // a closed pipe must not turn a difference into success
	}
	return err
}

// resources is what the file's destinations and subscriptions need.
func resources(client *core.Client, file *adapters.File) (want []driver.Resource, err error) {
	for _, name := range file.Destinations() {
		d, err := file.Destination(name)
		if err != nil {
			return nil, err
		}
		want = append(want, driver.Resource{Destination: d})
	}
	for _, name := range file.Subscriptions() {
		sub, layers, err := file.Subscription(name)
		if err != nil {
			return nil, err
		}
		m, err := client.DescribeSubscription(sub, layers...)
		if err != nil {
			return nil, err
		}
		if m.DeadLetter != "" {
			shape, name, _ := strings.Cut(m.DeadLetter, " ")
			d, err := parseDestination(shape+":"+name, 0)
			if err != nil {
				return nil, err
			}
			want = append(want, driver.Resource{Destination: d})
		}
		if sub.From.Shape == driver.Queue || sub.Group == "" || sub.Temporary {
			continue // a queue has no group of its own; a temporary one is made by who reads it
		}
		r := driver.Resource{Destination: sub.From, Start: sub.Start}
		r.Group = sub.Group
		want = append(want, r)
	}
	return want, nil
}

// distinct puts the prefix before all names and drops what is there twice: of two with
// one name and group the first says more.
func distinct(want []driver.Resource, prefix string) (out []driver.Resource) {
	type place struct {
		shape       driver.Shape
		name, group string
	}
	seen := map[place]bool{}
	for _, r := range want {
		r.Name = prefix + r.Name
		if r.Group != "" {
			r.Group = prefix + r.Group
		}
		if p := (place{r.Shape, r.Name, r.Group}); !seen[p] {
			seen[p] = true
			out = append(out, r)
		}
	}
	return out
}

func (s *session) printChanges(out *changes) error {
	var rows [][]string
	for _, c := range out.Changes {
		state := "open"
		if c.Done {
			state = "done"
		}
		what := c.Field + " " + c.Have + ", wanted " + c.Want
		if c.Field == "exists" {
			what = "does not exist"
			if c.Done {
				what = "created"
			}
		}
		rows = append(rows, []string{state, c.Subject, what})
	}
	colour := func(row, col int) string {
		if col != 0 {
			return ""
		}
		return map[string]string{"done": green, "open": red}[rows[row][0]]
	}
	if err := s.table(s.out, rows, func(int) bool { return false }, colour); err != nil {
		return err
	}
	format := "%s: %d destinations and groups looked at, %d changed, %d open\n"
	if out.stopped {
		format = "%s: stopped by an error, not all of %d destinations and groups looked at, %d changed, %d open\n"
	}
	_, err := fmt.Fprintf(s.out, format, out.Broker, out.Checked, len(out.Changes)-out.Open, out.Open)
	return err
}
