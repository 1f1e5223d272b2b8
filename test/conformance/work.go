package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// Job is what a process of its own does, so that it can be killed and frozen.
type Job struct {
	// Role: "publish" sends Count messages one by one; "consume" handles messages.
	Role string
	// On is the destination of either role; Group and Start are for consume.
	On    driver.Destination
	Group string
	Start driver.Position
	// IDs of what to publish, and the Key of all.
	IDs []string
	Key string
	// Hold is how long the handler takes; negative = for ever.
	Hold time.Duration
	// Concurrency, MaxInFlight and ByKey (the order) are the policy of a consumer.
	Concurrency int
	MaxInFlight int
	ByKey       bool
}

// Event is what a job reports.
type Event struct {
	// Kind: ready (the subscription runs), start and done (of a handler), ok and failed
	// (of a publish), signal (the engine's, its name in Text), error.
	Kind string
	// ID and Key are the message's; Text is an error or a signal's name.
	ID   string `json:",omitempty"`
	Key  string `json:",omitempty"`
	Text string `json:",omitempty"`
	// At is the clock of the process that reports.
	At time.Time
}

// Work does a job until ctx ends. A process started for Harness.Spawn calls it with a
// driver of its own and writes the events to its standard output, one JSON object a
// line; see WorkMain.
func Work(ctx context.Context, d driver.Driver, job Job, report func(Event)) error {
	say := func(e Event) { e.At = time.Now(); report(e) }
	cl := core.NewClient(d, core.Options{Provision: core.ProvisionNone, Observer: jobObserver(say), Logger: slog.New(slog.DiscardHandler)})
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = cl.Close(end)
	}()
	if job.Role == "publish" {
		for _, id := range job.IDs {
			err := cl.Publish(ctx, job.On, &core.Message{ID: id, Key: job.Key, Body: []byte("body of " + id)})
			if err != nil {
				say(Event{Kind: "failed", ID: id, Text: err.Error()})
				continue
			}
			say(Event{Kind: "ok", ID: id})
		}
		<-ctx.Done()
		return nil
	}
	handle := func(ctx context.Context, d *core.Delivery) error {
		say(Event{Kind: "start", ID: d.ID, Key: d.Key})
		if err := hold(ctx, job.Hold); err != nil {
			say(Event{Kind: "cancelled", ID: d.ID, Key: d.Key, Text: err.Error()})
			return err
		}
		say(Event{Kind: "done", ID: d.ID, Key: d.Key})
		return nil
	}
	s, err := cl.Start(ctx, core.Subscription{From: job.On, Group: job.Group, Start: job.Start}, handle, policy(func(p *core.Policy) {
		p.Concurrency, p.MaxInFlight = job.Concurrency, job.MaxInFlight
		if job.ByKey {
			p.Order = core.ByKey
		}
	}))
	if err != nil {
		say(Event{Kind: "error", Text: err.Error()})
		return err
	}
	for len(s.Status().Partitions) == 0 && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
	say(Event{Kind: "ready"})
	return s.Wait()
}

func hold(ctx context.Context, d time.Duration) error {
	if d < 0 {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// jobObserver reports the engine's signals as events.
type jobObserver func(Event)

func (jobObserver) Published(core.PublishInfo)                 {}
func (jobObserver) Attempted(*core.Delivery, core.AttemptInfo) {}
func (jobObserver) Settled(core.SettleInfo)                    {}
func (o jobObserver) Signalled(s core.Signal) {
	o(Event{Kind: "signal", ID: s.ID, Text: string(s.Kind)})
}

// WorkMain is the whole of a child process: it reads the job from in, works with the
// driver and writes events to out.
func WorkMain(ctx context.Context, d driver.Driver, in io.Reader, out io.Writer) error {
	var job Job
	if err := json.NewDecoder(in).Decode(&job); err != nil {
		return err
	}
	var mu sync.Mutex
	enc := json.NewEncoder(out)
	return Work(ctx, d, job, func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		_ = enc.Encode(e)
	})
}

// Process is a running job.
type Process struct {
	// Kill ends it without a chance to say goodbye, Freeze stops it, Thaw lets it go on.
	// Freeze and Thaw are nil where the system cannot do that to another process.
	Kill, Freeze, Thaw func()

	ended <-chan struct{} // closed when nothing more is reported after Kill; nil = at once

	mu     sync.Mutex
	events []Event
}

// gone waits, after Kill, until all that the process had reported is here.
func (p *Process) gone() {
	if p.ended != nil {
		<-p.ended
	}
}

// Report notes an event; whoever runs the job calls it.
func (p *Process) Report(e Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, e)
}

func (p *Process) all() []Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Event(nil), p.events...)
}

// of returns the events of a kind.
func (p *Process) of(kind string) (out []Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.events {
		if e.Kind == kind {
			out = append(out, e)
		}
	}
	return out
}

// SpawnCommand runs a job in the process of cmd, whose main calls WorkMain with its
// standard input and output.
func SpawnCommand(t testing.TB, cmd *exec.Cmd, job Job) *Process {
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &Process{}
	p.Kill = func() { _ = cmd.Process.Kill() }
	p.Freeze, p.Thaw = freezer(cmd.Process)
	read := make(chan struct{})
	p.ended = read
	go func() {
		defer close(read)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var e Event
			if json.Unmarshal(lines.Bytes(), &e) == nil {
				p.Report(e)
			}
		}
	}()
	t.Cleanup(func() {
		if p.Thaw != nil {
			p.Thaw()
		}
		p.Kill()
		<-read
		_ = cmd.Wait()
	})
	if err := json.NewEncoder(in).Encode(job); err != nil {
		t.Fatal(err)
	}
	return p
}
