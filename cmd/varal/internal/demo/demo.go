package demo

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

const (
	tables     = 24
	partitions = 8
	batchSize  = 240 // tickets of one Publish: ten for each table
)

// The destinations of a run, before their prefix.
var (
	tickets = core.Queue("tickets").Keyed(partitions)
	dlq     = core.Queue("tickets.dlq")
	pizzas  = core.Topic("pizzas")
	diary   = core.Stream("diary").Keyed(1) // a page after the other, on every broker
)

// Options of a run.
type Options struct {
	// Broker to run on. Its Prefix and Provision are set by the run.
	Broker adapters.Config
	// Messages is the number of tickets, at least 1.
	Messages int
	// Seed decides which tickets fail, and how.
	Seed uint64
	// Sabotage plants a bug; see Sabotages. "" = none.
	Sabotage string
	// Patience is how long nothing may move before what is missing counts as lost.
	Patience time.Duration
	// Logger of the clients. nil = none.
	Logger *slog.Logger
	// Wrap is put around each driver, for tests. nil = nothing.
	Wrap func(driver.Driver) driver.Driver
	// Watch is called a few times a second with the state of the run. nil = nobody.
	Watch func(Progress)
}

// Report is the account of a run.
type Report struct {
	Lost         int      `json:"lost"`
	OutOfOrder   int      `json:"out_of_order"`
	Duplicates   int      `json:"duplicates"`
	Published    int      `json:"published"`
	Handled      int      `json:"handled"`
	Retried      int      `json:"retried"`
	DeadLettered int      `json:"dead_lettered"`
	Broker       string   `json:"broker"`
	Run          string   `json:"run"`
	Seed         uint64   `json:"seed"`
	Sabotage     string   `json:"sabotage,omitempty"`
	WalkedOut    bool     `json:"walked_out"` // a cook was stopped in the middle of a pizza
	Seconds      float64  `json:"seconds"`
	Notes        []string `json:"notes,omitempty"`
	Shapes       []Row    `json:"shapes"`
}

// Clean reports whether every message arrived, in the order that was promised.
func (r *Report) Clean() bool { return r.Lost == 0 && r.OutOfOrder == 0 }

// run is one evening.
type run struct {
	o      Options
	prefix string
	queue  core.Destination // of the tickets
	pages  core.Destination // of the diary; zero where the broker has no stream
	ledger *ledger
	house  *core.Client // billing, screen, dead letters, diary
	notes  []string

	crash  crash
	closes []func(context.Context) error
}

// Run opens the pizzeria, works off o.Messages tickets and counts. The error is about
// the run (the broker cannot be reached, ctx ended); lost messages are in the Report.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	name := "demo-" + strings.ToLower(rand.Text()[:8])
	broker := adapters.Redact(o.Broker.URL)
	r := &run{o: o, prefix: name + "-", queue: tickets, ledger: newLedger(tables, o.Messages), crash: newCrash(o.Messages)}
	if u := r.o.Broker.URL; u == "memory:" || strings.HasPrefix(u, "memory:?") {
		// Several clients share one broker, as they do elsewhere.
		r.o.Broker.URL = "memory:" + name + strings.TrimPrefix(u, "memory:")
	}
	start := time.Now()
	defer r.close()
	if err := r.evening(ctx); err != nil {
		return nil, err
	}
	report := r.report()
	report.Broker, report.Run, report.Seconds = broker, name, time.Since(start).Seconds()
	return report, nil
}

