package core

import "github.com/varal-go/varal/core/internal/schedule"

// lane is the queue of one key.
type lane = schedule.Lane[*flight]

// One stuck key must not take the room of all, nor one partition the room of the others:
// both are asked for no more from a bound on, until they are well below it. What a broker
// holds for a paused partition stays there, in order.

// minShare is the least of the in-flight limit that a key or partition may take.
const minShare = 16

// keyShare is how many messages of one key may wait.
func (s *Consumer) keyShare() int {
	if s.p.MaxPerKey > 0 {
		return s.p.MaxPerKey
	}
	return max(minShare, s.budget.MaxRecords/4)
}

// partShare is how many messages of one partition may be in flight: twice what each of
// those that have any would get, so that partitions under the same load never meet it.
func (s *Consumer) partShare() int {
	if s.active < 2 {
		return s.budget.MaxRecords + 1
	}
	return max(minShare, 2*s.budget.MaxRecords/s.active)
}

// held reports whether an assignment is asked for nothing.
func (a *assignment) held() bool { return a.paused || a.crowded > 0 || a.full }

// entered counts a flight of a. Callers hold mu.
func (s *Consumer) entered(a *assignment) {
	if a.flights++; a.flights == 1 {
		s.active++
	}
	if !a.full && a.flights >= s.partShare() {
		a.full = true // the receiver is not in a call now: it sees it with the next
		s.fullParts++
	}
}

// left takes a flight of a off, and lets partitions that were full go on. Callers hold mu.
func (s *Consumer) left(a *assignment) {
	if a.flights--; a.flights == 0 {
		if s.active--; s.fullParts > 0 { // the shares of all others have grown
			for _, other := range s.parts {
				s.emptier(other)
			}
		}
	}
	s.emptier(a)
}

func (s *Consumer) emptier(a *assignment) {
	if a.full && a.flights < s.partShare()*7/10 {
		a.full = false
		s.fullParts--
		s.redemand()
	}
}

// crowd notes a key of a that has too many waiting. Callers hold mu.
func (s *Consumer) crowd(a *assignment, l *lane) {
	if l.Waiting() < s.keyShare() {
		return
	}
	if records, _ := s.budget.InUse(); s.p.MaxPerKey == 0 && records < s.budget.MaxRecords/2 {
		return // there is room for everybody
	}
	if _, known := s.crowded[l]; !known {
		s.crowded[l] = a
		a.crowded++
	}
}

// advance lets the next of a lane start, and its partition go on once few wait. nil is
// ignored. Callers hold mu.
func (s *Consumer) advance(l *lane) {
	if l == nil {
		return
	}
	if len(s.crowded) > 0 && l.Waiting() <= s.keyShare()/2 {
		if a := s.crowded[l]; a != nil {
			delete(s.crowded, l)
			if a.crowded--; a.crowded == 0 {
				s.redemand()
			}
		}
	}
	s.queue.Release(l)
	s.wakeWorker()
}
