//go:build unix

package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/varal-go/varal/test/chaos"
	"github.com/varal-go/varal/test/internal/brokers"
)

func TestMain(m *testing.M) {
	chaos.WorkerMain()
	wanted := map[string]bool{"kafka": wants("kafka"), "rabbitmq": wants("rabbitmq"), "redis": wants("redis"), "sqs": wants("sqs")}
	// The shared ones are not ours to hurt, and their URLs would be taken for preset ones.
	for _, name := range []string{"VARAL_KAFKA_URL", "VARAL_RABBITMQ_URL", "VARAL_REDIS_URL", "VARAL_SQS_URL"} {
		_ = os.Unsetenv(name)
	}
	own.wanted = wanted
	code := m.Run()
	own.stop()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// wants tells whether this run is one with that broker.
func wants(name string) bool {
	return os.Getenv("VARAL_"+strings.ToUpper(name)+"_URL") != "" || required(name)
}

func required(name string) bool {
	return slices.Contains(strings.FieldsFunc(os.Getenv("VARAL_REQUIRE"), func(r rune) bool { return r == ',' || r == ' ' }), name)
}

// own are the private brokers.
var own set

type set struct {
	wanted map[string]bool

	mu      sync.Mutex
	started []string
	lock    *os.File
}

func (p *set) options() brokers.Options {
	base, err := strconv.Atoi(os.Getenv("VARAL_FAULTS_PORT_BASE"))
	if err != nil {
		base = (brokers.PortBase() + 1300) % 2700 // within what brokers.Options takes
	}
	return brokers.Options{PortBase: base}
}

// up brings one broker of the set up, or skips the test.
func (p *set) up(t *testing.T, name string) brokers.Report {
	t.Helper()
	if !p.wanted[name] {
		t.Skipf("VARAL_%s_URL is not set: no %s is wanted in this run", strings.ToUpper(name), name)
	}
	if testing.Short() {
		t.Skip("takes minutes: not with -short")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.exclusive(ctx); err != nil {
		t.Fatal(err)
	}
	reports, err := brokers.Up(ctx, p.options(), name)
	if err != nil {
		t.Fatal(err)
	}
	r := reports[0]
	if r.Started {
		p.started = append(p.started, name)
	}
	switch {
	case r.Used():
	case r.State == brokers.Missing && !required(name):
		t.Skipf("no private %s: %s; get it by %s", name, r.Why, r.Get)
	default:
		t.Fatal(r)
	}
	t.Logf("private broker: %s", r)
	return r
}

// exclusive waits for another run of this package by the same user: it would restart
// our brokers under us. The lock ends with the process.
func (p *set) exclusive(ctx context.Context) error {
	if p.lock != nil {
		return nil
	}
	env, err := brokers.EnvFile(p.options())
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(filepath.Dir(env), "faults.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	for syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			_ = f.Close()
			return fmt.Errorf("another run of this package holds %s: %w", f.Name(), ctx.Err())
		}
	}
	p.lock = f
	return nil
}

// stop ends what we started; the data stays.
func (p *set) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.started) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := brokers.Down(ctx, p.options(), p.started...); err != nil {
			fmt.Fprintln(os.Stderr, "faults: the private brokers could not be stopped:", err)
		}
	}
	if p.lock != nil {
		_ = p.lock.Close()
	}
}

// restart ends a broker of the set and starts it on the same data; it returns when it
// serves again.
func (p *set) restart(ctx context.Context, name string, kill bool) error {
	_, err := brokers.Restart(ctx, p.options(), name, kill)
	return err
}
