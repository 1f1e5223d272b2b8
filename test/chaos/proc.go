package chaos

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/varal-go/varal/test/lab/history"
)

// Spec says which worker to start.
type Spec struct {
	Name string // Proc of its events. Required; the same name again is its next generation
	Body string // as registered. Required
	Args any    // for Worker.Args, encoded as JSON
	// Command to run instead of this binary; it must call WorkerMain, or speak the
	// protocol.
	Command []string
	Env     []string      // additions, "NAME=value"
	Stderr  io.Writer     // its logs; nil = kept, see Proc.Stderr
	Tick    time.Duration // 0 = 10 ms, < 0 = no ticks
}

// ErrEnded is the error of a signal or command for a process that has ended.
var ErrEnded = errors.New("chaos: the process has ended")

// Proc is one incarnation of a worker. All methods may be called concurrently.
type Proc struct {
	lab    *Lab
	spec   Spec
	gen    int
	cmd    *exec.Cmd
	exited chan struct{}
	stderr tail

	inMu sync.Mutex
	in   io.WriteCloser

	mu     sync.Mutex
	events []history.Event
	report history.Report
	pings  []history.Ping
	sent   map[string]int64         // pings on their way
	pongs  map[string]chan struct{} // who waits for them
	next   int
	code   int
	signal string
	frozen bool
}

// stderrKept is how much of a worker's log is kept for a failure's report.
const stderrKept = 64 << 10

// tail keeps the last bytes written.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if over := len(t.b) - stderrKept; over > 0 {
		t.b = bytes.Clone(t.b[over:])
	}
	return len(p), nil
}

// Start starts a worker and compares its clock with the lab's. The process is up
// and has said hello when Start returns nil.
func (l *Lab) Start(s Spec) (*Proc, error) {
	args, err := json.Marshal(s.Args)
	if err != nil {
		return nil, fmt.Errorf("chaos: Spec.Args of %s: %w", s.Name, err)
	}
	if s.Name == "" || s.Body == "" || s.Name == "lab" {
		return nil, errors.New(`chaos: Spec.Name and Spec.Body are required, and "lab" is the lab's own name`)
	}
	p := &Proc{
		lab: l, spec: s, exited: make(chan struct{}),
		sent: map[string]int64{}, pongs: map[string]chan struct{}{},
	}
	if err := l.launch(p); err != nil {
		return nil, err
	}
	if err := p.Send(Command{Cmd: "args", Data: args}); err != nil {
		_ = p.Kill()
		return nil, err
	}
	if err := p.Ping(20, 30*time.Second); err != nil {
		_ = p.Kill()
		return nil, fmt.Errorf("chaos: %s did not come up: %w; its log: %s", s.Name, err, p.Stderr())
	}
	return p, nil
}

// launch starts the process and its reader, under the lab's lock: Close must see
// either no process or all of it.
func (l *Lab) launch(p *Proc) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errors.New("chaos: Start after Close")
	}
	l.gens[p.spec.Name]++
	p.gen = l.gens[p.spec.Name]
	cmd, err := command(p.spec, p.gen)
	if err != nil {
		return err
	}
	cmd.Stderr = &p.stderr
	if p.spec.Stderr != nil {
		cmd.Stderr = io.MultiWriter(&p.stderr, p.spec.Stderr)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("chaos: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("chaos: %w", err)
	}
	if err := cmd.Start(); err != nil {
		l.gens[p.spec.Name]--
		return fmt.Errorf("chaos: start %s: %w", p.spec.Name, err)
	}
	p.cmd, p.in = cmd, in
	l.procs = append(l.procs, p)
	l.wg.Go(func() { p.follow(out) })
	return nil
}

func command(s Spec, gen int) (*exec.Cmd, error) {
	argv := s.Command
	if len(argv) == 0 {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("chaos: find this binary: %w", err)
		}
		argv = []string{self}
	}
	tick := s.Tick
	if tick == 0 {
		tick = 10 * time.Millisecond
	}
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // Kill and Wait end it, no context
	cmd.Env = append(append(os.Environ(), s.Env...),
		envBody+"="+s.Body, envProc+"="+s.Name, envGen+"="+strconv.Itoa(gen), envTick+"="+tick.String())
	return cmd, nil
}

