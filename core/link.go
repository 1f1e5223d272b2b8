package core

import (
	"sync"

	"github.com/varal-go/varal/core/driver"
)

// link is what the driver's events say about its connections. The zero link is up.
type link struct {
	mu      sync.Mutex
	down    error
	isDown  bool
	blocked bool
}

// Notify is the hook for an adapter's Config.Notify: it lets Health know of
// connections and blocked publishers. It does not block.
func (c *Client) Notify(e Event) {
	l := &c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	switch e.Kind {
	case driver.Connected:
		l.isDown, l.down = false, nil
	case driver.Disconnected:
		l.isDown, l.down = true, e.Err
	case driver.Blocked:
		l.blocked = true
	case driver.Unblocked:
		l.blocked = false
	}
}

func (l *link) reasons() (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isDown {
		text := "disconnected"
		if l.down != nil {
			text += ": " + l.down.Error()
		}
		out = append(out, text)
	}
	if l.blocked {
		out = append(out, "the broker takes no publishes")
	}
	return out
}
