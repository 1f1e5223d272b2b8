package memory

import (
	"context"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// Publish implements driver.Driver. Everything a caller may use again is copied.
func (cl *client) Publish(ctx context.Context, to driver.Destination, batch []*driver.Message) error {
	d, err := cl.reach("publish", to)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return driver.Errorf("publish "+to.String(), driver.Transient, "nothing was sent: %w", err)
	}
	if to.Group != "" && to.Shape == driver.Stream {
		return driver.Errorf("publish "+to.String(), driver.Unsupported, "Destination.Group: a stream has one log for all groups")
	}
	if s := cl.broker.silent.Load(); s != nil {
		return cl.swallow(ctx, s, "publish "+to.String(), func() { _ = cl.store(d, to, batch) })
	}
	return cl.store(d, to, batch)
}

func (cl *client) store(d *destination, to driver.Destination, batch []*driver.Message) (err error) {
	p := parcel{to: to, d: d, now: d.broker.now()}
	p.pack(batch, cl.cfg.MaxBytes)
	if len(p.msgs) == 0 {
		return driver.Batch(p.errs)
	}
	var stored int
	switch to.Shape {
	case driver.Queue:
		stored = d.groups[0].publish(p.msgs, p.now)
	case driver.Topic:
		stored, err = d.multiply(&p)
	case driver.Stream:
		d.remember(&p)
		stored = len(p.msgs)
	}
	if err != nil {
		return err
	}
	for i := range p.msgs[stored:] {
		p.fail(p.msgs[stored+i].index, len(batch), driver.Transient,
			"the destination is full (MaxMessages %d, MaxStored %d bytes): try again when something was consumed", d.limits.messages, d.limits.bytes)
	}
	return driver.Batch(p.errs)
}

// parcel is a batch on its way into a destination.
type parcel struct {
	to   driver.Destination
	d    *destination
	now  int64
	msgs []stored // what is fit to be stored, in order
	errs []error  // by index of the batch; nil = none failed
}

func (p *parcel) fail(index, size int, class driver.Class, format string, args ...any) {
	if p.errs == nil {
		p.errs = make([]error, size)
	}
	p.errs[index] = driver.Errorf("publish "+p.to.String(), class, format, args...)
}

// pack copies the batch: one allocation each for messages, bodies and headers.
func (p *parcel) pack(batch []*driver.Message, maxBytes int) {
	bodies, headers := 0, 0
	for _, m := range batch {
		bodies += len(m.Body)
		headers += len(m.Headers)
	}
	body, header := make([]byte, 0, bodies), make([]driver.Header, 0, headers)
	p.msgs = make([]stored, 0, len(batch))
	wall := time.Now()
	for i, m := range batch {
		size := m.Size()
		if size > maxBytes {
			p.fail(i, len(batch), driver.TooLarge, "message %s has %d bytes of headers, key and body, at most %d", m.ID, size, maxBytes)
			continue
		}
		if why := p.refuse(m); why != "" {
			p.fail(i, len(batch), driver.Unsupported, "message %s: %s", m.ID, why)
			continue
		}
		p.msgs = p.msgs[:len(p.msgs)+1] // and not append: the message is copied once
		s := &p.msgs[len(p.msgs)-1]
		s.Message, s.at, s.size, s.index = *m, p.now, int64(size), i
		if n := len(body); m.Body != nil {
			body = append(body, m.Body...)
			s.Body = body[n:len(body):len(body)]
		}
		if n := len(header); len(m.Headers) > 0 {
			header = append(header, m.Headers...)
			s.Headers = header[n:len(header):len(header)]
		}
		p.stamp(s, wall)
	}
}

func (p *parcel) stamp(s *stored, wall time.Time) {
	if s.Time.IsZero() {
		s.Time = wall
	}
	if s.Delay > 0 {
		s.due = p.now + int64(s.Delay)
		s.Delay = 0 // it is the broker's now; who publishes what he received does not repeat it
	}
	if s.TTL > 0 {
		s.expires = p.now + int64(s.TTL)
		if s.expires < 0 {
			s.expires = 0 // more than 290 years
		}
	}
	switch n := p.d.partitions; {
	case n <= 1:
	case s.Key != "":
		s.part = driver.PartitionOf(s.Key, n)
	default:
		s.part = int((p.d.spread.Add(1) - 1) % uint64(n))
	}
}

// refuse says what of m the destination cannot do.
func (p *parcel) refuse(m *driver.Message) string {
	stream := p.to.Shape == driver.Stream
	switch {
	case m.Delay > 0 && stream:
		return "schedule: a stream takes no Delay"
	case m.Delay > maxDelay:
		return "schedule: Delay is " + m.Delay.String() + ", at most " + maxDelay.String()
	case m.TTL > 0 && stream:
		return "ttl: a stream keeps messages as long as its retention says"
	case m.Priority > 0 && (stream || p.d.partitions > 0):
		return "priority: a destination with partitions keeps the order of publishing"
	case m.Priority < 0 || m.Priority >= priorities:
		return "priority: there are the levels 0 to 9"
	case m.Delay < 0 || m.TTL < 0:
		return "schedule: Delay and TTL cannot be negative"
	}
	return ""
}

// publish puts what there is room for into the backlog and returns how many that were.
func (g *group) publish(msgs []stored, now int64) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.backlog.advance(now) // what has expired makes room
	n := g.backlog.fits(msgs, g.d.limits)
	g.backlog.push(msgs[:n], now)
	if g.waiting > 0 {
		g.handOver(g.backlog.advance(now))
	}
	return n
}

// multiply gives each group of a topic its copy. A prefix of the batch is stored, the same
// for all groups: their backlogs only grow under the topic's lock, so what fits in
// the first loop still fits in the second.
func (d *destination) multiply(p *parcel) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	groups := d.groups
	if p.to.Group != "" {
		g := d.findGroup(p.to.Group)
		if g == nil {
			return 0, driver.Errorf("publish "+p.to.String(), driver.NotFound, "the topic has no group %q", p.to.Group)
		}
		groups = []*group{g}
	}
	n := len(p.msgs)
	for _, g := range groups {
		g.mu.Lock()
		g.backlog.advance(p.now)
		n = min(n, g.backlog.fits(p.msgs[:n], d.limits))
		g.mu.Unlock()
	}
	for _, g := range groups {
		g.mu.Lock()
		g.backlog.push(p.msgs[:n], p.now)
		g.handOver(g.backlog.advance(p.now))
		g.mu.Unlock()
	}
	if p.to.Group == "" {
		l := d.logs[0]
		for i := range n {
			l.append(&p.msgs[i])
		}
		if l.limits.messages = d.limits.messages; len(groups) > 0 {
			l.limits.messages = min(d.limits.messages, maxHistory)
		}
		l.trim(p.now)
	}
	return n, nil
}

// remember appends to a stream and wakes who reads the partitions.
func (d *destination) remember(p *parcel) {
	touched := make([]bool, d.partitions)
	d.mu.Lock()
	for i := range p.msgs {
		m := &p.msgs[i]
		d.logs[m.part].append(m)
		touched[m.part] = true
	}
	for i, t := range touched {
		if t {
			d.logs[i].trim(p.now)
		}
	}
	groups := d.groups
	d.mu.Unlock()
	// A consumer that looked before the append has enlisted before its group's lock
	// could be taken here, so it is woken; one that looks later sees the messages.
	for _, g := range groups {
		g.mu.Lock()
		if g.waiting > 0 {
			for part, t := range touched {
				if t {
					g.wakeOwner(part)
				}
			}
		}
		g.mu.Unlock()
	}
}