// follow reads the log to its end, then collects the process.
func (p *Proc) follow(out io.Reader) {
	report, _ := history.Read(out, func(e history.Event) error {
		p.take(e)
		return nil
	})
	_ = p.cmd.Wait() // after the last read: Wait closes the pipe
	_ = p.in.Close()
	p.mu.Lock()
	p.report = report
	p.code = p.cmd.ProcessState.ExitCode()
	p.signal = killedBy(p.cmd.ProcessState)
	for id, c := range p.pongs {
		close(c)
		delete(p.pongs, id)
	}
	p.mu.Unlock()
	close(p.exited)
	p.lab.mu.Lock()
	p.lab.wake()
	p.lab.mu.Unlock()
}

func (p *Proc) take(e history.Event) {
	now := p.lab.Now()
	p.mu.Lock()
	p.events = append(p.events, e)
	if sent, ok := p.sent[e.ID]; ok && e.Op == history.OpPong {
		p.pings = append(p.pings, history.Ping{Sent: sent, Received: now, Stamp: e.T})
		delete(p.sent, e.ID)
		if c := p.pongs[e.ID]; c != nil {
			close(c)
			delete(p.pongs, e.ID)
		}
	}
	p.mu.Unlock()
	p.lab.mu.Lock()
	p.lab.wake()
	p.lab.mu.Unlock()
}

// since returns the events from index i on. Events are only ever appended, so the
// slice is safe to read without the lock.
func (p *Proc) since(i int) []history.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.events[min(max(i, 0), len(p.events)):len(p.events):len(p.events)]
}

func (p *Proc) log() history.Log {
	p.mu.Lock()
	defer p.mu.Unlock()
	return history.Log{
		Proc: p.spec.Name, Gen: p.gen, Report: p.report,
		Events: append([]history.Event(nil), p.events...), Pings: append([]history.Ping(nil), p.pings...),
	}
}

// Name is Spec.Name.
func (p *Proc) Name() string { return p.spec.Name }

// Gen counts the incarnations of Name, from 1.
func (p *Proc) Gen() int { return p.gen }

// Pid is the process id.
func (p *Proc) Pid() int { return p.cmd.Process.Pid }

// Stderr is the end of what the process logged, at most 64 KiB.
func (p *Proc) Stderr() string {
	p.stderr.mu.Lock()
	defer p.stderr.mu.Unlock()
	return string(p.stderr.b)
}

// Exited is closed when the process has ended and its log is read.
func (p *Proc) Exited() <-chan struct{} { return p.exited }

// Wait waits for the end, at most limit, and returns the exit code; -1: a signal
// ended it.
func (p *Proc) Wait(limit time.Duration) (int, error) {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-p.exited:
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.code, nil
	case <-t.C:
		return 0, fmt.Errorf("chaos: %s/%d still runs after %s", p.spec.Name, p.gen, limit)
	}
}

// Send sends a command. A frozen worker whose pipe is full makes it wait.
func (p *Proc) Send(c Command) error {
	select {
	case <-p.exited:
		return ErrEnded
	default:
	}
	p.inMu.Lock()
	defer p.inMu.Unlock()
	if err := writeCommand(p.in, c); err != nil {
		return fmt.Errorf("chaos: send %q to %s: %w", c.Cmd, p.spec.Name, err)
	}
	return nil
}

// Ping compares the clocks n times; the best round trip counts. The first pong also
// shows that the worker is up.
func (p *Proc) Ping(n int, limit time.Duration) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for range n {
		p.mu.Lock()
		if p.frozen {
			p.mu.Unlock()
			return fmt.Errorf("chaos: %s is frozen and answers no ping", p.spec.Name)
		}
		p.next++
		id := "ping-" + strconv.Itoa(p.next)
		pong := make(chan struct{})
		p.pongs[id] = pong
		p.sent[id] = p.lab.Now()
		p.mu.Unlock()
		if err := p.Send(Command{Cmd: "ping", ID: id}); err != nil {
			return err
		}
		select {
		case <-pong:
		case <-p.exited:
			return ErrEnded
		case <-deadline.C:
			return fmt.Errorf("chaos: %s did not answer a ping within %s", p.spec.Name, limit)
		}
	}
	return nil
}
