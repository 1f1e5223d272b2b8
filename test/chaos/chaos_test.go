package chaos_test

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/varal-go/varal/test/chaos"
	"github.com/varal-go/varal/test/lab/check"
	"github.com/varal-go/varal/test/lab/history"
)

func TestMain(m *testing.M) {
	chaos.WorkerMain()
	goleak.VerifyTestMain(m)
}

type args struct {
	Say string
	IDs []string
}

func init() {
	// handle: a handler for each command "deliver"; it ends with "release".
	chaos.Register("handle", func(ctx context.Context, w *chaos.Worker) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case c, ok := <-w.Commands():
				if !ok {
					return nil
				}
				e := history.Event{Op: history.OpStart, ID: c.ID, Group: "g", Attempt: 1}
				if c.Cmd == "release" {
					e = history.Event{Op: history.OpEnd, ID: c.ID, Group: "g", Outcome: history.OK}
				}
				if err := w.Emit(e); err != nil {
					return err
				}
			}
		}
	})
	chaos.Register("args", func(_ context.Context, w *chaos.Worker) error {
		var a args
		if err := json.Unmarshal(w.Args(), &a); err != nil {
			return err
		}
		for _, id := range a.IDs {
			if err := w.Emit(history.Event{Op: history.OpRecv, ID: id}); err != nil {
				return err
			}
		}
		<-w.Commands()
		return errors.New(a.Say)
	})
	chaos.Register("flood", func(_ context.Context, w *chaos.Worker) error {
		for {
			if err := w.Emit(history.Event{Op: history.OpRecv, ID: "p1.1"}); err != nil {
				return err
			}
		}
	})
}

