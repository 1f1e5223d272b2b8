package adaptertest

import (
	"context"
	"errors"
	"net"
	"sync"
)

// Cutter is a network that fails when a test wants it to: its Dial goes into a Config. The
// zero value connects. Safe for concurrent use.
type Cutter struct {
	mu     sync.Mutex
	refuse bool
	conns  []net.Conn
}

// Dial connects, unless the network is down.
func (c *Cutter) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	// Locked throughout: a cut that came between the connecting and the noting would miss the
	// connection, and the test wait in vain for the client to notice.
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse {
		return nil, errors.New("refused by the test")
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err == nil {
		c.conns = append(c.conns, conn)
	}
	return conn, err
}

// Cut closes all connections. New ones can be made at once.
func (c *Cutter) Cut() { c.set(false) }

// Down closes all connections and refuses new ones until Up.
func (c *Cutter) Down() { c.set(true) }

// Up lets connections be made again after Down.
func (c *Cutter) Up() { c.set(false) }

func (c *Cutter) set(refuse bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns, c.refuse = nil, refuse
}