// evening is the run itself, without its clean-up.
func (r *run) evening(ctx context.Context) (err error) {
	if r.house, err = r.open(ctx); err != nil {
		return err
	}
	r.closes = append(r.closes, r.deleteAll)
	r.queue = r.possible(tickets)
	if r.there(diary) {
		r.pages = r.possible(diary)
	} else {
		r.notes = append(r.notes, fmt.Sprintf("this broker refuses a %s (%v): there is no %s, and nothing is replayed", diary.Shape, core.NeedReplay, diary.Name))
	}
	if err := r.openHouse(ctx); err != nil {
		return err
	}
	counter, err := r.open(ctx)
	if err != nil {
		return err
	}
	kitchen, err := r.openKitchen(ctx)
	if err != nil {
		return err
	}
	sold := make(chan error, 1)
	sctx, cancel := context.WithCancel(ctx)
	defer func() { // the counter must be gone before its client is closed
		cancel()
		<-sold
	}()
	go func() {
		defer close(sold)
		if err := r.sell(sctx, counter); err != nil {
			sold <- err
		}
	}()
	if err := r.await(ctx, sold, kitchen); err != nil || !r.keepsDiary() {
		return err
	}
	return r.replay(ctx)
}

// there tells whether this broker has the shape of a destination at all, with order or
// without: where nothing can be settled, there is nothing.
func (r *run) there(of core.Destination) bool {
	of.Partitions = 0
	return r.house.Capabilities(of).Settle != 0
}

// keepsDiary tells whether there is a stream to write into.
func (r *run) keepsDiary() bool { return r.pages.Name != "" }

// ordered tells whether a destination keeps the order of a key on this broker.
func (r *run) ordered(of core.Destination) bool {
	return r.house.Capabilities(of).Order != driver.NoOrder
}

// possible is a keyed destination, or where this broker refuses it the same without order.
func (r *run) possible(keyed core.Destination) core.Destination {
	if r.ordered(keyed) {
		return keyed
	}
	r.notes = append(r.notes, fmt.Sprintf("this broker refuses a keyed %s (%v): %s goes on without, and no order is counted there", keyed.Shape, core.NeedOrdered, keyed.Name))
	keyed.Partitions = 0
	return keyed
}

// open connects one more client.
func (r *run) open(ctx context.Context) (*core.Client, error) {
	d, err := adapters.OpenDriver(ctx, r.o.Broker)
	if err != nil {
		return nil, err
	}
	if d, err = sabotage(d, r.o.Sabotage, r.prefix+tickets.Name); err != nil {
		return nil, err
	}
	if r.o.Wrap != nil {
		d = r.o.Wrap(d)
	}
	c := core.NewClient(d, core.Options{Prefix: r.prefix, Provision: core.ProvisionCreate, Logger: r.o.Logger})
	r.closes = append(r.closes, c.Close)
	return c, nil
}

// close ends everything, last opened first, whatever happened before.
func (r *run) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for i := len(r.closes) - 1; i >= 0; i-- {
		if err := r.closes[i](ctx); err != nil {
			r.o.Logger.Warn("close: " + err.Error())
		}
	}
}

// deleteAll removes what the run created.
func (r *run) deleteAll(ctx context.Context) error {
	admin := r.house.Admin()
	if admin == nil {
		return nil
	}
	for _, c := range r.groups() { // a group with members cannot be removed
		if s, ok := r.house.Consumer(c.name); ok {
			_ = s.Drain(ctx) // it ends anyway with the client
		}
	}
	var errs []error
	made := []core.Destination{r.queue, dlq, pizzas}
	if r.keepsDiary() {
		made = append(made, r.pages)
	}
	for _, d := range made {
		d.Name = r.prefix + d.Name
		for _, g := range r.groups() {
			if g.from == d.Name {
				_, err := admin.Apply(ctx, []driver.Resource{{Destination: d.ForGroup(g.group)}}, driver.Delete)
				errs = append(errs, ignoreMissing(err))
			}
		}
		_, err := admin.Apply(ctx, []driver.Resource{{Destination: d}}, driver.Delete)
		errs = append(errs, ignoreMissing(err))
	}
	return errors.Join(errs...)
}

func ignoreMissing(err error) error {
	if errors.Is(err, core.ErrNotFound) || errors.Is(err, core.ErrUnsupported) {
		return nil
	}
	return err
}