func newLab(t *testing.T) (*chaos.Lab, context.Context) {
	t.Helper()
	l := chaos.NewLab()
	t.Cleanup(func() { _ = l.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return l, ctx
}

func start(t *testing.T, l *chaos.Lab, s chaos.Spec) *chaos.Proc {
	t.Helper()
	p, err := l.Start(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func send(t *testing.T, p *chaos.Proc, cmd, id string) {
	t.Helper()
	if err := p.Send(chaos.Command{Cmd: cmd, ID: id}); err != nil {
		t.Fatal(err)
	}
}

func skipWindows(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("no SIGSTOP or SIGTERM for another process here")
	}
}

func TestArgsExitCodeAndStderr(t *testing.T) {
	t.Parallel()
	l, _ := newLab(t)
	p := start(t, l, chaos.Spec{Name: "w1", Body: "args", Args: args{"out of flour", []string{"a.1", "a.2"}}})
	send(t, p, "go on", "")
	code, err := p.Wait(20 * time.Second)
	if code != chaos.ExitFailed || err != nil || !strings.Contains(p.Stderr(), "out of flour") {
		t.Fatalf("exit %d, %v, %q", code, err, p.Stderr())
	}
	h := l.History()
	if len(h.Problems) > 0 {
		t.Error(h.Problems)
	}
	var ids []string
	for _, e := range h.Events {
		if e.Op == history.OpRecv {
			ids = append(ids, e.ID)
		}
		if e.Proc == "w1" && e.Eps <= 0 {
			t.Errorf("no clock error known: %+v", e)
		}
	}
	if strings.Join(ids, " ") != "a.1 a.2" || h.Events[len(h.Events)-1].Op != history.OpBye {
		t.Errorf("%v, last %+v", ids, h.Events[len(h.Events)-1])
	}
	if err := p.Kill(); !errors.Is(err, chaos.ErrEnded) {
		t.Errorf("kill of an ended process: %v", err)
	}
}

func TestUnknownBody(t *testing.T) {
	t.Parallel()
	l, _ := newLab(t)
	if _, err := l.Start(chaos.Spec{Name: "w1", Body: "nobody"}); err == nil || !strings.Contains(err.Error(), `no body "nobody"`) {
		t.Errorf("%v", err)
	}
	if _, err := l.Start(chaos.Spec{Name: "w1"}); err == nil {
		t.Error("a Spec without Body was taken")
	}
}

// The kill hits a handler that has started and holds, and the checks explain the
// second start by it.
func TestAimedKill(t *testing.T) {
	t.Parallel()
	l, ctx := newLab(t)
	p := start(t, l, chaos.Spec{Name: "w1", Body: "handle"})
	l.Emit(history.Event{Op: history.OpPub, ID: "a.1"})
	l.Emit(history.Event{Op: history.OpPubd, ID: "a.1", Outcome: history.OK})
	aimed := make(chan error, 1)
	go func() { aimed <- l.Aim(ctx, chaos.Aim{ID: "a.1", Hold: 100 * time.Millisecond}) }()
	send(t, p, "deliver", "a.0")
	send(t, p, "release", "a.0")
	send(t, p, "deliver", "a.1")
	if err := <-aimed; err != nil {
		t.Fatal(err)
	}
	if code, err := p.Wait(time.Second); code != -1 && runtime.GOOS != "windows" || err != nil {
		t.Errorf("exit %d, %v", code, err)
	}
	p2 := start(t, l, chaos.Spec{Name: "w1", Body: "handle"})
	if p2.Gen() != 2 {
		t.Errorf("generation %d", p2.Gen())
	}
	send(t, p2, "deliver", "a.1")
	send(t, p2, "release", "a.1")
	if _, _, err := l.Wait(ctx, func(e history.Event) bool { return e.Op == history.OpEnd && e.ID == "a.1" }); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	h := l.History()
	if len(h.Problems) > 0 {
		t.Error(h.Problems)
	}
	r := check.Duplicates.Fn(h, check.Params{})
	if r.Outcome != check.Held || r.Counts["crash"] != 1 {
		t.Errorf("%+v", r)
	}
}

func TestAimMissed(t *testing.T) {
	t.Parallel()
	l, ctx := newLab(t)
	p := start(t, l, chaos.Spec{Name: "w1", Body: "handle"})
	aimed, taken := make(chan error, 1), make(chan struct{})
	go func() {
		// Hold is what the release has to be quicker than.
		aimed <- l.Aim(ctx, chaos.Aim{ID: "a.1", Hold: 2 * time.Second, Taken: func(history.Event) { close(taken) }})
	}()
	send(t, p, "deliver", "a.1")
	select {
	case <-taken:
	case err := <-aimed:
		t.Fatalf("the aim was not taken: %v", err)
	}
	send(t, p, "release", "a.1")
	if err := <-aimed; !errors.Is(err, chaos.ErrMissed) {
		t.Errorf("%v", err)
	}
}

func TestFreezeAndThaw(t *testing.T) {
	t.Parallel()
	skipWindows(t)
	l, ctx := newLab(t)
	p := start(t, l, chaos.Spec{Name: "w1", Body: "handle", Tick: -1})
	if err := p.Freeze(); err != nil {
		t.Fatal(err)
	}
	send(t, p, "deliver", "a.1")
	short, cancel := context.WithTimeout(ctx, 150*time.Millisecond)
	defer cancel()
	started := func(e history.Event) bool { return e.Op == history.OpStart }
	if _, _, err := l.Wait(short, started); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a frozen worker started a handler (%v)", err)
	}
	if err := p.Ping(1, time.Second); err == nil {
		t.Error("a frozen worker answered a ping")
	}
	if err := p.Thaw(); err != nil {
		t.Fatal(err)
	}
	if _, from, err := l.Wait(ctx, started); err != nil || from != p {
		t.Fatal(err)
	}
}

func TestTermIsGraceful(t *testing.T) {
	t.Parallel()
	skipWindows(t)
	l, _ := newLab(t)
	p := start(t, l, chaos.Spec{Name: "w1", Body: "handle"})
	if err := p.Term(); err != nil {
		t.Fatal(err)
	}
	if code, err := p.Wait(20 * time.Second); code != chaos.ExitOK || err != nil {
		t.Fatalf("exit %d, %v", code, err)
	}
	if h := l.History(); len(h.Problems) > 0 {
		t.Error(h.Problems)
	}
}

// A SIGKILL in the middle of a flood leaves whole lines without a gap.
func TestKilledFloodLeavesNoGap(t *testing.T) {
	t.Parallel()
	l, ctx := newLab(t)
	for range 5 {
		p := start(t, l, chaos.Spec{Name: "w1", Body: "flood"})
		n := 0
		if _, _, err := l.Wait(ctx, func(e history.Event) bool {
			if e.Op == history.OpRecv && e.Gen == p.Gen() {
				n++
			}
			return n > 500
		}); err != nil {
			t.Fatal(err)
		}
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	if h := l.History(); len(h.Problems) > 0 {
		t.Error(h.Problems)
	}
}

func TestCloseKillsWhatRuns(t *testing.T) {
	t.Parallel()
	l, _ := newLab(t)
	p := start(t, l, chaos.Spec{Name: "w1", Body: "handle"})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Exited():
	default:
		t.Fatal("it still runs")
	}
	if _, err := l.Start(chaos.Spec{Name: "w2", Body: "handle"}); err == nil {
		t.Error("Start after Close")
	}
	if err := p.Send(chaos.Command{Cmd: "x"}); !errors.Is(err, chaos.ErrEnded) {
		t.Errorf("%v", err)
	}
}
