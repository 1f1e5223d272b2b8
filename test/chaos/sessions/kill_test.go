//go:build unix

package sessions

import (
	"context"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/test/chaos"
	"github.com/varal-go/varal/test/lab/check"
	"github.com/varal-go/varal/test/lab/history"
)

var points = []string{
	beforeStart, afterStart, beforeEnd, afterEnd, settleBegun, settleSent, settleAnswered, revokeBegun, revokeEnded,
}

// victims die at each point. With the survivor they share partitions evenly, and each has
// one to give up when another member joins: the points of a revoke are passed by all.
const (
	victims    = 3
	partitions = (victims + 1) * (victims + 2)
)

// TestKillAtFailpoints: a SIGKILL before and after each step of a message and of a hand-over
// loses nothing, turns nothing around, and has done again only what was not settled.
func TestKillAtFailpoints(t *testing.T) { // not in parallel to the others: see turns
	for name, on := range map[string]func(*testing.T) ground{
		"Kafka":    func(t *testing.T) ground { return live(t, "kafka") },
		"RabbitMQ": func(t *testing.T) ground { return live(t, "rabbitmq") },
		"Redis":    func(t *testing.T) ground { return live(t, "redis") },
		"SQS":      func(t *testing.T) ground { return live(t, "sqs") },
		"Kfake":    func(t *testing.T) ground { return faked(t, 1, fakeSession) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := on(t)
			some := points
			if g.name == "kfake" && (testing.Short() || os.Getenv("VARAL_KAFKA_URL") != "") {
				some = []string{afterStart, settleSent, revokeBegun}
			}
			for _, point := range some {
				t.Run(point, func(t *testing.T) {
					t.Parallel()
					turn(t)
					testKill(t, g, point)
				})
			}
		})
	}
}

func testKill(t *testing.T, on ground, point string) {
	s := newScene(t, on, core.Queue("kill").Keyed(partitions))
	a := memberArgs{Concurrency: 8, Prefetch: 64, Work: 20 * time.Millisecond, Dead: s.dead}
	s.start("c0", a, !on.shares())
	revoke := point == revokeBegun || point == revokeEnded
	a.Alone = revoke && !on.shares()
	var dying []*chaos.Proc
	for i := range victims {
		passes := 1 // a revoke comes once
		if !revoke {
			passes = 2 + 3*i + s.rng.IntN(3)
		}
		dying = append(dying, s.start("c"+strconv.Itoa(i+1), a, !on.shares(), envPoint+"="+point+":"+strconv.Itoa(passes)))
	}
	rate := 160
	if on.slow() {
		rate = 80
	}
	if on.shares() {
		s.settled(victims+1, partitions)
	}
	stop := s.feed(rate, 4, 8)
	defer stop()
	s.await("some work", 60*time.Second, countEnds(100))
	for _, p := range dying {
		if err := p.Send(chaos.Command{Cmd: "arm"}); err != nil {
			t.Fatal(err)
		}
	}
	joiner := a
	joiner.Alone = false
	s.start("c9", joiner, false) // the hand-over that some of the points are about
	switch {
	case a.Alone: // nothing is taken from a member that stays: it gives back as it leaves
		for _, p := range dying {
			if err := p.Term(); err != nil {
				t.Fatal(err)
			}
		}
	case revoke:
		s.together(point, dying, joiner)
	}
	for _, p := range dying {
		if _, err := p.Wait(40 * time.Second); err != nil {
			s.explain(s.lab.History())
			t.Fatalf("%s did not come to %s: %v", p.Name(), point, err)
		}
	}
	top := s.published()
	s.await("a handler for what was published after the kills", 40*time.Second, func(e *history.Event) bool {
		name, n := split(e.ID)
		return e.Op == history.OpStart && n > top[name]
	})
	// Enough of each key for the order of its dead letters to be told.
	s.await("some more work", 60*time.Second, countEnds(320))
	stop()
	s.drained(60 * time.Second)
	s.leave()
	ids := []string{"I1", "I2", "I3", "I4", "I6", "I7", "I10", "I10.dead", "V1", "V2", "V3", "V5", "V6"}
	if on.commits() {
		ids = append(ids, "V4")
	}
	h := s.judge(check.Params{Attempts: attempts, ResetOnCrash: true}, ids...)
	s.bounds(h, point)
}

