//go:build unix

package sessions

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/lab/history"
)

// recorder stands between core and an adapter. It writes down what passes, hides the
// commit state where a test asks for it, and holds the failpoints of settles and revokes.
type recorder struct {
	driver.Driver
	member *member
}

// Capabilities without a place for state, if the member is to have none.
func (r *recorder) Capabilities(of driver.Destination) driver.Capabilities {
	c := r.Driver.Capabilities(of)
	if r.member.args.Forget {
		c.StateBytes = 0
	}
	return c
}

// Words of OpLog events that tests look for, in Class.
const (
	saidBegins  = "commit begins"  // N: bytes of state, Partition
	saidCommit  = "commit is done" // N: bytes of state, Partition
	saidRefused = "commit refused" // Outcome: why
	saidRevoke  = "revoke begins"
	saidPoint   = "failpoint "
)

func (r *recorder) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	m := r.member
	c := &recorded{
		m: m, dest: sub.From.Name, upTo: r.Driver.Capabilities(sub.From).Settle == driver.UpTo,
		held: map[receipt]entry{}, logs: map[lane][]entry{},
	}
	inner := sub
	inner.Assigned = func(a driver.Assignment) {
		m.emit(history.Event{Op: history.OpAssign, Group: group, Dest: c.dest, Partition: a.Partition, Fence: a.Fence, N: len(a.State)})
		sub.Assigned(a)
	}
	inner.Revoke = func(ctx context.Context, partitions []string) {
		lost := ctx.Err() != nil
		if lost {
			c.gone(history.OpLost, partitions)
			sub.Revoke(ctx, partitions)
			return
		}
		for _, p := range partitions {
			m.emit(history.Event{Op: history.OpLog, Class: saidRevoke, Group: group, Partition: p})
		}
		m.at(revokeBegun)
		sub.Revoke(ctx, partitions)
		m.at(revokeEnded)
		if ctx.Err() != nil { // ownership ended while core was letting go
			c.gone(history.OpLost, partitions)
			return
		}
		c.gone(history.OpRevoke, partitions)
	}
	var err error
	if c.Consumer, err = r.Driver.Subscribe(ctx, inner); err != nil {
		return nil, err
	}
	return c, nil
}

// recorded is one consumer. Receive and Settle have one caller each, as the contract
// says; the lock is between those two.
type recorded struct {
	driver.Consumer
	m    *member
	dest string
	upTo bool

	mu   sync.Mutex
	held map[receipt]entry
	logs map[lane][]entry // a log: received and not committed, in order
}

// receipt is a driver.Receipt without Ref, which need not be comparable.
type receipt struct {
	lane
	seq, aux int64
	id       string
}

type lane struct {
	partition string
	epoch     uint64
}

type entry struct {
	id, position string
	offset       int64
	r            receipt
}

func key(r driver.Receipt) receipt {
	return receipt{lane{r.Partition, r.Epoch}, r.Seq, r.Aux, r.ID}
}

func (c *recorded) gone(op history.Op, partitions []string) {
	for _, p := range partitions {
		c.m.emit(history.Event{Op: op, Group: group, Dest: c.dest, Partition: p})
	}
}

func (c *recorded) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	got, err := c.Consumer.Receive(ctx, want)
	if c.m.args.Quiet {
		return got, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range got {
		m := &got[i]
		e := entry{id: m.ID, position: position(m.Offset), offset: m.Offset, r: key(m.Receipt)}
		c.held[e.r] = e
		if c.upTo {
			c.logs[e.r.lane] = append(c.logs[e.r.lane], e)
		}
		outcome := ""
		if !intact(&m.Message) || m.Err != nil {
			outcome = history.Corrupt
		}
		c.m.emit(history.Event{Op: history.OpRecv, ID: m.ID, Group: group, Dest: c.dest, Partition: e.r.partition, Position: e.position, Outcome: outcome})
	}
	return got, err
}

// position is how a place in a log is written; "" = no log.
func position(offset int64) string {
	if offset < 0 {
		return ""
	}
	return strconv.FormatInt(offset, 10)
}

