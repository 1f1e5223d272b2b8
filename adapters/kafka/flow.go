package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/varal-go/varal/core/driver"
)

// pause makes the client fetch exactly what core has not paused. What our queues hold
// of a paused partition stays there; what the client holds it drops and fetches
// again after resume.
func (c *consumer) pause(names []string) {
	c.mu.Lock()
	if len(names) == 0 && len(c.paused) == 0 {
		c.mu.Unlock()
		return
	}
	before := c.paused
	c.paused = make(map[string]struct{}, len(names))
	for _, name := range names {
		c.paused[name] = struct{}{}
	}
	for _, p := range c.ring {
		c.setPaused(p)
	}
	off, on := c.differ(before)
	c.mu.Unlock()
	if len(off) > 0 {
		c.cl.PauseFetchPartitions(map[string][]int32{c.topic: off})
	}
	if len(on) > 0 {
		c.cl.ResumeFetchPartitions(map[string][]int32{c.topic: on})
	}
}

// setPaused moves the records of p into or out of what counts. c.mu is held.
func (c *consumer) setPaused(p *part) {
	_, paused := c.paused[p.name]
	if paused == p.paused {
		return
	}
	p.paused = paused
	n, bytes := p.len(), p.bytes
	if paused {
		n, bytes = -n, -bytes
	}
	c.records += n
	c.bytes += bytes
}

// differ tells what the client has to pause and resume. c.mu is held.
func (c *consumer) differ(before map[string]struct{}) (off, on []int32) {
	for name := range c.paused {
		if _, was := before[name]; !was {
			if id, ok := partitionID(c.topic, name); ok {
				off = append(off, id)
			}
		}
	}
	for name := range before {
		if _, is := c.paused[name]; is {
			continue
		}
		id, ok := partitionID(c.topic, name)
		if p := c.byID[id]; ok && (p == nil || !p.halted) {
			on = append(on, id)
		}
	}
	return off, on
}

// outOfRange decides about a partition whose position is not in the log any more.
func (c *consumer) outOfRange(ctx context.Context, p *part) {
	if c.sub.Reset == driver.Default {
		// It stays ours and stops. Paused, or the client would ask for ever.
		c.cl.PauseFetchPartitions(map[string][]int32{c.topic: {p.id}})
		return
	}
	at, err := c.d.resolve(ctx, c.topic, driver.Position{Kind: c.sub.Reset}, c.sub.Reset, []int32{p.id})
	c.mu.Lock()
	defer c.mu.Unlock()
	p.halted = false // where we could not ask, the client repeats its error
	if err != nil {
		return
	}
	// Under the lock of the revoke callback: a partition that has gone and come back
	// has a position of its own.
	if c.byID[p.id] == p && !p.leave {
		c.cl.SetOffsets(map[string]map[int32]kgo.EpochOffset{c.topic: {p.id: {Epoch: -1, Offset: at[p.id]}}})
	}
}

// Close leaves the group, during which Revoke is called, and ends the client. A
// temporary group is deleted. Past ctx it cuts what is left, and the broker gives
// the partitions on when the session times out.
func (c *consumer) Close(ctx context.Context) error {
	var err error
	c.once.Do(func() { err = c.shut(ctx) }) // a second call waits for the first, and has nothing to add
	return err
}

func (c *consumer) shut(ctx context.Context) error {
	close(c.stop)
	c.stopGrowing()
	defer close(c.ended)
	defer context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.late = true; c.hurry != nil {
			c.hurry()
		}
	})()
	c.link.close()
	var left error
	if c.group != "" {
		left = c.cl.LeaveGroupContext(ctx)
	}
	if ids := c.open(); len(ids) > 0 && c.group == "" {
		c.revoke(context.WithoutCancel(ctx), ids)
	}
	closeClient(ctx, c.cl, c.kill)
	// Where leaving was cut short the callback may not have run.
	c.calls.Lock()
	c.lose(ctx, c.open())
	c.calls.Unlock()
	c.pulse.end()
	if c.sub.Temporary && c.group != "" {
		_, _ = c.d.adm.DeleteGroup(ctx, c.group) // an empty group expires by itself
	}
	c.d.forget(c)
	if left != nil && ctx.Err() != nil {
		return classify("close consumer", fmt.Errorf("group %s was not left, its partitions move on when the session times out: %w", c.group, left), driver.Transient)
	}
	return nil
}
