// Package chaos runs workers as processes of their own, so that killing and
// freezing them is real, and gathers what they say into one history.
//
// A worker is this same binary: main and TestMain call [WorkerMain] first, which
// returns at once in the parent and never in a child. What a child does is a named
// function:
//
//	chaos.Register("consumer", func(ctx context.Context, w *chaos.Worker) error { … })
//
//	lab := chaos.NewLab()
//	defer lab.Close()
//	p, err := lab.Start(chaos.Spec{Name: "w1", Body: "consumer", Args: args})
//	err = lab.Aim(ctx, chaos.Aim{ID: "p1.17", Hold: 100 * time.Millisecond, Do: (*chaos.Proc).Kill})
//	h := lab.History()
//
// The protocol: JSON lines; commands on stdin, events (package history) on stdout,
// logs on stderr. A pipe outlives its writer, so a SIGKILL loses no line that was
// written; nothing is synced.
package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	ossignal "os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/varal-go/varal/test/lab/history"
)

// The environment that makes a process a worker.
const (
	envBody = "VARAL_CHAOS_WORKER"
	envProc = "VARAL_CHAOS_PROC"
	envGen  = "VARAL_CHAOS_GEN"
	envTick = "VARAL_CHAOS_TICK"
)

// Exit codes of a worker.
const (
	ExitOK      = 0
	ExitFailed  = 1 // the body returned an error, printed on stderr
	ExitUnknown = 3 // no body of that name, or no usable environment
)

// Command is one line on a worker's stdin. Cmd "args" and "ping" are the
// package's own; everything else reaches the body.
type Command struct {
	Cmd  string          `json:"cmd"`
	ID   string          `json:"id,omitempty"`
	Data json.RawMessage `json:"data,omitempty"`
}

// Body is what a worker does. ctx ends with SIGTERM, or when the parent closed the
// worker's stdin (it is gone). A nil return is exit 0.
type Body func(ctx context.Context, w *Worker) error

var (
	bodiesMu sync.Mutex
	bodies   = map[string]Body{}
)

// Register names a body; parent and child must both do so, usually in an init. It
// panics when the name is taken: two workers of one name are a mistake in the
// program, not in its input.
func Register(name string, body Body) {
	bodiesMu.Lock()
	defer bodiesMu.Unlock()
	if _, ok := bodies[name]; ok || body == nil {
		panic("chaos: body " + strconv.Quote(name) + " is nil or registered already")
	}
	bodies[name] = body
}

// Worker is a child's side of the protocol.
type Worker struct {
	name     string
	gen      int
	out      *history.Writer
	args     json.RawMessage
	commands chan Command
	start    time.Time
}

// Emit writes an event; Proc, Gen, Seq and T are filled in. Safe for concurrent
// use. An error means that the parent is gone, or that the event is too long.
func (w *Worker) Emit(e history.Event) error { return w.out.Emit(e) }

// Name is Spec.Name.
func (w *Worker) Name() string { return w.name }

// Gen counts the incarnations of Name, from 1.
func (w *Worker) Gen() int { return w.gen }

// Args is Spec.Args as JSON; "null" when there were none.
func (w *Worker) Args() json.RawMessage { return w.args }

// Commands delivers what the parent sends. It is closed when stdin ends. A body
// that does not read it holds up the answers to pings after 1,024 commands.
func (w *Worker) Commands() <-chan Command { return w.commands }

// WorkerMain runs the worker this process was started as, and exits; in any other
// process it returns at once. Call it first in main and TestMain, before flags are
// parsed.
func WorkerMain() {
	name, ok := os.LookupEnv(envBody)
	if !ok {
		return
	}
	os.Exit(runWorker(name))
}

func runWorker(name string) int {
	bodiesMu.Lock()
	body := bodies[name]
	bodiesMu.Unlock()
	gen, err := strconv.Atoi(os.Getenv(envGen))
	tick, err2 := time.ParseDuration(os.Getenv(envTick))
	if body == nil || err != nil || err2 != nil {
		fmt.Fprintf(os.Stderr, "chaos: no body %q registered in this binary, or a broken environment\n", name)
		return ExitUnknown
	}
	start := time.Now()
	w := &Worker{
		name: os.Getenv(envProc), gen: gen, start: start, commands: make(chan Command, 1024), args: json.RawMessage("null"),
		out: history.NewWriter(os.Stdout, os.Getenv(envProc), gen, func() int64 { return int64(time.Since(start)) }),
	}
	// The children of a worker are not workers.
	for _, k := range []string{envBody, envProc, envGen, envTick} {
		_ = os.Unsetenv(k)
	}
	if err := w.run(body, tick); err != nil {
		fmt.Fprintf(os.Stderr, "chaos: %s: %v\n", name, err)
		return ExitFailed
	}
	return ExitOK
}

// run says hello, runs the body, says bye. The reader of stdin is not waited for:
// the process ends.
func (w *Worker) run(body Body, tick time.Duration) error {
	ctx, stop := ossignal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := bufio.NewReader(os.Stdin)
	first, err := readCommand(in)
	if err != nil || first.Cmd != "args" {
		return fmt.Errorf("the first command must be args (%q, %w)", first.Cmd, err)
	}
	if first.Data != nil {
		w.args = first.Data
	}
	if err := w.Emit(history.Event{Op: history.OpHello}); err != nil {
		return err
	}
	go func() {
		defer cancel() // stdin ended: nobody would read what we say
		defer close(w.commands)
		w.listen(in)
	}()
	var ticking sync.WaitGroup
	if tick > 0 {
		ticking.Go(func() { w.tick(ctx, tick) })
	}
	err = body(ctx, w)
	cancel()
	ticking.Wait()
	return errors.Join(err, w.Emit(history.Event{Op: history.OpBye}))
}

func (w *Worker) listen(in *bufio.Reader) {
	for {
		c, err := readCommand(in)
		switch {
		case errors.Is(err, errCommand):
			fmt.Fprintln(os.Stderr, err)
		case err != nil:
			return
		case c.Cmd == "ping":
			if w.Emit(history.Event{Op: history.OpPong, ID: c.ID}) != nil {
				return
			}
		default:
			w.commands <- c
		}
	}
}

func (w *Worker) tick(ctx context.Context, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if w.Emit(history.Event{Op: history.OpTick}) != nil {
				return
			}
		}
	}
}

var errCommand = errors.New("chaos: not a command")

func readCommand(in *bufio.Reader) (c Command, err error) {
	line, err := in.ReadBytes('\n')
	if err != nil {
		return c, fmt.Errorf("chaos: stdin: %w", err)
	}
	if json.Unmarshal(line, &c) != nil || c.Cmd == "" {
		return c, fmt.Errorf("%w: %.80q", errCommand, line)
	}
	return c, nil
}

// writeCommand writes one line.
func writeCommand(w io.Writer, c Command) error {
	b, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("chaos: command %q: %w", c.Cmd, err)
	}
	_, err = w.Write(append(b, '\n'))
	return err
}
