package core

import (
	"context"
	"iter"
	"sync"
)

// Messages is Consume as an iterator. Each delivery is the loop body's to settle, by
// Ack, Nack, Return or Reject, in any order; Policy.MaxInFlight of them may be open
// at once. Leaving the loop drains the subscription and returns what was not settled.
// An error comes last, with a nil Delivery, and ends the loop; the end of ctx ends it
// without one, once the loop body has returned: what the body settles until then counts,
// within Policy.DrainTimeout.
func (c *Client) Messages(ctx context.Context, sub Subscription, layers ...Layer) iter.Seq2[*Delivery, error] {
	return func(yield func(*Delivery, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		out := make(chan *Delivery)
		left := make(chan struct{}) // closed when no loop body runs any more
		leave := sync.OnceFunc(func() { close(left) })
		// Every open delivery occupies a worker, which waits here for its decision.
		hold := func(hctx context.Context, d *Delivery) error {
			select {
			case out <- d:
			case <-ctx.Done():
				return Return(ctx.Err())
			case <-hctx.Done():
				return Return(context.Cause(hctx))
			}
			select {
			case <-d.demand().decided:
				return nil
			case <-left:
				return Return(context.Canceled)
			case <-hctx.Done():
				return Return(context.Cause(hctx))
			}
		}
		open := Layer{Name: "Messages", Edit: func(p *Policy) error { p.iterate = true; return nil }}
		s, err := c.Start(ctx, sub, hold, append(layers[:len(layers):len(layers)], open)...)
		if err = unlessCancelled(ctx, err); err != nil {
			yield(nil, err)
		}
		if s == nil {
			return
		}
		defer func() {
			cancel()
			leave()
			<-s.Done()
		}()
		for {
			select {
			case d := <-out:
				if !yield(d, nil) {
					return
				}
			case <-s.stop:
				leave()
				if err := s.Wait(); err != nil {
					yield(nil, err)
				}
				return
			}
		}
	}
}
