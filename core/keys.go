package core

import (
	"fmt"
	"slices"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// AfterTerminal says what becomes of the messages of a key behind one that has failed
// for good, under ByKey.
type AfterTerminal uint8

// The choices.
const (
	// ContinueKey lets the key go on once the failed message is in the dead letter
	// (or discarded): what depends on it runs without it.
	ContinueKey AfterTerminal = iota
	// DeadLetterKey sends what follows to the dead letter, too, in order, with the
	// header varal-blocked-by, so that the whole suffix can be mended and published
	// again. It ends with ResumeKey, with Policy.BlockFor, or when the partition
	// changes its owner: nobody else knows of it.
	DeadLetterKey
	// HaltKey keeps the failed message and holds up its key; other keys go on. An
	// operator says how it goes on: Consumer.ResumeKey, ReplayKey or SkipKey. The
	// next owner of the partition tries the message once more before it halts again.
	HaltKey
)

// String returns the choice in lower case.
func (a AfterTerminal) String() string {
	return [...]string{"continue", "dead-letter key", "halt key"}[min(a, 2)]
}

// block is a key whose messages go to the dead letter unseen.
type block struct {
	asg   *assignment
	by    string // id of the message that failed
	until time.Time
}

// haltKey parks a flight whose attempts are over, and with it its key. It reports false
// where a key cannot be held: without one, or because the partition is being given back.
// Callers hold mu.
func (s *Consumer) haltKey(f *flight) bool {
	if s.p.AfterTerminal != HaltKey || f.lane == nil {
		return false
	}
	switch f.past().reason {
	case reasonSkipped, reasonGap, reasonUndecodable, reasonTooLarge: // no run of a handler can mend those
		return false
	}
	s.later(func() { s.signalled(SignalKeyHalted, f.rec.Receipt.Partition, f.rec.ID, 1, f.past().cause) })
	switch { // it may have gone meanwhile
	case f.asg.closed || f.lost:
		s.finishLocked(f, driver.Settlement{})
		return true
	case s.draining || f.asg.drain:
		s.abandon(f) // the next owner finds it, and its attempts where the source keeps them
		return true
	}
	f.state, f.trouble().due = stateHalted, time.Time{}
	f.trouble().last = time.Now()
	s.halted[f.rec.Key] = f
	return true
}

// blockKey sends what follows a dead-lettered flight after it. Callers hold mu.
func (s *Consumer) blockKey(f *flight) {
	if s.p.AfterTerminal != DeadLetterKey || f.rec.Key == "" || f.past().reason == reasonBlocked || f.past().reason == reasonSkipped {
		return
	}
	now := time.Now()
	if len(s.blocked) >= s.pruneAt {
		for key, b := range s.blocked {
			if b.asg.closed || now.After(b.until) {
				delete(s.blocked, key)
			}
		}
		s.pruneAt = max(minPrune, 2*len(s.blocked))
	}
	s.blocked[f.rec.Key] = block{asg: f.asg, by: f.rec.ID, until: now.Add(s.p.BlockFor)}
}

// minPrune is from how many blocked keys on those that are over are looked for.
const minPrune = 1024

// blockedBy tells a flight that is about to run that its key is blocked: it goes to the
// dead letter instead. Callers hold mu.
func (s *Consumer) blockedBy(f *flight) {
	b, ok := s.blocked[f.rec.Key]
	switch {
	case !ok || f.phase != phaseHandle || f.rec.Key == "":
		return
	case b.asg != f.asg || !time.Now().Before(b.until):
		delete(s.blocked, f.rec.Key)
		return
	}
	f.phase = phaseDead
	t := f.trouble()
	t.reason, t.blocker = reasonBlocked, b.by
	t.cause = fmt.Errorf("%w: message %s of its key failed for good", ErrKeyBlocked, quoted(b.by))
}

// ResumeKey lets a halted key go on: its first message gets one more attempt, and halts
// the key again if that fails. A key that DeadLetterKey has blocked is free again from
// its next message on. ErrNotFound: the key is neither.
func (s *Consumer) ResumeKey(key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.blocked[key]; ok && s.halted[key] == nil {
		delete(s.blocked, key)
		return nil
	}
	return s.unhalt(key, func(f *flight) { f.phase = phaseHandle })
}

// ReplayKey is ResumeKey with a fresh start: the message begins anew at attempt 1 with
// everything its retry policy allows. ErrNotFound: the key is not halted.
func (s *Consumer) ReplayKey(key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unhalt(key, func(f *flight) {
		if s.caps.Settle == driver.UpTo {
			f.asg.tried-- // counted again with the next failure
			f.asg.version++
		}
		f.phase, f.base, f.failures, f.restored, f.crashes = phaseHandle, 1, 0, 0, 0
		f.trouble().first, f.trouble().tries = time.Time{}, 0
	})
}

// SkipKey passes over the first message of a halted key, which goes to the dead letter
// with the reason "skipped" (without one it is dropped, counted and logged), and lets
// the key go on behind it. ErrNotFound: the key is not halted.
func (s *Consumer) SkipKey(key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unhalt(key, func(f *flight) {
		s.counts.KeysSkipped++
		f.phase, f.trouble().reason, f.trouble().tries = phaseDead, reasonSkipped, 0
	})
}

// unhalt ends the halt of a key, after change. Callers hold mu.
func (s *Consumer) unhalt(key string, change func(*flight)) error {
	f := s.halted[key]
	if f == nil {
		return driver.Errorf("key of "+s.name, driver.NotFound, "key %s is not halted here: see Consumer.Keys, and ask the consumer that owns its partition", quoted(key))
	}
	delete(s.halted, key)
	change(f)
	f.state = stateQueued
	s.queue.Again(f, f.lane)
	s.wakeWorker()
	return nil
}

// KeyStatus is a snapshot of one key with unfinished messages.
type KeyStatus struct {
	// Key is the ordering key.
	Key string `json:"key"`
	// State of its first message: queued, running, backoff, halted or settling; blocked
	// is a key of DeadLetterKey.
	State string `json:"state"`
	// Partition, Offset and ID name that message; Offset -1 = none.
	Partition string `json:"partition"`
	Offset    int64  `json:"offset"`
	ID        string `json:"id"`
	// Attempt is the one it is at, or was last.
	Attempt int `json:"attempt"`
	// Since it was received, or first failed.
	Since time.Time `json:"since"`
	// Due is when its back-off ends; zero = it is in none.
	Due time.Time `json:"due,omitzero"`
	// Waiting is how many messages of the key are behind it.
	Waiting int `json:"waiting"`
	// Error is why it failed last.
	Error string `json:"error,omitempty"`
}

// Keys returns what the keys with unfinished messages wait for, under ByKey: halted and
// blocked ones first, then by age, at most limit of them (0 = 100). It walks all that is
// in flight: for people, not for metrics.
func (s *Consumer) Keys(limit int) []KeyStatus {
	if limit <= 0 {
		limit = 100
	}
	s.mu.Lock()
	out := s.keysLocked()
	s.mu.Unlock()
	slices.SortStableFunc(out, func(a, b KeyStatus) int {
		if r := keyRank(a.State) - keyRank(b.State); r != 0 {
			return r
		}
		return a.Since.Compare(b.Since)
	})
	return out[:min(limit, len(out))]
}

func keyRank(state string) int {
	switch state {
	case "halted", "blocked":
		return 0
	case "backoff":
		return 1
	}
	return 2
}

func (s *Consumer) keysLocked() (out []KeyStatus) {
	if s.p.Order != ByKey {
		return nil
	}
	at := map[string]int{}
	for f := s.flights.head; f != nil; f = f.next {
		key := f.rec.Key
		if key == "" || f.state == stateGone {
			continue
		}
		if i, ok := at[key]; ok {
			out[i].Waiting++
			continue
		}
		at[key] = len(out)
		out = append(out, s.keyStatus(f))
	}
	for key, b := range s.blocked {
		if _, ok := at[key]; !ok && !b.asg.closed && time.Now().Before(b.until) {
			out = append(out, KeyStatus{
				Key: key, State: "blocked", Partition: b.asg.Partition, Offset: -1, ID: b.by,
				Since: b.until.Add(-s.p.BlockFor), Due: b.until,
			})
		}
	}
	return out
}

func (s *Consumer) keyStatus(f *flight) KeyStatus {
	k := KeyStatus{
		Key: f.rec.Key, Partition: f.rec.Receipt.Partition, Offset: f.rec.Offset, ID: f.rec.ID, Since: s.arrival(f), Attempt: f.base + f.failures,
	}
	switch f.state {
	case stateQueued:
		k.State = "queued"
	case stateRunning:
		k.State = "running"
	case stateWaiting:
		k.State, k.Due = "backoff", f.past().due
	case stateHalted:
		k.State = "halted"
		k.Attempt-- // the last one was made
	default:
		k.State = "settling"
	}
	if !f.past().first.IsZero() {
		k.Since = f.past().first
	}
	if f.past().cause != nil {
		k.Error = clean(f.past().cause.Error(), maxErrorText)
	}
	return k
}
