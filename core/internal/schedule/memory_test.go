package schedule_test

import (
	"runtime"
	"strconv"
	"testing"

	"github.com/varal-go/varal/core/internal/schedule"
)

func heap() int64 {
	runtime.GC()
	runtime.GC() // what a finalizer or a sweep held up
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestMemoryOfSessions: a key costs less than 300 bytes while it has work, and nothing
// afterwards, however many have been seen. Not parallel: it measures the heap.
func TestMemoryOfSessions(t *testing.T) {
	const sessions = 1_000_000
	keys := make([]string, sessions)
	for i := range keys {
		keys[i] = "session-" + strconv.Itoa(i)
	}
	drain := func(q *schedule.Queue[*int]) {
		for {
			_, lane, ok := q.Next()
			if !ok {
				return
			}
			q.Release(lane)
		}
	}
	one := new(int)
	before := heap()
	q := schedule.New[*int]()
	for i, key := range keys { // a thousand at a time
		q.AddKeyed(key, one)
		if i%1000 == 999 {
			drain(q)
		}
	}
	seen := heap() - before
	if seen > 1<<20 {
		t.Errorf("%d bytes are left of a million keys that came and went", seen)
	}
	for _, key := range keys[:sessions/4] { // and all at once
		q.AddKeyed(key, one)
	}
	active := (heap() - before) / (sessions / 4)
	drain(q)
	left := heap() - before
	t.Logf("%d B a key that has work; %d B in all after %d keys, %d B after %d at once", active, seen, sessions, left, sessions/4)
	if active > 300 {
		t.Errorf("%d bytes a key that has work, at most 300", active)
	}
	if left > 1<<20 {
		t.Errorf("%d bytes are left after %d keys at once", left, sessions/4)
	}
	runtime.KeepAlive(keys)
	runtime.KeepAlive(q)
}
