package cli

import (
	"sync"
	"time"
)

// joinLook is how often an idleWatch looks whether there is something to read by now.
const joinLook = 50 * time.Millisecond

// idleWatch calls over once no message came for so long. It counts from the last message,
// and before the first one from when there was something to read: until a member has its
// first partition nothing can come, and a rebalance may take longer than --idle. Who gets
// none within join, because others have them all, counts from then. Use watchIdle.
type idleWatch struct {
	idle, join time.Duration
	assigned   func() bool
	over       func()

	mu     sync.Mutex
	timer  *time.Timer
	began  time.Time
	last   time.Time // from when it counts
	joined bool
	ended  bool
}

func watchIdle(idle, join time.Duration, assigned func() bool, over func()) *idleWatch {
	w := &idleWatch{idle: idle, join: join, assigned: assigned, over: over, began: time.Now()}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(0, w.look)
	return w
}

// look ends the wait or says when to look again.
func (w *idleWatch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if !w.joined && (w.assigned() || now.Sub(w.began) >= w.join) {
		w.joined, w.last = true, now
	}
	switch left := w.idle - now.Sub(w.last); {
	case w.ended:
	case !w.joined:
		w.timer.Reset(joinLook)
	case left > 0:
		w.timer.Reset(left)
	default:
		w.ended = true
		w.over()
	}
}

// came notes that there was a message.
func (w *idleWatch) came() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.joined, w.last = true, time.Now()
}

func (w *idleWatch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.timer.Stop()
}
