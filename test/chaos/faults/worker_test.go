//go:build unix

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/middleware"
	"github.com/varal-go/varal/test/chaos"
	"github.com/varal-go/varal/test/chaos/faultnet"
	"github.com/varal-go/varal/test/lab/history"
	"github.com/varal-go/varal/test/lab/taps"
)

// group is the label of all consumers here.
const group = "g"

func init() {
	chaos.Register("consumer", func(ctx context.Context, w *chaos.Worker) error {
		var a consumerArgs
		if err := json.Unmarshal(w.Args(), &a); err != nil {
			return err
		}
		return onNet(ctx, w, func(ctx context.Context, net *faultnet.Net) error {
			return consume(ctx, a, net, func(e history.Event) { _ = w.Emit(e) })
		})
	})
	chaos.Register("publisher", func(ctx context.Context, w *chaos.Worker) error {
		var a publisherArgs
		if err := json.Unmarshal(w.Args(), &a); err != nil {
			return err
		}
		return onNet(ctx, w, func(ctx context.Context, net *faultnet.Net) error {
			return publish(ctx, a, net, func(e history.Event) { _ = w.Emit(e) })
		})
	})
}

// onNet runs a body whose connections pass a faultnet that the parent commands.
func onNet(ctx context.Context, w *chaos.Worker, body func(context.Context, *faultnet.Net) error) error {
	net := faultnet.New()
	ctx, cancel := context.WithCancel(ctx)
	var listening sync.WaitGroup
	listening.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case c, ok := <-w.Commands():
				if !ok {
					return
				}
				obey(net, c.Cmd)
				_ = w.Emit(history.Event{Op: history.OpLog, ID: c.ID, Class: fmt.Sprintf("%s: %+v", c.Cmd, net.Counts())})
			}
		}
	})
	err := body(ctx, net)
	cancel()
	listening.Wait()
	return errors.Join(err, net.Close())
}

func obey(net *faultnet.Net, cmd string) {
	switch cmd {
	case "cut":
		net.Cut()
	case "hole":
		net.BlackHole(faultnet.Both, true)
	case "deaf": // half-open: what we say arrives, the answers do not
		net.BlackHole(faultnet.Down, true)
	case "mute": // half-open: the other way round
		net.BlackHole(faultnet.Up, true)
	case "heal":
		net.Heal()
	}
}

// target is what every worker needs to know.
type target struct {
	URL  string
	Dest core.Destination
	Net  bool // connections pass the worker's faultnet

	wrap func(driver.Driver) driver.Driver // in-process only
}

// open opens a client whose driver is watched.
func (a target) open(ctx context.Context, net *faultnet.Net, emit func(history.Event)) (*core.Client, error) {
	c := adapters.Config{URL: a.URL}
	if a.Net {
		c.Dial = net.DialContext
	}
	var client atomic.Pointer[core.Client]
	c.Notify = func(e core.Event) {
		emit(history.Event{Op: history.OpLog, Class: "event " + e.Kind.String()})
		if cl := client.Load(); cl != nil {
			cl.Notify(e)
		}
	}
	d, err := adapters.OpenDriver(ctx, c)
	if err != nil {
		return nil, err
	}
	o := core.Options{Observer: taps.Signals(emit)}
	if strings.HasPrefix(a.URL, "memory:") {
		o.Provision = core.ProvisionCreate
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if a.wrap != nil {
		d = a.wrap(d)
	}
	cl := core.NewClient(&recorder{Driver: d, emit: emit}, o)
	client.Store(cl)
	return cl, nil
}

// call records a public call and its allowed time.
func call(emit func(history.Event), id string, allowed time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), allowed)
	defer cancel()
	emit(history.Event{Op: history.OpCall, ID: id, N: int(allowed)})
	err := f(ctx)
	emit(history.Event{Op: history.OpRet, ID: id})
	return err
}

// closeLimit is the deadline of every Close here.
const closeLimit = 5 * time.Second

type consumerArgs struct {
	target
	Keyed       bool
	Concurrency int           // 0 = 8
	Prefetch    int           // 0 = 64
	Hold        time.Duration // of every handler
	HoldIDs     map[string]time.Duration
	Drain       time.Duration // 0 = 5 s
	Forward     core.Destination
}

func (a consumerArgs) layers() []core.Layer {
	setDefault(&a.Concurrency, 8)
	setDefault(&a.Drain, 5*time.Second)
	setDefault(&a.Prefetch, 64)
	layers := []core.Layer{middleware.Prefetch(a.Prefetch), middleware.Drain(a.Drain)}
	if a.Keyed {
		return append(layers, middleware.SessionOrder(a.Concurrency))
	}
	return append(layers, middleware.Concurrency(a.Concurrency))
}

// consume runs a consumer until ctx ends, then drains and closes.
func consume(ctx context.Context, a consumerArgs, net *faultnet.Net, emit func(history.Event)) error {
	opening, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	client, err := a.open(opening, net, emit)
	if err != nil && ctx.Err() != nil {
		return nil // told to leave before it had come
	}
	if err != nil {
		return err
	}
	err = client.Consume(ctx, core.Subscription{From: a.Dest, Group: group, Name: "faults"}, a.handler(emit), a.layers()...)
	return errors.Join(err, call(emit, "close", closeLimit, client.Close))
}

