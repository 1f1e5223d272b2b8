package check

import "github.com/varal-go/varal/test/lab/history"

// SettleOnce is I6 as far as one log tells. One delivery is one receive of a
// message by a process (one start, where receives are not recorded). After a final
// settle that the broker accepted, another that is accepted is a second settle;
// one that failed with a class (conflict, lease lost) is as it should be. An
// accepted settle by a process is stale when it had reported the loss of that
// message or partition, or when another process had started the same copy since.
var SettleOnce = define("I6", "a delivery is settled once, and only by the process that holds it",
	func(p Params) Stream {
		return &settles{verdict: newVerdict(), t: newTracker(p), held: map[string]*held{}, last: map[string]history.Event{}, open: map[string]int{}}
	})

// copyKey tells two copies of one message in one process apart, where the worker
// says where they are.
func copyKey(e *history.Event) string {
	return runKey(e) + "\x00" + e.Partition + "\x00" + e.Position
}

// held is one delivery in the hands of one process.
type held struct {
	index     int
	settled   int // index of the accepted settle; 0 = none, a settle is never the first event
	lost      bool
	partition string
	since     history.Event
}

type settles struct {
	verdict
	t    *tracker
	held map[string]*held         // by process, group and ID
	last map[string]history.Event // by group and ID: the latest start anywhere, until settled
	open map[string]int           // by group and ID: deliveries not settled, over all processes
	old  []string                 // settled deliveries, oldest first
}

// remembered is how many settled deliveries are kept to catch a second settle.
const remembered = 1 << 13

func (s *settles) Observe(e *history.Event) {
	s.tick()
	s.t.observe(s.i, e)
	switch e.Op {
	case history.OpRecv, history.OpStart:
		s.arrived(e)
	case history.OpLost:
		s.lost(e)
	case history.OpSettled:
		if e.Outcome != history.Extend && e.Class == "" {
			s.n++
			s.settled(e)
		}
	case history.OpFault:
		if e.Outcome == history.FaultKill {
			for k, h := range s.held {
				if h.since.Proc == e.Dest && h.since.Gen == e.N {
					s.drop(k, h)
				}
			}
		}
	}
}

func (s *settles) arrived(e *history.Event) {
	k := copyKey(e)
	h := s.held[k]
	// A start after its own recv, and a retry in place of what was not settled, are
	// the same delivery.
	same := h != nil && h.settled == 0 && !h.lost && e.Op == history.OpStart
	if !same {
		if h == nil || h.settled != 0 {
			s.open[groupID(e)]++
		}
		h = &held{index: s.i, since: *e, partition: e.Partition}
		s.held[k] = h
	}
	if e.Op == history.OpStart {
		h.since = *e
		s.last[groupID(e)] = *e
	}
}

func (s *settles) lost(e *history.Event) {
	for k, h := range s.held {
		if h.since.Proc != e.Proc || h.since.Gen != e.Gen || h.since.Group != e.Group && e.Group != "" {
			continue
		}
		if e.ID == h.since.ID || e.ID == "" && samePartition(e.Partition, h.partition) {
			if h.settled != 0 {
				delete(s.held, k)
				continue
			}
			h.lost = true
		}
	}
}

func (s *settles) settled(e *history.Event) {
	h := s.held[copyKey(e)]
	if h == nil {
		return
	}
	last, started := s.last[groupID(e)]
	other := started && (last.Proc != e.Proc || last.Gen != e.Gen)
	switch {
	case h.settled != 0:
		s.accuse(e.ID, []int{h.index, h.settled, s.i}, "%s was settled twice by %s, and the broker accepted both", e.ID, e.Proc)
	case h.lost:
		s.accuse(e.ID, []int{h.index, s.i}, "%s was lost to %s, and its settle was accepted all the same", e.ID, e.Proc)
	case other && *s.t.pubs.at(e.ID)&pubMore == 0 && s.t.broker == 0 && s.t.replay == 0 &&
		history.Before(&h.since, &last) && history.Before(&last, e):
		s.accuse(e.ID, []int{h.index, s.i}, "%s had been taken over by %s when the settle of %s was accepted", e.ID, last.Proc, e.Proc)
	}
	if h.settled == 0 {
		h.settled = s.i
		s.remember(copyKey(e))
		s.release(groupID(e))
	}
}

// release counts a delivery as over. The latest start is remembered as long as any
// process still has the message in hand: its settle would be stale.
func (s *settles) release(gid string) {
	if s.open[gid]--; s.open[gid] <= 0 {
		delete(s.open, gid)
		delete(s.last, gid)
	}
}

// drop forgets a delivery with its process.
func (s *settles) drop(k string, h *held) {
	delete(s.held, k)
	if h.settled == 0 {
		s.release(groupID(&h.since))
	}
}

// remember bounds the memory: a second settle comes soon after the first, or its
// process has held so many messages since that it is not worth their memory.
func (s *settles) remember(k string) {
	if s.old = append(s.old, k); len(s.old) <= remembered {
		return
	}
	if h := s.held[s.old[0]]; h != nil && h.settled != 0 {
		delete(s.held, s.old[0])
	}
	s.old = s.old[1:]
}

func (s *settles) Result() Result { return s.result("settles", "an accepted settle") }
