package redis

import (
	"context"
	"errors"
	"fmt"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/core/driver"
)

// confirmation is what is known of one message that was sent.
type confirmation struct {
	cmd goredis.Cmder
	// short says why a message that the server has taken is not confirmed: too few
	// replicas have it. nil = they have.
	short error
}

// exec sends items in one pipeline, and in one transaction where they are tied.
func (c *committer) exec(items []*item, tied bool) []confirmation {
	ctx, cancel := context.WithTimeout(context.Background(), c.b.cfg.ConnectTimeout+c.b.cfg.Timeout)
	defer cancel()
	var out []confirmation
	var err error
	switch cl := c.b.pub.(type) {
	case *goredis.Client:
		out, err = c.b.sendTo(ctx, cl, items, tied)
	case *goredis.ClusterClient:
		out, err = c.b.spread(ctx, cl, items, tied)
	}
	c.b.heard(err)
	return out
}

// sendTo sends items to one server.
func (b *broker) sendTo(ctx context.Context, cl *goredis.Client, items []*item, tied bool) ([]confirmation, error) {
	replicas := b.cfg.Replicas > 0
	pipe := cl.Pipeline()
	var cn *goredis.Conn
	switch {
	case tied && replicas:
		cn = cl.Conn()
		defer func() { _ = cn.Close() }()
		pipe = cn.TxPipeline()
	case tied:
		pipe = cl.TxPipeline()
	}
	for _, it := range items {
		it.queue(pipe)
	}
	// WAIT tells how many replicas have what its own connection wrote last. Within a
	// transaction it would not wait, so there it is asked after it, on the same connection.
	wait := goredis.NewCmd(ctx, "wait", b.cfg.Replicas, b.patience())
	if replicas && !tied {
		_ = pipe.Process(ctx, wait) // it is sent by Exec
	}
	cmds, err := pipe.Exec(ctx)
	if tied && replicas && (err == nil || !offline(err)) {
		_ = cn.Process(ctx, wait)
	}
	out := make([]confirmation, len(items))
	for i := range out {
		out[i].cmd = cmds[i]
		if replicas {
			out[i].short = b.shortfall(wait)
		}
	}
	return out, err
}

// patience is how long replicas may take, in milliseconds: the answer must be here before
// the connection is taken for dead.
func (b *broker) patience() int64 { return max(1, b.cfg.Timeout.Milliseconds()/2) }

// shortfall reads the answer of WAIT.
func (b *broker) shortfall(wait *goredis.Cmd) error {
	n, err := wait.Int()
	switch {
	case err != nil: // a failover ends it, for example
		return fmt.Errorf("the server has it and did not tell whether its replicas do: %w", err)
	case n < b.cfg.Replicas:
		return fmt.Errorf("the server has it, and %d of the %d replicas that are asked for (Config.Replicas)", n, b.cfg.Replicas)
	}
	return nil
}

// outcome notes what became of an item. An entry without a stream is refused with nil, a
// scheduled one with 0: a destination is never made by the way.
func (p *parcel) outcome(it *item, c confirmation) {
	err := c.cmd.Err()
	if eval, ok := c.cmd.(*goredis.Cmd); ok && err == nil && it.delay > 0 && eval.Val() == int64(0) {
		err = goredis.Nil
	}
	switch {
	case err == nil && c.short != nil:
		p.errs[it.at] = driver.Errorf(p.op, driver.Ambiguous, "%w", c.short)
	case err == nil:
		p.errs[it.at] = nil
		if id, ok := c.cmd.(*goredis.Cmd); ok && it.delay == 0 {
			p.clock.set(text(id.Val()))
		}
	case errors.Is(err, goredis.Nil):
		p.errs[it.at] = driver.Errorf(p.op, driver.NotFound, "there is no %s: create it (Provision create, or varal topology apply)", p.to)
	default:
		p.errs[it.at] = classify(p.op, err)
	}
}
