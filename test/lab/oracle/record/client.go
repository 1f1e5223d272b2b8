// Package record is a member's side of the sequence oracle: it reports what the
// member does, one event after the other, and each call returns when its event is in
// the oracle's file.
//
//	c, err := record.Dial(ctx, addr, record.Options{Proc: "w1"})
//	handler = c.Handler(record.Message{Group: "kitchen", Dest: "tickets", Number: n}, handler)
//	drv = record.Tap(drv, "kitchen", c.Emit)
//	defer c.Close(ctx)
//
// A handler reports its start before it works and its end when it is done. Since it
// waits both times, the interval in the file lies inside of the one that the handler
// ran: two that touch in the file have really run at once.
package record

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/varal-go/varal/test/lab/history"
	"github.com/varal-go/varal/test/lab/oracle/logbook"
)

// Options of a member.
type Options struct {
	Proc    string        // its name. Required
	Gen     int           // its incarnation; 0 = the oracle gives the next
	Buffer  int           // events on their way at most; more wait. 0 = 1,024
	Timeout time.Duration // of one Record. 0 = 10 s
}

// ErrClosed is the error of a Record after Close or Abort.
var ErrClosed = errors.New("record: the recorder is closed")

// Client reports events of one incarnation of one process. Safe for concurrent use.
// It does not reconnect: after its first error every Record fails, and the log of this
// incarnation has no bye, which makes a history inconclusive, never clean.
type Client struct {
	conn    net.Conn
	gen     int
	timeout time.Duration
	room    chan struct{} // a token for each event on its way
	wake    chan struct{}
	ended   chan struct{}
	loops   sync.WaitGroup

	mu      sync.Mutex
	seq     int
	out     bytes.Buffer
	waiting []chan struct{} // of Seq acked+1 …
	acked   int
	bye     bool
	err     error
}

// Dial connects to the oracle and says hello. ctx bounds the call, not the Client.
func Dial(ctx context.Context, addr string, o Options) (*Client, error) {
	if o.Buffer <= 0 {
		o.Buffer = 1024
	}
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("record: no oracle at %s: %w", addr, err)
	}
	c := &Client{
		conn: conn, timeout: o.Timeout, room: make(chan struct{}, o.Buffer),
		wake: make(chan struct{}, 1), ended: make(chan struct{}), seq: 1, acked: 1,
	}
	in := bufio.NewReaderSize(conn, history.MaxLine)
	if err := c.greet(ctx, in, o); err != nil {
		_ = conn.Close()
		return nil, err
	}
	c.loops.Go(c.write)
	c.loops.Go(func() { c.read(in) })
	return c, nil
}

func (c *Client) greet(ctx context.Context, in *bufio.Reader, o Options) error {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	line, err := json.Marshal(history.Event{Op: history.OpHello, Seq: 1, Proc: o.Proc, Gen: o.Gen})
	if err != nil {
		return fmt.Errorf("record: hello: %w", err)
	}
	if _, err := c.conn.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("record: hello: %w", err)
	}
	a, err := answer(in)
	if err != nil {
		return err
	}
	if c.gen = a.Gen; a.Gen < 1 {
		return errors.New("record: whoever answers is not an oracle")
	}
	return nil
}

func answer(in *bufio.Reader) (a logbook.Answer, err error) {
	line, err := in.ReadSlice('\n')
	switch {
	case err != nil:
		return a, fmt.Errorf("record: the oracle does not answer: %w", err)
	case json.Unmarshal(line, &a) != nil:
		return a, fmt.Errorf("record: not an answer of an oracle: %.80q", line)
	case a.Error != "":
		return a, fmt.Errorf("record: the oracle refuses: %.500s", a.Error)
	}
	return a, nil
}

// Gen is the incarnation that this Client reports for, from 1.
func (c *Client) Gen() int { return c.gen }

// Err is the first error of this Client, nil while all is well.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Emit is Record for a caller that asks Err later.
func (c *Client) Emit(e history.Event) { _ = c.Record(e) }

// Record reports an event and returns when it is in the oracle's file. While
// Options.Buffer others are on their way it waits: nothing is ever dropped. It takes no
// context on purpose: a handler that was cancelled has to report its end all the same.
// Any error is final for this Client.
func (c *Client) Record(e history.Event) error {
	limit := time.NewTimer(c.timeout)
	defer limit.Stop()
	select {
	case c.room <- struct{}{}:
	case <-c.ended:
		return c.Err()
	case <-limit.C:
		return c.fail(errors.New("record: the buffer stayed full: the oracle is too slow, or gone"))
	}
	done, err := c.enqueue(e)
	if err != nil {
		return c.fail(err)
	}
	select {
	case <-done:
		return nil
	case <-c.ended:
	case <-limit.C:
		return c.fail(errors.New("record: no acknowledgement from the oracle in time"))
	}
	select {
	case <-done: // both were ready
		return nil
	default:
		return c.Err()
	}
}

func (c *Client) enqueue(e history.Event) (done chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	e.Seq, e.Proc, e.Gen, e.T, e.Eps = c.seq+1, "", 0, 0, 0
	line, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	if len(line) >= history.MaxLine {
		return nil, history.ErrTooLong
	}
	c.seq++
	c.bye = e.Op == history.OpBye
	c.out.Write(append(line, '\n'))
	done = make(chan struct{})
	c.waiting = append(c.waiting, done)
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return done, nil
}

// write sends what has gathered, all of it at once.
func (c *Client) write() {
	var buf []byte
	for {
		select {
		case <-c.wake:
		case <-c.ended:
			return
		}
		c.mu.Lock()
		buf = append(buf[:0], c.out.Bytes()...)
		c.out.Reset()
		c.mu.Unlock()
		if _, err := c.conn.Write(buf); err != nil {
			_ = c.fail(fmt.Errorf("record: write: %w", err))
			return
		}
	}
}

func (c *Client) read(in *bufio.Reader) {
	for {
		a, err := answer(in)
		if err == nil {
			err = c.acknowledge(a.Ack)
		}
		if err != nil {
			_ = c.fail(err)
			return
		}
	}
}

func (c *Client) acknowledge(upTo int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := upTo - c.acked
	if n < 0 || n > len(c.waiting) {
		return fmt.Errorf("record: the oracle acknowledges %d of %d events", upTo, c.seq)
	}
	for _, done := range c.waiting[:n] {
		close(done)
		<-c.room
	}
	c.waiting = append(c.waiting[:0], c.waiting[n:]...)
	c.acked = upTo
	return nil
}

// fail ends the Client with its first error, which it returns.
func (c *Client) fail(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		if c.bye && c.acked == c.seq {
			err = ErrClosed // the oracle hangs up after bye, perhaps before we do
		}
		c.err = err
		close(c.ended)
		_ = c.conn.Close()
	}
	return c.err
}

// Close says bye, which tells that this log is complete, and ends the Client. It
// returns the error that ended it before, if one did. Call it once, after all Records.
func (c *Client) Close() error {
	err := c.Record(history.Event{Op: history.OpBye})
	c.Abort()
	return err
}

// Abort ends the Client without bye, as a crash does; what was acknowledged stays.
// Records that wait fail. Idempotent, and harmless after Close.
func (c *Client) Abort() {
	_ = c.fail(ErrClosed)
	c.loops.Wait()
}
