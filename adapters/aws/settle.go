package aws

import (
	"context"
	"strconv"
	"sync"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/varal-go/varal/core/driver"
)

// maxSettles is how many requests to settle are under way at once: one by one, they would
// take ten messages per round trip.
const maxSettles = 8

// change is a new visibility timeout for one delivery.
type change struct {
	d       *delivery
	seconds int32
	at      int  // index of its result, -1 = nobody asks
	ends    bool // not an extension: the delivery is over with it
}

// settling is one call of Settle.
type settling struct {
	c       *consumer
	op      string
	now     time.Time
	errs    []error
	deletes []change
	changes []change
	seen    map[*delivery]int // in changes, by place
	over    map[*delivery]bool
}

// Settle implements driver.Consumer. Ack and Reject delete; Nack, Return and Extend change
// the visibility timeout. What is past its lease by our own clock is lost without a
// request: the service would say that it deleted the message and might not have.
func (c *consumer) Settle(ctx context.Context, batch []driver.Settlement) error {
	s := settling{
		c: c, op: c.op("settle"), now: time.Now(), errs: make([]error, len(batch)),
		seen: map[*delivery]int{}, over: map[*delivery]bool{},
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return errClosed(s.op)
	}
	for i := range batch { // first: a joint change leaves out what ends by itself
		if d, ok := batch[i].Receipt.Ref.(*delivery); ok && batch[i].Disposition != driver.Extend {
			s.over[d] = true
		}
	}
	for i := range batch {
		s.errs[i] = s.sort(i, &batch[i])
	}
	c.mu.Unlock()
	s.run(ctx)
	return driver.Batch(s.errs)
}

// sort puts one settlement where it belongs. Callers hold mu.
func (s *settling) sort(i int, x *driver.Settlement) error {
	d, ok := x.Receipt.Ref.(*delivery)
	switch {
	case !ok || d.of != s.c || x.Receipt.Epoch != epoch:
		return driver.Errorf(s.op, driver.LeaseLost, "the receipt is of another consumer or epoch")
	case d.lost:
		return driver.Errorf(s.op, driver.LeaseLost, "the lease was lost, or with it that of a message before it in its group")
	case !s.now.Before(d.deadline):
		s.c.lose(d)
		return driver.Errorf(s.op, driver.LeaseLost, "the lease has ended (Config.Lease is %v)", s.c.lease)
	}
	switch x.Disposition {
	case driver.Ack, driver.Reject:
		s.deletes = append(s.deletes, change{d: d, at: i, ends: true})
	case driver.Nack:
		if x.Delay > maxNackDelay {
			return driver.Errorf(s.op, driver.Unsupported, "delay-nack: Delay is %v, at most %v", x.Delay, maxNackDelay)
		}
		if x.Final && x.Delay <= 0 {
			return nil // see below
		}
		s.giveBack(i, d, seconds(min(max(x.Delay, 0), s.left(d))))
	case driver.Return:
		if x.Final {
			// Close gives it back, after the requests that are still open have ended: they
			// would take it at once, and the queue would count that as one more try.
			return nil
		}
		s.giveBack(i, d, 0)
	case driver.Extend:
		return s.extend(i, d, x.Delay)
	default:
		return driver.Errorf(s.op, driver.Unsupported, "disposition %v is not one of a message", x.Disposition)
	}
	return nil
}

// capMargin is kept below the 12 h that a message may be hidden in all.
const capMargin = time.Minute

// left is how long a delivery may stay hidden from now.
func (s *settling) left(d *delivery) time.Duration {
	return max(0, d.from.Add(maxLease-capMargin).Sub(s.now))
}

// giveBack makes a delivery visible in so many seconds, and with it what came behind it in
// its group: delivered before it, that would be out of order. Last to first, see ledger.
func (s *settling) giveBack(i int, d *delivery, in int32) {
	if k, done := s.seen[d]; done { // with one before it
		s.changes[k].at = i
		return
	}
	behind := s.c.ledger.behind(d)
	for k := len(behind) - 1; k >= 0; k-- {
		if !s.over[behind[k]] {
			s.add(change{d: behind[k], seconds: in, at: -1, ends: true})
		}
	}
	s.add(change{d: d, seconds: in, at: i, ends: true})
}

// extend renews a lease; on FIFO that of all of its group, so that a message never comes
// again before those in front of it.
func (s *settling) extend(i int, d *delivery, by time.Duration) error {
	if by == 0 {
		by = s.c.lease
	}
	left := s.left(d)
	switch {
	case by > maxLease:
		return driver.Errorf(s.op, driver.Unsupported, "lease: an extension is at most %v", maxLease)
	case left < time.Second:
		return driver.Errorf(s.op, driver.LeaseLost, "a delivery can be held for %v in all", maxLease)
	}
	in := seconds(min(by, left))
	if k, done := s.seen[d]; done {
		if s.changes[k].ends {
			return driver.Errorf(s.op, driver.LeaseLost, "it goes back with a message before it in its group")
		}
		s.changes[k].at = i
		return nil
	}
	if d.group == "" {
		s.add(change{d: d, seconds: in, at: i})
		return nil
	}
	for _, o := range s.c.ledger.lanes[d.group] {
		at := -1
		if o == d {
			at = i
		}
		if !s.over[o] {
			s.add(change{d: o, seconds: in, at: at})
		}
	}
	return nil
}

