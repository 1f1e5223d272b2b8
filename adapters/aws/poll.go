package aws

import (
	"context"
	"slices"
	"strconv"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/varal-go/varal/core/driver"
)

// polls decides how many requests for messages are open: one where there is little to have,
// one more with every full answer, one again at the first empty answer. Not safe for
// concurrent use.
type polls struct {
	most   int
	target int
	open   int
	asked  int // messages that open requests may bring
	until  time.Time
}

// earlyPause follows an empty answer that came before its time: a server that does so would
// otherwise be asked in a loop.
const earlyPause = 100 * time.Millisecond

// ask returns how many messages a further request may ask for, 0 = none now, and takes note
// of it. room is what there is room for beside what was asked for already.
func (p *polls) ask(room int, now time.Time) int {
	n := min(maxEntries, room-p.asked)
	if n <= 0 || p.open >= p.target || now.Before(p.until) {
		return 0
	}
	p.open++
	p.asked += n
	return n
}

// answered takes note of the end of a request for n messages; early: it came before its
// time.
func (p *polls) answered(n, got int, early bool, now time.Time) {
	p.open--
	p.asked -= n
	switch {
	case got == 0:
		p.target = 1
		if early {
			p.until = now.Add(earlyPause)
		}
	case got >= n:
		p.target = min(p.target+1, p.most)
	}
}

// pause is how long nothing is to be asked.
func (p *polls) pause(now time.Time) time.Duration { return p.until.Sub(now) }

// poll makes one request for at most n messages.
func (c *consumer) poll(n int) {
	ctx, cancel := context.WithTimeout(c.life, c.wait+c.b.cfg.ConnectTimeout+c.b.cfg.Timeout)
	defer cancel()
	sent := time.Now()
	out, err := c.b.api.sqs.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: &c.url, MaxNumberOfMessages: int32(n), WaitTimeSeconds: seconds(c.wait), VisibilityTimeout: seconds(c.lease),
		MessageAttributeNames: []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{
			types.MessageSystemAttributeNameApproximateReceiveCount, types.MessageSystemAttributeNameSentTimestamp, types.MessageSystemAttributeNameMessageGroupId,
		},
	})
	now := time.Now()
	if c.life.Err() == nil { // else it was cut
		c.heard(err)
	}
	var got []*delivery
	if err == nil {
		got = c.taken(out.Messages, sent, now)
	}
	c.mu.Lock()
	c.polls.answered(n, len(got), err == nil && now.Sub(sent) < c.wait/2, now)
	if err != nil && c.err == nil {
		c.err = asked(c.op("receive"), err)
	}
	for _, d := range got {
		c.ledger.add(d)
	}
	if now.Sub(c.swept) > time.Minute {
		c.swept = now
		c.ledger.sweep(now)
	}
	c.held = append(c.held, got...)
	c.keep()
	c.mu.Unlock()
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

// seconds rounds up: never before its time.
func seconds(d time.Duration) int32 { return int32((d + time.Second - 1) / time.Second) }

// answerSlack is how much longer than it waits a request may take.
const answerSlack = time.Second

// taken makes deliveries of an answer. The service hands messages out at the end of its
// wait, when it answers, so their leases begin about now: counted from when the request
// left, twenty seconds before, most of a lease of thirty would look used up. If the answer
// came later than it can have been given, this process or the network stood still, nobody
// knows since when, and the lease counts from when the request left.
func (c *consumer) taken(ms []types.Message, sent, now time.Time) []*delivery {
	from := now
	if now.Sub(sent) > c.wait+answerSlack {
		from = sent
	}
	out := make([]*delivery, 0, len(ms))
	for i := range ms {
		d := newDelivery(&ms[i])
		d.of, d.from, d.deadline = c, from, from.Add(c.lease)
		if d.deadline.After(now) {
			out = append(out, d)
		}
	}
	return out
}

func newDelivery(m *types.Message) *delivery {
	in := incoming{body: sdk.ToString(m.Body), native: sdk.ToString(m.MessageId), group: m.Attributes["MessageGroupId"]}
	if ms, err := strconv.ParseInt(m.Attributes["SentTimestamp"], 10, 64); err == nil {
		in.sent = time.UnixMilli(ms)
	}
	for name, v := range m.MessageAttributes {
		a := attribute{name: name, text: sdk.ToString(v.StringValue)}
		if v.BinaryValue != nil {
			a.binary, a.raw = true, v.BinaryValue
		}
		in.attrs = append(in.attrs, a)
	}
	d := &delivery{id: in.native, handle: sdk.ToString(m.ReceiptHandle), group: in.group}
	d.count, _ = strconv.Atoi(m.Attributes["ApproximateReceiveCount"])
	d.msg, d.err = decode(&in)
	return d
}

// keep starts the keeper of what waits in held, if there is something and it does not run.
// Callers hold mu.
func (c *consumer) keep() {
	if c.keeping || len(c.held) == 0 || c.begun.Load() {
		return
	}
	c.keeping = true
	c.work.Go(c.keeper)
}

// keeper renews the leases of what core has not seen, for nobody else knows of it. It ends
// when it finds nothing to keep.
func (c *consumer) keeper() {
	for {
		t := time.NewTimer(c.lease / 4)
		select {
		case <-t.C:
		case <-c.ending:
		}
		t.Stop()
		c.mu.Lock()
		if len(c.held) == 0 || c.begun.Load() {
			c.keeping = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		c.refresh(c.life)
	}
}

// refresh renews the leases in held that are half used up. On FIFO the whole of a group
// that is held goes together.
func (c *consumer) refresh(ctx context.Context) {
	c.mu.Lock()
	half := time.Now().Add(c.lease / 2)
	var old []change
	for _, d := range c.held {
		if !d.lost && d.deadline.Before(half) {
			old = append(old, change{d: d, seconds: seconds(c.lease), at: -1})
		}
	}
	c.mu.Unlock()
	if len(old) == 0 {
		return
	}
	c.changeAll(ctx, old)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = slices.DeleteFunc(c.held, func(d *delivery) bool { return d.lost || !d.deadline.After(time.Now()) })
}

// giveBackHeld returns what core has not seen.
func (c *consumer) giveBackHeld(ctx context.Context) {
	c.mu.Lock()
	held := c.held
	c.held = nil
	c.mu.Unlock()
	slices.Reverse(held) // a group from its last message to its first, see ledger
	c.release(ctx, held)
}

// giveBackAll returns, when the consumer ends, everything that nobody settled: what core has
// not seen, and under order by key what waits behind a message that was not done.
func (c *consumer) giveBackAll(ctx context.Context) {
	c.mu.Lock()
	c.held = nil
	left := c.ledger.left()
	c.mu.Unlock()
	c.release(ctx, left)
}

// release makes deliveries visible again, at once. If that fails, their leases run out.
func (c *consumer) release(ctx context.Context, ds []*delivery) {
	if len(ds) == 0 {
		return
	}
	back := make([]change, 0, len(ds))
	now := time.Now()
	c.mu.Lock()
	for _, d := range ds {
		if !d.lost && now.Before(d.deadline) {
			back = append(back, change{d: d, at: -1, ends: true})
		}
	}
	c.mu.Unlock()
	c.changeAll(ctx, back)
}

// Statically: it is one.
var _ driver.Consumer = (*consumer)(nil)
