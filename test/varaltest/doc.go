// Package varaltest tests applications that use varal, without a broker.
//
// A handler alone needs neither this package nor a client:
//
//	d := core.NewDelivery(core.Queue("tickets"), core.Message{Body: []byte("margherita")})
//	err := cook(ctx, d)
//
// What it publishes through the delivery is in d.Held. Code that publishes takes a
// core.Publisher; give it a [Recorder]. A whole service, with its subscriptions, retries
// and dead letters, runs on the client of [New], over a broker that lives and dies
// with the test; [Eventually] waits for what it does. All of it also works inside a
// testing/synctest bubble, where back-off takes no time.
package varaltest