type member struct{ name, from, group string }

// groups of the run. Their names carry the prefix too: Kafka knows one set of groups
// for all topics.
func (r *run) groups() []member {
	return []member{
		{"kitchen", r.prefix + tickets.Name, r.prefix + "kitchen"},
		{"manager", r.prefix + dlq.Name, r.prefix + "manager"},
		{"billing", r.prefix + pizzas.Name, r.prefix + "billing"},
		{"screen", r.prefix + pizzas.Name, r.prefix + "screen"},
	}
}

// sell publishes every ticket, in order per table.
func (r *run) sell(ctx context.Context, counter *core.Client) error {
	menu := []string{"margherita", "marinara", "capricciosa", "quattro stagioni", "diavola"}
	seq := make([]int, tables)
	for sold := 0; sold < r.o.Messages; {
		var batch []*core.Message
		var on []ticket
		for len(batch) < min(batchSize, r.o.Messages-sold) {
			table := (sold + len(batch)) % tables
			seq[table]++
			t := ticket{Table: table, Seq: seq[table], Pizza: menu[(table+seq[table])%len(menu)]}
			batch, on = append(batch, t.message()), append(on, t)
		}
		if err := counter.Publish(ctx, r.queue, batch...); err != nil {
			return fmt.Errorf("publish tickets: %w", err)
		}
		for _, t := range on {
			r.ledger.published(t)
		}
		sold += len(batch)
	}
	return nil
}

func (t ticket) message() *core.Message {
	body, _ := json.Marshal(t) //nolint:errchkjson // two numbers and a word
	return &core.Message{Key: t.key(), Type: "ticket", Body: body}
}

// await returns when every ticket has its end, or when nothing has moved for so long
// that what is missing counts as lost.
func (r *run) await(ctx context.Context, sold <-chan error, kitchen *kitchen) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	last, moved := Progress{}, time.Now()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-sold:
			if err != nil {
				return err
			}
			sold = nil // closed: all is sold
		case cook := <-r.crash.held:
			kitchen.walkOut(cook)
		case <-tick.C:
		}
		if err := kitchen.failed(); err != nil {
			return err
		}
		p := r.ledger.progress(r.o.Messages)
		if r.o.Watch != nil {
			r.o.Watch(p)
		}
		if p.events != last.events {
			last, moved = p, time.Now()
		}
		switch {
		case sold == nil && p.complete():
			return nil
		case sold == nil && time.Since(moved) > r.o.Patience:
			r.notes = append(r.notes, fmt.Sprintf("nothing moved for %v: what is missing by then counts as lost", r.o.Patience))
			return nil
		}
	}
}

func (r *run) report() *Report {
	out := &Report{
		Seed: r.o.Seed, Sabotage: r.o.Sabotage, WalkedOut: r.crash.fired.Load(),
		Notes: r.notes, Shapes: r.ledger.rows(r.ordered(r.queue), r.ordered(r.pages)),
	}
	if !r.keepsDiary() { // of nothing there is no account: 0 lost would be a claim
		out.Shapes = slices.DeleteFunc(out.Shapes, func(row Row) bool { return row.Shape == diary.Shape.String() })
	}
	for i, row := range out.Shapes {
		out.Lost += row.Lost
		out.OutOfOrder += max(row.OutOfOrder, 0)
		out.Duplicates += row.Duplicates
		if i == 0 {
			out.Published, out.Handled, out.Retried, out.DeadLettered = row.Published, row.Handled, row.Retried, row.DeadLettered
		}
	}
	if !out.WalkedOut {
		out.Notes = append(out.Notes, "no cook walked out: too few tickets were left for it")
	}
	if r.ledger.foreign > 0 {
		out.Notes = append(out.Notes, fmt.Sprintf("%d messages that nobody published", r.ledger.foreign))
		out.Lost += r.ledger.foreign // a changed message is a lost one
	}
	return out
}