func (a consumerArgs) handler(emit func(history.Event)) core.Handler {
	return func(ctx context.Context, d *core.Delivery) error {
		e := history.Event{
			Op: history.OpStart, ID: d.ID, Group: group, Dest: a.Dest.Name, Key: d.Key, N: number(&d.Message),
			Attempt: d.Attempt, Partition: d.Partition, Position: taps.Position(d.Offset),
		}
		emit(e)
		e.Op, e.Outcome = history.OpEnd, history.OK
		hold := a.Hold
		if h, ok := a.HoldIDs[d.ID]; ok {
			hold = h
		}
		t := time.NewTimer(hold)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			e.Outcome = history.Cancelled
			emit(e)
			return context.Cause(ctx)
		}
		if a.Forward.Name != "" {
			d.Publish(a.Forward, d.Forward())
		}
		emit(e)
		return nil
	}
}

type publisherArgs struct {
	target
	Name    string        // the part of the ids before the counter: Spec.Name
	Keys    int           // 0 = no key
	Rate    int           // messages a second, all senders together
	Senders int           // 0 = 4
	Count   int           // messages in all, 0 = until it is told to stop
	Body    int           // bytes of padding
	Timeout time.Duration // of one Publish, 0 = 3 s
}

// publish sends until ctx ends or Count is reached. A publish under way is never cut
// short by the stop: its outcome is the point.
func publish(ctx context.Context, a publisherArgs, net *faultnet.Net, emit func(history.Event)) error {
	setDefault(&a.Senders, 4)
	setDefault(&a.Timeout, 3*time.Second)
	opening, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	client, err := a.open(opening, net, emit)
	if err != nil && ctx.Err() != nil {
		return nil // told to leave before it had come
	}
	if err != nil {
		return err
	}
	p := &publisher{publisherArgs: a, client: client, emit: emit}
	var senders sync.WaitGroup
	for i := range a.Senders {
		senders.Go(func() { p.send(ctx, i) })
	}
	senders.Wait()
	if a.Count > 0 {
		<-ctx.Done() // stays connected until it is told to go
	}
	return call(emit, "close", closeLimit, client.Close)
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

type publisher struct {
	publisherArgs
	client  *core.Client
	emit    func(history.Event)
	counter atomic.Int64
}

// send is one sender. It alone has its keys, so the numbers within a key are published
// one after the other.
func (p *publisher) send(ctx context.Context, sender int) {
	pace := time.NewTicker(time.Second * time.Duration(p.Senders) / time.Duration(p.Rate))
	defer pace.Stop()
	next := map[string]int{}
	for turn := 0; ; turn++ {
		select {
		case <-ctx.Done():
			return
		case <-pace.C:
		}
		if ctx.Err() != nil {
			return // both were ready: another publish would take its Timeout more
		}
		n := p.counter.Add(1)
		if p.Count > 0 && n > int64(p.Count) {
			return
		}
		k := ""
		if p.Keys > 0 {
			per := max(p.Keys/p.Senders, 1)
			k = "k" + strconv.Itoa(sender*per+turn%per)
		}
		next[k]++
		p.one(p.Name+"."+strconv.FormatInt(n, 10), k, next[k])
	}
}

func (p *publisher) one(id, k string, n int) {
	if k == "" {
		n = 0 // no order was asked for
	}
	e := history.Event{Op: history.OpPub, ID: id, Dest: p.Dest.Name, Key: k, N: n}
	p.emit(e)
	err := call(p.emit, "publish-"+id, p.Timeout, func(ctx context.Context) error {
		return p.client.Publish(ctx, p.Dest, message(id, k, n, p.Body))
	})
	e.Op, e.Class = history.OpPubd, ""
	switch {
	case err == nil:
		e.Outcome = history.OK
	case errors.Is(err, core.ErrIndeterminate):
		e.Outcome, e.Class = history.Unknown, fmt.Sprintf("%.300v", err)
	default:
		e.Outcome, e.Class = history.Rejected, fmt.Sprintf("%.300v", err)
	}
	p.emit(e)
}

// message carries its own place, so that a mix-up shows.
func message(id, k string, n, padding int) *core.Message {
	return &core.Message{
		ID: id, Key: k, Headers: []core.Header{{Key: "n", Value: strconv.Itoa(n)}},
		Body: []byte(id + "|" + k + "|" + strconv.Itoa(n) + "|" + strings.Repeat("x", padding)),
	}
}

// number is n of message.
func number(m *driver.Message) int {
	f := strings.Split(string(m.Body), "|")
	if len(f) != 4 {
		return -1
	}
	n, err := strconv.Atoi(f[2])
	if err != nil {
		return -1
	}
	return n
}

func intact(m *driver.Message) bool {
	f := strings.Split(string(m.Body), "|")
	header := ""
	for _, h := range m.Headers {
		if h.Key == "n" {
			header = h.Value
		}
	}
	return len(f) == 4 && f[0] == m.ID && f[1] == m.Key && f[2] == header && strings.Trim(f[3], "x") == ""
}
