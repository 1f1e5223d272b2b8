package adaptertest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/varal-go/varal/adapters/internal/adaptertest"
	"github.com/varal-go/varal/adapters/memory"
	"github.com/varal-go/varal/core/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// judged is a test that may fail without failing ours.
type judged struct {
	testing.TB
	said string
	ends []func()
}

func (j *judged) Cleanup(f func()) { j.ends = append(j.ends, f) }
func (j *judged) Fatal(args ...any) {
	j.said = strings.TrimSuffix(fmt.Sprintln(args...), "\n")
	runtime.Goexit()
}
func (j *judged) Error(args ...any)                 { j.said += fmt.Sprintln(args...) }
func (j *judged) Fatalf(format string, args ...any) { j.Fatal(fmt.Sprintf(format, args...)) }
func (j *judged) Skipf(format string, args ...any) {
	j.Fatal("skipped: " + fmt.Sprintf(format, args...))
}

// verdict is what f ends its test with, "" = it passes.
func verdict(t *testing.T, f func(t testing.TB)) string {
	t.Helper()
	j := &judged{TB: t}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer func() {
			for _, end := range slices.Backward(j.ends) {
				end()
			}
		}()
		f(j)
	})
	wg.Wait()
	return j.said
}

// A helper that could not fail would let every test that uses it pass.
func TestWhatEndsATest(t *testing.T) {
	t.Parallel()
	d := adaptertest.Open(t, memory.Open, memory.Config{})
	to := adaptertest.Fresh(t, d, driver.Destination{Shape: driver.Queue})
	c := adaptertest.Subscribe(t, d, driver.Subscription{From: to})
	adaptertest.Publish(t, d, to, adaptertest.Messages(0, 3)...)
	got := adaptertest.Receive(t, c, 2)
	if ids := adaptertest.IDs(got); !slices.Equal(ids, []string{"m-000000", "m-000001"}) {
		t.Error(ids)
	}
	adaptertest.MustSettle(t, c, driver.Ack, got...)
	nowhere := driver.Destination{Shape: driver.Queue, Name: "nowhere"}
	for _, x := range []struct {
		want string
		f    func(t testing.TB)
	}{
		{`unexpected 1 messages, first "m-000002"`, func(t testing.TB) { adaptertest.Quiet(t, c, time.Minute) }},
		{"", func(t testing.TB) { adaptertest.Quiet(t, c, 10*time.Millisecond) }},
		{"lease lost", func(t testing.TB) { adaptertest.MustSettle(t, c, driver.Ack, driver.Received{}) }},
		{"nowhere", func(t testing.TB) { adaptertest.Publish(t, d, nowhere, adaptertest.Message(0)) }},
		{"nowhere", func(t testing.TB) { adaptertest.Subscribe(t, d, driver.Subscription{From: nowhere}) }},
		{"no good", func(t testing.TB) {
			bad := func(context.Context, int) (driver.Driver, error) { return nil, errors.New("no good") }
			adaptertest.Open(t, bad, 1)
		}},
		{"want class", func(t testing.TB) { adaptertest.WantClass(t, io.EOF, driver.Transient) }},
		{"", func(t testing.TB) { adaptertest.WantClass(t, nil, 0) }},
		{"VARAL_NO SUCH BROKER_URL is not set", func(t testing.TB) { adaptertest.URL(t, "no such broker") }},
	} {
		if said := verdict(t, x.f); !strings.Contains(said, x.want) || x.want == "" && said != "" {
			t.Errorf("%q, want %q", said, x.want)
		}
	}
}

func TestEventually(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		late := func() bool { return time.Since(begun) >= time.Minute }
		if said := verdict(t, func(t testing.TB) { adaptertest.Eventually(t, "a minute", 59*time.Second, late) }); said != "waited 59s in vain for a minute" {
			t.Errorf("%q", said)
		}
		if said := verdict(t, func(t testing.TB) { adaptertest.Eventually(t, "a minute", 2*time.Second, late) }); said != "" {
			t.Errorf("%q", said)
		}
	})
}

// accepting answers nothing.
func accepting(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

func TestCutter(t *testing.T) {
	t.Parallel()
	var c adaptertest.Cutter
	addr := accepting(t)
	dial := func() (net.Conn, error) { return c.Dial(t.Context(), "tcp", addr) }
	for _, cut := range []func(){c.Cut, c.Down} {
		conn, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		cut()
		if _, err := conn.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a connection outlived a cut: %v", err)
		}
	}
	if _, err := dial(); err == nil {
		t.Error("a network that is down connects")
	}
	c.Up()
	if _, err := dial(); err != nil {
		t.Error(err)
	}
	c.Cut()
}
