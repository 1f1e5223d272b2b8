//go:build unix

package sessions

import (
	"fmt"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/test/chaos"
	"github.com/varal-go/varal/test/lab/check"
	"github.com/varal-go/varal/test/lab/history"
)

// TestPoison: a message whose handler kills the process after two seconds, on a broker that
// counts no deliveries. Processes are started again as they die. After the third unclean
// end it is dead-lettered without being run again; every other message is handled, those
// behind it in its key too, and none of them is taken for the culprit.
func TestPoison(t *testing.T) {
	t.Parallel()
	for name, on := range map[string]func(*testing.T) ground{
		"Kafka": func(t *testing.T) ground { return live(t, "kafka") },
		"Kfake": func(t *testing.T) ground { return faked(t, 1, fakeSession) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			turn(t)
			testPoison(t, on(t))
		})
	}
}

const ends = 3 // core's default

func testPoison(t *testing.T, on ground) {
	s := newScene(t, on, core.Queue("poison").Keyed(4))
	// Flaky and bad ones among the others would blur who was quarantined: none fails.
	a := memberArgs{Concurrency: 8, Prefetch: 64, Work: 20 * time.Millisecond, Poison: "p0.1", Dead: s.dead, Healthy: true}
	names := []string{"c1", "c2"}
	running := map[string]*chaos.Proc{}
	for _, name := range names {
		running[name] = s.start(name, a, true)
	}
	s.one("p0.1", "poisoned", 1)
	stop := s.feed(100, 2, 10)
	defer stop()
	for i := 2; i <= 10; i++ {
		s.one(fmt.Sprint("p0.", i), "poisoned", i)
	}
	deaths := 0
	deadline := time.Now().Add(2 * time.Minute)
	for s.count(history.OpEnd, "p0.10") == 0 {
		if time.Now().After(deadline) || deaths > 2*ends {
			s.explain(s.lab.History())
			t.Fatalf("after %d deaths what is behind the poisoned message has not been handled", deaths)
		}
		select {
		case <-running["c1"].Exited():
			deaths++
			running["c1"] = s.start("c1", a, false)
		case <-running["c2"].Exited():
			deaths++
			running["c2"] = s.start("c2", a, false)
		case <-time.After(100 * time.Millisecond):
		}
	}
	stop()
	s.quarantined = "p0.1"
	s.drained(60 * time.Second)
	s.leave()
	h := s.judge(check.Params{}, "I1", "I2", "I3", "I4", "I6", "I7", "V1", "V2", "V3", "V4", "V5")
	runs, letters, reason := 0, 0, ""
	for i := range h.Events {
		switch e := &h.Events[i]; {
		case e.Op == history.OpStart && e.ID == "p0.1":
			runs++
		case e.Op == history.OpDead && e.ID == "p0.1":
			letters, reason = letters+1, e.Class
		case e.Op == history.OpDead:
			t.Errorf("%s was dead-lettered (%s), and only p0.1 kills", e.ID, e.Class)
		}
	}
	t.Logf("measured: %s: the poisoned message ran %d times, %d processes died, %d copy in the dead letter, reason %q", on.name, runs, deaths, letters, reason)
	if runs != ends || deaths != ends || letters != 1 || reason != "quarantined" {
		t.Errorf("want %d runs, %d deaths, and one copy with reason quarantined", ends, ends)
	}
}

// count counts events of a message so far.
func (s *scene) count(op history.Op, id string) (n int) {
	for _, e := range s.lab.History().Events {
		if e.Op == op && e.ID == id {
			n++
		}
	}
	return n
}
