package soak_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/varal-go/varal/cmd/varal/internal/soak"
	"github.com/varal-go/varal/test/chaos/fakekafka"
	"github.com/varal-go/varal/test/conformance/mutant"
)

// asMember makes the test binary a member.
const asMember = "VARAL_TEST_SOAK_MEMBER"

func TestMain(m *testing.M) {
	if os.Getenv(asMember) != "" {
		if err := soak.Member(os.Stdin, os.Stdout); err != nil {
			_, _ = os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := os.Setenv(asMember, "1"); err != nil { // for those that tests start
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

func small() soak.Options {
	return soak.Options{
		URL: "memory:", Messages: 15_000, Segment: 10_000, Sessions: 50, Partitions: 4, Members: 3, Workers: 8, Ahead: 1000, Service: time.Millisecond,
		Trouble: 150 * time.Millisecond, Kills: 0.5, Transient: 0.1, Dead: 0.01, Payload: 40, Seed: 1, Patience: 20 * time.Second,
	}
}

func TestSoak(t *testing.T) {
	t.Parallel()
	r, err := soak.Run(t.Context(), small())
	if err != nil {
		t.Fatal(err)
	}
	if !r.Clean() || r.Messages != 15_000 || r.Segments != 2 || r.Kills == 0 || r.Leaves == 0 || r.DeadLetters < 50 || r.Faults < 1000 || r.Attempts < r.Messages+r.Faults || r.Rate <= 0 {
		t.Errorf("%+v", r)
	}
}

// Members that are processes, killed with SIGKILL.
func TestProcesses(t *testing.T) {
	t.Parallel()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	keeper, err := fakekafka.NewKeeper(c, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	keeper.Keep(c)
	t.Cleanup(keeper.Close)
	o := small()
	o.URL, o.Program = "kafka://"+c.ListenAddrs()[0]+"?session_timeout=2s", []string{os.Args[0]}
	o.Messages, o.Segment, o.Trouble = 3000, 3000, 400*time.Millisecond
	r, err := soak.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Clean() || r.Messages != 3000 || r.Kills+r.Leaves == 0 {
		t.Errorf("%+v", r)
	}
}

// TestPlantedBugsAreCaught: a broken driver under every member.
func TestPlantedBugsAreCaught(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"swap", "duplicate", "lost-message", "key-dropped", "early-ack"} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			o := small()
			o.Patience, o.Messages = time.Second, 10_000
			at := slices.IndexFunc(mutant.All(), func(m mutant.Mutant) bool { return m.ID == id })
			o.Wrap = mutant.All()[at].Wrap
			r, err := soak.Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if r.Clean() {
				t.Errorf("%+v", r)
			}
		})
	}
}

// errStop ends a run from its own progress.
var errStop = errors.New("enough")

func TestARunGoesOnBehindWhatIsKept(t *testing.T) {
	t.Parallel()
	o := small()
	o.State = filepath.Join(t.TempDir(), "soak.json")
	ctx, cancel := context.WithCancelCause(t.Context())
	o.Watch = func(p soak.Progress) {
		if p.Done > 10_000 {
			cancel(errStop)
		}
	}
	r, err := soak.Run(ctx, o)
	if !errors.Is(err, errStop) || r == nil || r.Messages != 10_000 || r.Segments != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	o.Watch = nil
	r, err = soak.Run(t.Context(), o)
	if err != nil || !r.Clean() || r.Messages != 15_000 || r.Segments != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	again, err := soak.Run(t.Context(), o)
	if err != nil || again.Attempts != r.Attempts {
		t.Errorf("a run that is whole was made again: %+v, %v", again, err)
	}
	other := o
	other.Seed++
	if _, err := soak.Run(t.Context(), other); err == nil || !strings.Contains(err.Error(), "another law") {
		t.Errorf("under another law: %v", err)
	}
	if err := os.WriteFile(o.State, []byte(`{"version":9}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := soak.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "is not the state of a soak") {
		t.Errorf("a foreign file: %v", err)
	}
}

func TestAMemberThatEndsEndsTheRun(t *testing.T) {
	t.Parallel()
	o := small()
	o.URL, o.Program, o.Trouble = "kafka://127.0.0.1:1", []string{os.Args[0]}, 0
	if _, err := soak.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("%v", err)
	}
}

func TestOptionsAreValidated(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*soak.Options){
		"--messages 0":     func(o *soak.Options) { o.Messages = 0 },
		"--segment 0":      func(o *soak.Options) { o.Segment = 0 },
		"--sessions -1":    func(o *soak.Options) { o.Sessions = -1 },
		"--partitions 0":   func(o *soak.Options) { o.Partitions = 0 },
		"--members 0":      func(o *soak.Options) { o.Members = 0 },
		"--workers 0":      func(o *soak.Options) { o.Workers = 0 },
		"--ahead 0":        func(o *soak.Options) { o.Ahead = 0 },
		"--payload 1":      func(o *soak.Options) { o.Payload = 1 },
		"--transient 0.95": func(o *soak.Options) { o.Transient = 0.95 },
		"--dead 2":         func(o *soak.Options) { o.Dead = 2 },
		"--kills -1":       func(o *soak.Options) { o.Kills = -1 },
		"--trouble":        func(o *soak.Options) { o.Trouble = -1 },
	} {
		o := small()
		change(&o)
		if _, err := soak.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