func (s *settling) add(x change) {
	if _, twice := s.seen[x.d]; !twice {
		s.seen[x.d] = len(s.changes)
		s.changes = append(s.changes, x)
	}
}

// run sends the requests: deletes beside each other and beside the changes.
func (s *settling) run(ctx context.Context) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxSettles)
	for part := range chunks(s.deletes) {
		slots <- struct{}{}
		wg.Go(func() { s.c.delete(ctx, s, part); <-slots })
	}
	results := s.c.changeAll(ctx, s.changes)
	wg.Wait()
	for k, x := range s.changes {
		if x.at >= 0 {
			s.errs[x.at] = results[k]
		}
	}
}

// chunks cuts a list into what fits in one request.
func chunks(list []change) func(yield func([]change) bool) {
	return func(yield func([]change) bool) {
		for from := 0; from < len(list); from += maxEntries {
			if !yield(list[from:min(from+maxEntries, len(list))]) {
				return
			}
		}
	}
}

// delete removes messages from the queue. Each index of errs has one writer.
func (c *consumer) delete(ctx context.Context, s *settling, part []change) {
	in := &sqs.DeleteMessageBatchInput{QueueUrl: &c.url}
	for i, x := range part {
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: sdk.String(strconv.Itoa(i)), ReceiptHandle: &x.d.handle})
	}
	ctx, cancel := c.b.bounded(ctx)
	defer cancel()
	out, err := c.b.api.sqs.DeleteMessageBatch(ctx, in)
	c.b.heard(err)
	r := c.b.newResults(s.op, len(part))
	if err != nil {
		r.all(classify(s.op, err))
	} else {
		for i := range out.Successful {
			r.done(out.Successful[i].Id)
		}
		for i := range out.Failed {
			f := &out.Failed[i]
			r.failed(f.Id, f.Code, f.Message, f.SenderFault)
		}
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, x := range part {
		s.errs[x.at] = c.conclude(x, r.errs[i], now)
	}
}

func (r *results) all(err error) {
	for i := range r.errs {
		r.errs[i] = err
	}
}

// conclude draws the conclusion of one answered request about a delivery. Callers hold mu.
func (c *consumer) conclude(x change, err error, now time.Time) error {
	d := x.d
	switch class := driver.ClassOf(err); {
	case err == nil && x.ends:
		c.ledger.remove(d)
		d.lost = true // whatever comes for it now is too late
		return nil
	case class == driver.LeaseLost && d.maybe && x.ends && now.Before(d.deadline):
		// An earlier try had no answer, and within the lease nobody else can have the
		// message: that try took effect.
		c.ledger.remove(d)
		d.lost = true
		return nil
	case class == driver.LeaseLost && d.lost:
		// It was settled while this was under way, a renewal say. To lose it now would be to
		// lose the rest of its group, which is still ours.
	case class == driver.LeaseLost:
		c.lose(d)
	case class == driver.Ambiguous && x.ends:
		d.maybe = true
	}
	return err
}

// lose ends the lease of a delivery, and of its group. Callers hold mu.
func (c *consumer) lose(d *delivery) {
	d.lost = true
	c.ledger.remove(d)
	if d.group != "" {
		c.ledger.loseLane(d.group)
	}
}

// changeAll sets visibility timeouts and returns the results, by place. On FIFO one request
// follows the other, since the order within a group counts.
func (c *consumer) changeAll(ctx context.Context, list []change) []error {
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxSettles)
	at := 0
	for part := range chunks(list) {
		part, into := part, errs[at:at+len(part)]
		at += len(part)
		if c.fifo {
			c.change(ctx, part, into)
			continue
		}
		slots <- struct{}{}
		wg.Go(func() { c.change(ctx, part, into); <-slots })
	}
	wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, x := range list { // one of a group lost is all of it lost
		if errs[i] == nil && x.d.lost && !x.ends {
			errs[i] = driver.Errorf(c.op("settle"), driver.LeaseLost, "the lease of another message of its group was lost")
		}
	}
	return errs
}

func (c *consumer) change(ctx context.Context, part []change, errs []error) {
	op := c.op("settle")
	in := &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &c.url}
	for i, x := range part {
		in.Entries = append(in.Entries, types.ChangeMessageVisibilityBatchRequestEntry{
			Id: sdk.String(strconv.Itoa(i)), ReceiptHandle: &x.d.handle, VisibilityTimeout: x.seconds,
		})
	}
	ctx, cancel := c.b.bounded(ctx)
	defer cancel()
	sent := time.Now()
	out, err := c.b.api.sqs.ChangeMessageVisibilityBatch(ctx, in)
	c.b.heard(err)
	r := c.b.newResults(op, len(part))
	if err != nil {
		r.all(classify(op, err))
	} else {
		for i := range out.Successful {
			r.done(out.Successful[i].Id)
		}
		for i := range out.Failed {
			f := &out.Failed[i]
			r.failed(f.Id, f.Code, f.Message, f.SenderFault)
		}
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, x := range part {
		if errs[i] = c.conclude(x, r.errs[i], now); errs[i] == nil && !x.ends {
			x.d.deadline = sent.Add(time.Duration(x.seconds) * time.Second)
		}
	}
}