// together lets all victims go on from a point of their revoke once the last has come to it.
// Where the group changes again before all have heard of the first change, one that stands at
// its point may be put out meanwhile, and what it had makes the others' shares even: then it
// takes one more member for them to have something to give up.
func (s *scene) together(point string, dying []*chaos.Proc, joiner memberArgs) {
	s.t.Helper()
	gathered := func() func(*history.Event) bool {
		here := 0
		return func(e *history.Event) bool {
			if e.Class == saidPoint+point {
				here++
			}
			return here == victims
		}
	}
	if !s.within(45*time.Second, gathered()) {
		s.start("c8", joiner, false)
		s.await("all victims at "+point, 90*time.Second, gathered())
	}
	for _, p := range dying {
		if err := p.Send(chaos.Command{Cmd: "go"}); err != nil {
			s.t.Fatal(err)
		}
	}
}

// within reports whether an event, past ones included, comes in time.
func (s *scene) within(limit time.Duration, match func(*history.Event) bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, _, err := s.lab.Wait(ctx, func(e history.Event) bool { return match(&e) })
	return err == nil
}

func countEnds(n int) func(*history.Event) bool {
	ended := 0
	return func(e *history.Event) bool {
		if e.Op == history.OpEnd {
			ended++
		}
		return ended >= n
	}
}

// settled waits until so many members share so many partitions evenly.
func (s *scene) settled(members, partitions int) {
	s.t.Helper()
	owner := map[string]string{}
	s.await("an even share for all", 60*time.Second, func(e *history.Event) bool {
		switch e.Op {
		case history.OpAssign:
			owner[e.Partition] = e.Proc
		case history.OpRevoke, history.OpLost:
			if owner[e.Partition] == e.Proc {
				delete(owner, e.Partition)
			}
		}
		share := map[string]int{}
		for _, m := range owner {
			share[m]++
		}
		for _, n := range share {
			if n != partitions/members {
				return false
			}
		}
		return len(share) == members
	})
}

// bounds checks per victim that what was done again is no more than what was running and
// what no accepted settle or commit had told of.
func (s *scene) bounds(h *history.History, point string) {
	s.t.Helper()
	kills, again, allowed := 0, 0, 0
	for i := range victims {
		name := "c" + strconv.Itoa(i+1)
		v := victim(h, name)
		kills += v.kills
		again += v.again
		allowed += v.unsettled
		for _, id := range v.wrong {
			s.t.Errorf("%s was done and settled by %s before it was killed, and done again", id, name)
		}
	}
	s.t.Logf("measured: %s at %s: %d kills, %d completed messages done again, %d were completed and not known to be settled",
		s.on.name, point, kills, again, allowed)
	if kills != victims {
		s.t.Errorf("%d kills at %s, want %d", kills, point, victims)
	}
}

type victimized struct {
	kills, again, unsettled int
	wrong                   []string
}

// victim follows what one process had completed: per partition it is open until a settle
// is accepted that covers it, or a commit with a state that began after it.
func victim(h *history.History, name string) (v victimized) {
	open, closed := map[string]history.Event{}, map[string]bool{}
	begun := map[string]int64{}
	over := false
	for i := range h.Events {
		e := &h.Events[i]
		_, isOpen := open[e.ID]
		switch {
		case e.Op == history.OpFault && e.Outcome == history.FaultKill && e.Dest == name:
			over = true
			v.kills++
			v.unsettled = len(open)
		case over && e.Proc != name && e.Op == history.OpStart && isOpen:
			v.again++
			delete(open, e.ID)
		case over && e.Proc != name && e.Op == history.OpStart && closed[e.ID]:
			v.wrong = append(v.wrong, e.ID)
			delete(closed, e.ID)
		case over || e.Proc != name:
		case e.Op == history.OpEnd && e.Outcome == history.OK:
			open[e.ID] = *e
		case e.Op == history.OpSettled && isOpen && e.Class == "" && e.Outcome != history.Extend:
			delete(open, e.ID)
			closed[e.ID] = true
		case e.Op == history.OpLog && e.Class == saidBegins:
			begun[e.Partition] = e.T
		case e.Op == history.OpLog && e.Class == saidCommit && whole(e.N):
			for id, x := range open {
				if x.Partition == e.Partition && x.T < begun[e.Partition]-written {
					delete(open, id)
					closed[id] = true
				}
			}
		}
	}
	return v
}
