package core

import (
	"context"
	"errors"
	"sync"
)

// Binding is one subscription of a service with its handler and layers.
type Binding struct {
	// Subscription is where the messages come from, Handler what is done with each.
	Subscription Subscription
	Handler      Handler
	// Layers edit the policy, as in Client.Start.
	Layers []Layer
}

// Run starts the subscriptions of a service together and drains them together: when
// ctx ends, or when one of them fails. If one does not start, those that did are
// drained and its error is returned; as with Consume, a cancelled ctx is none.
func (c *Client) Run(ctx context.Context, bindings ...Binding) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var started []*Consumer
	var err error
	for _, b := range bindings {
		s, startErr := c.Start(ctx, b.Subscription, b.Handler, b.Layers...)
		if startErr != nil {
			err = unlessCancelled(ctx, startErr)
			cancel()
			break
		}
		started = append(started, s)
	}
	errs := make([]error, len(started))
	var wg sync.WaitGroup
	for i, s := range started {
		wg.Go(func() {
			errs[i] = s.Wait()
			cancel() // one that ended takes the others with it
		})
	}
	wg.Wait()
	return errors.Join(append([]error{err}, errs...)...)
}