var dispositions = map[driver.Disposition]string{
	driver.Ack: history.Ack, driver.Nack: history.Nack, driver.Return: history.Return,
	driver.Reject: history.Reject, driver.Extend: history.Extend, driver.Hold: history.Ack,
}

func (c *recorded) Settle(ctx context.Context, batch []driver.Settlement) error {
	c.announce(batch)
	c.m.at(settleBegun)
	err := c.settle(ctx, batch)
	c.mu.Lock()
	for i := range batch {
		c.answered(&batch[i], driver.ResultAt(err, i))
	}
	c.mu.Unlock()
	c.m.at(settleAnswered)
	return err
}

// announce marks when commits began: what ended later is not in their state.
func (c *recorded) announce(batch []driver.Settlement) {
	for i := range batch {
		if c.upTo {
			c.m.emit(history.Event{Op: history.OpLog, Class: saidBegins, Partition: batch[i].Receipt.Partition, N: len(batch[i].State)})
		}
	}
}

// settle settles. Where the failpoint is between request and answer, the broker's
// answers stop coming before the request leaves: it takes effect, and nobody here knows.
func (c *recorded) settle(ctx context.Context, batch []driver.Settlement) error {
	if !c.m.deafAt(settleSent) {
		return c.Consumer.Settle(ctx, batch)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { c.m.dieAfterSent() })
	return c.Consumer.Settle(ctx, batch)
}

// answered writes down what became of one entry. mu is held.
func (c *recorded) answered(s *driver.Settlement, res error) {
	if c.upTo {
		said := history.Event{Op: history.OpLog, Class: saidCommit, Partition: s.Receipt.Partition, N: len(s.State)}
		if res != nil {
			said.Class, said.Outcome = saidRefused, res.Error()
		}
		c.m.emit(said)
	}
	if c.m.args.Quiet {
		return
	}
	e, known := c.held[key(s.Receipt)]
	if !known {
		e = entry{id: "unknown receipt", r: key(s.Receipt)}
	}
	covered := []entry{e}
	if c.upTo && known {
		covered = c.covers(e, s.Disposition, res == nil)
	}
	for _, x := range covered {
		c.m.emit(history.Event{
			Op: history.OpSettled, ID: x.id, Group: group, Dest: c.dest, Partition: x.r.partition, Position: x.position,
			Outcome: dispositions[s.Disposition], Class: class(res),
		})
		if res == nil && s.Disposition != driver.Extend && !c.upTo {
			delete(c.held, x.r)
		}
	}
}

// covers returns what a commit up to e is about, and records an accepted one. One that
// failed is about everything that was received: its state was to speak for what is done
// further up. Receipts are kept while their partition is: core may commit one again.
func (c *recorded) covers(e entry, d driver.Disposition, accepted bool) []entry {
	log := c.logs[e.r.lane]
	if !accepted {
		return log
	}
	next := e.offset + 1
	if d == driver.Hold {
		next--
	}
	n := 0
	for n < len(log) && log[n].offset < next {
		n++
	}
	c.logs[e.r.lane] = log[n:]
	c.m.emit(history.Event{Op: history.OpCommit, Group: group, Dest: c.dest, Partition: e.r.partition, Position: position(next)})
	return log[:n:n]
}

// class is the word the checks know.
func class(err error) string {
	switch c := driver.ClassOf(err); {
	case err == nil:
		return ""
	case errors.Is(err, driver.LeaseLost):
		return history.LeaseLost
	case c == 0:
		return "unclassified"
	default:
		return c.String()
	}
}

// number is n of message.
func number(m *driver.Message) int {
	f := strings.Split(string(m.Body), "|")
	if len(f) != 3 {
		return -1
	}
	n, err := strconv.Atoi(f[2])
	if err != nil {
		return -1
	}
	return n
}

func intact(m *driver.Message) bool {
	f := strings.Split(string(m.Body), "|")
	return len(f) == 3 && f[0] == m.ID && f[1] == m.Key
}
