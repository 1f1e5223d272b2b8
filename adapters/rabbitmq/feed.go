package rabbitmq

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/varal-go/varal/core/driver"
)

// feed is one channel that consumes one queue: the life of one Epoch of one partition.
type feed struct {
	s      *session
	ch     *amqp.Channel
	label  string // Partition
	queue  string
	epoch  uint64
	fence  uint64
	stream bool
	owned  bool // nobody else consumes the queue, and its order is kept over owners
	counts bool
	args   amqp.Table // of basic.consume

	closes  chan *amqp.Error
	cancels chan string

	// Whoever holds consumer.pull: Receive, or the keeper while Receive stands aside.
	deliveries <-chan amqp.Delivery // nil while cancelled
	tag        string
	consumers  int
	back       []amqp.Delivery // taken from the client and not returned yet
	prefetch   int
	next       int64 // streams: offsets below are not wanted
	gapFrom    int64 // streams: the offset that must come first; -1 = any
	since      time.Time
	drained    int64  // streams: next to read after what back holds
	credited   uint64 // streams: up to this tag the broker has its credit back

	gap atomic.Bool // streams: another offset than gapFrom came first; nothing is taken until the keeper has decided

	mu      sync.Mutex
	ledger  ledger
	closing bool // Receive takes nothing more
	paused  bool // cancelled until enough is settled

	busy  sync.Mutex // one settle or giveBack at a time
	gone  bool       // after giveBack
	final bool       // cancelled for good; guarded by busy
	recMu sync.Mutex
	rec   record // owned partitions: the newest record written
	acked int64  // streams: next to read after what was settled
}

func openFeed(s *session, queue string, prefetch int, args amqp.Table) (*feed, error) {
	ch, err := s.conn.Channel()
	if err != nil {
		return nil, err
	}
	f := &feed{s: s, ch: ch, queue: queue, args: args, gapFrom: -1}
	f.closes = ch.NotifyClose(make(chan *amqp.Error, 1))
	f.cancels = ch.NotifyCancel(make(chan string, 1))
	if err := f.consume(prefetch); err != nil {
		_ = ch.Close()
		return nil, err
	}
	return f, nil
}

// consume starts the consumer. Prefetch is a property of the consumer: to change it,
// cancel, drain and consume again.
func (f *feed) consume(prefetch int) (err error) {
	f.prefetch = min(max(prefetch, 1), 1<<16-1)
	if err := f.ch.Qos(f.prefetch, 0, false); err != nil {
		return err
	}
	f.mu.Lock()
	f.ledger.recount()
	f.paused = false
	f.mu.Unlock()
	// A new tag each time: a late delivery to the old consumer is not the new one's.
	f.consumers++
	f.tag = "varal-" + strconv.Itoa(f.consumers)
	f.deliveries, err = f.ch.Consume(f.queue, f.tag, false, false, false, false, f.args)
	return err
}

// pause cancels the consumer and takes what the client has buffered: it is out at the
// broker, so it comes first with the next Receive. What the broker has on the way inside
// itself goes back to the queue; a quorum queue counts that as a hand-out.
func (f *feed) pause() error {
	if f.deliveries == nil {
		return nil
	}
	if err := f.ch.Cancel(f.tag, false); err != nil {
		return err
	}
	for d := range f.deliveries {
		f.arrived(&d)
		f.back = append(f.back, d)
		f.drained = streamOffset(&d) + 1
	}
	f.deliveries = nil
	f.mu.Lock()
	f.paused = true
	f.ledger.recount() // what is out now decides when to consume again
	f.mu.Unlock()
	return nil
}

// fit brings the consumer's prefetch to limit. What earlier consumers of this channel
// still have out counts: the broker must never have more than limit out in all.
func (f *feed) fit(limit int) error {
	f.mu.Lock()
	older := f.ledger.older
	f.mu.Unlock()
	if f.deliveries != nil && f.prefetch+older == limit {
		return nil
	}
	// Not at each message that an old consumer settles: by quarters, or when it is done.
	if f.deliveries != nil && older > 0 && f.prefetch+older < limit && (limit-f.prefetch-older)*4 < limit {
		return nil
	}
	if err := f.pause(); err != nil {
		return err
	}
	f.mu.Lock()
	out := f.ledger.out
	f.mu.Unlock()
	if limit-out < max(1, limit/8) && out > 0 {
		return nil // stays cancelled until enough is settled
	}
	if from := max(f.next, f.drained); f.stream && from > 0 {
		f.args = amqp.Table{"x-stream-offset": from}
	}
	return f.consume(limit - out)
}

func (f *feed) arrived(d *amqp.Delivery) {
	f.mu.Lock()
	f.ledger.add(d.DeliveryTag)
	f.mu.Unlock()
}

// poll takes the next message without waiting. gone: the client has closed the stream
// of deliveries; a receive without that look yields empty messages for ever.
func (f *feed) poll() (d amqp.Delivery, ok, gone bool) {
	if f.gap.Load() {
		return d, false, false
	}
	if len(f.back) > 0 {
		d = f.back[0]
		if f.back = f.back[1:]; len(f.back) == 0 {
			f.back = nil
		}
		return d, true, false
	}
	if f.deliveries == nil {
		return d, false, false
	}
	// The client hands over through an unbuffered channel from a goroutine of its own:
	// one yield lets it offer the next one, else every batch has one message.
	for range 3 {
		select {
		case d, ok = <-f.deliveries:
			if !ok {
				f.deliveries = nil
				return d, false, true
			}
			f.arrived(&d)
			return d, true, false
		default:
			runtime.Gosched()
		}
	}
	return d, false, false
}

func (f *feed) isClosing() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closing
}

func (f *feed) setClosing() {
	f.mu.Lock()
	f.closing = true
	f.mu.Unlock()
}

// received makes the SPI's view of a delivery.
func (f *feed) received(d *amqp.Delivery) driver.Received {
	r := driver.Received{
		Message: decode(d), Offset: -1,
		Receipt: driver.Receipt{Partition: f.label, Epoch: f.epoch, Seq: int64(d.DeliveryTag)},
	}
	if f.stream {
		r.Offset = streamOffset(d)
		r.Receipt.Aux = r.Offset
	} else if f.counts {
		r.DeliveryCount = deliveries(d.Headers)
	}
	if r.ID == "" {
		name := ""
		if f.stream {
			name = f.queue
		}
		r.ID = nameless(name, r.Offset)
	}
	return r
}

func streamOffset(d *amqp.Delivery) int64 {
	n, _ := number64(d.Headers["x-stream-offset"])
	return n
}

// settle carries out the entries of batch that belong to this feed, each by itself:
// acks last, the contiguous prefix of the channel as one.
func (f *feed) settle(ctx context.Context, op string, batch []driver.Settlement, mine []int, errs []error) {
	f.busy.Lock()
	defer f.busy.Unlock()
	if f.gone {
		for _, i := range mine {
			errs[i] = driver.Errorf(op, driver.LeaseLost, "this delivery has been given back")
		}
		return
	}
	done := f.s.guard(ctx)
	defer done()
	f.s.sock.hold()
	f.endFinal(batch, mine)
	var acks []uint64
	var at []int
	f.mu.Lock()
	for _, i := range mine {
		e := &batch[i]
		if e.Disposition == driver.Extend {
			continue // nothing to extend: a delivery is held as long as its channel lives
		}
		if f.leaves(e) {
			continue
		}
		tag := uint64(e.Receipt.Seq)
		if !f.ledger.settle(tag) {
			errs[i] = driver.Errorf(op, driver.LeaseLost, "this delivery is not out")
			continue
		}
		switch e.Disposition {
		case driver.Ack, driver.Reject: // Reject: core holds a confirmed copy
			acks, at = append(acks, tag), append(at, i)
		case driver.Nack:
			errs[i] = settleError(op, f.ch.Reject(tag, true))
		case driver.Return:
			errs[i] = settleError(op, f.ch.Nack(tag, false, true))
		}
	}
	upTo := f.ledger.prefix()
	f.mu.Unlock()
	f.ack(op, acks, at, upTo, errs)
	if err := settleError(op, f.s.sock.send()); err != nil {
		for _, i := range mine {
			if errs[i] == nil {
				errs[i] = err
			}
		}
	}
}

// leaves reports whether a message goes back with the channel, which is about to close,
// and not by itself. All that an owner gives back has to come back at once, since only then
// the broker puts it in order: a quorum queue appends what comes back to what has come back
// before.
func (f *feed) leaves(e *driver.Settlement) bool {
	return f.owned && e.Final && (e.Disposition == driver.Nack || e.Disposition == driver.Return)
}

// endFinal cancels the consumer before the first entry after which core asks for no
// more: otherwise the broker hands what goes back to this consumer again, at once, and
// counts that as an attempt. Commands of one channel take effect in order, so there is
// nothing to wait for.
//
// Not that of an owner: what the broker has on its way to a consumer that is cancelled goes
// back at once, and would be in front of the earlier ones that we hold until the channel
// closes.
func (f *feed) endFinal(batch []driver.Settlement, mine []int) {
	if f.stream || f.owned || f.final {
		return
	}
	for _, i := range mine {
		if batch[i].Final {
			f.final = true
			f.setClosing()
			_ = f.ch.Cancel(f.tag, true) // a channel that is gone says so with the entries
			return
		}
	}
}

// ack sends one ack for all tags below upTo and one for each of the others. The tag of
// the first must be one that is out, or the broker closes the channel.
func (f *feed) ack(op string, acks []uint64, at []int, upTo uint64, errs []error) {
	var high uint64
	for _, tag := range acks {
		if tag < upTo {
			high = max(high, tag)
		}
	}
	var err error
	if high > 0 {
		err = settleError(op, f.ch.Ack(high, true))
	}
	for n, tag := range acks {
		if tag < upTo {
			errs[at[n]] = err
			continue
		}
		errs[at[n]] = settleError(op, f.ch.Ack(tag, false))
	}
}

func settleError(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, amqp.ErrClosed):
		return driver.Errorf(op, driver.LeaseLost, "the channel of this delivery is gone, the broker hands the message out again: %w", err)
	}
	return driver.Errorf(op, driver.Ambiguous, "%w", err)
}

// giveBack returns everything that is not settled and closes the channel.
//
// A consumer that competes cancels first and nacks: the broker need not call it a
// failure. A single active consumer closes at once: after a cancel the next one would
// be active while ours are out, and after a nack they would come to us again.
func (f *feed) giveBack(alone bool) {
	f.busy.Lock()
	defer f.busy.Unlock()
	f.gone = true
	if !alone && !f.stream && f.pause() == nil {
		f.mu.Lock()
		last := f.ledger.last()
		f.mu.Unlock()
		if last > 0 {
			_ = f.ch.Nack(last, true, true)
		}
	}
	_ = f.ch.Close()
}
