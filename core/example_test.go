package core_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/middleware"
)

// memoryClient opens a broker of its own in this process.
func memoryClient(ctx context.Context) *core.Client {
	client, err := adapters.Open(ctx, adapters.Config{
		URL:     "memory:",
		Options: core.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))},
	})
	if err != nil {
		panic(err)
	}
	return client
}

// Publish returns nil once the broker has confirmed every message.
func ExampleClient_Publish() {
	ctx := context.Background()
	client := memoryClient(ctx)
	defer client.Close(ctx)
	err := client.Publish(ctx, core.Queue("tickets").Keyed(8),
		&core.Message{Key: "table-7", Body: []byte("margherita")},
		&core.Message{Key: "table-3", Body: []byte("marinara")})
	fmt.Println(err)

	err = client.Publish(ctx, core.Stream("diary"), &core.Message{Delay: time.Hour})
	fmt.Println(errors.Is(err, core.ErrUnsupported)) // refused by name, not sent early
	// Output:
	// <nil>
	// true
}

// Consume blocks until ctx ends and everything under way is settled.
func ExampleClient_Consume() {
	ctx, cancel := context.WithCancel(context.Background())
	client := memoryClient(ctx)
	defer client.Close(context.WithoutCancel(ctx))
	tickets := core.Queue("tickets").Keyed(8)
	_ = client.Publish(ctx, tickets, &core.Message{Key: "table-7", Body: []byte("margherita")})

	err := client.Consume(ctx, core.Subscription{From: tickets, Group: "kitchen"}, func(_ context.Context, d *core.Delivery) error {
		fmt.Printf("%s for %s\n", d.Body, d.Key)
		cancel()
		return nil // acknowledged
	}, middleware.SessionOrder(16), middleware.Prefetch(256))
	fmt.Println(err)
	// Output:
	// margherita for table-7
	// <nil>
}

// Messages is for code that wants to pull; each delivery is settled by hand.
func ExampleClient_Messages() {
	ctx := context.Background()
	client := memoryClient(ctx)
	defer client.Close(ctx)
	tickets := core.Queue("tickets").Keyed(1)
	_ = client.Publish(ctx, tickets, &core.Message{Key: "a", Body: []byte("one")}, &core.Message{Key: "a", Body: []byte("two")})

	for d, err := range client.Messages(ctx, core.Subscription{From: tickets}, middleware.SessionOrder(1)) {
		if err != nil {
			fmt.Println(err)
			break
		}
		fmt.Println(string(d.Body), d.Ack())
		if string(d.Body) == "two" {
			break // leaving the loop drains the subscription
		}
	}
	// Output:
	// one <nil>
	// two <nil>
}

// Start returns a Consumer that can be watched and steered while it runs.
func ExampleClient_Start() {
	ctx := context.Background()
	client := memoryClient(ctx)
	defer client.Close(ctx)
	consumer, err := client.Start(ctx, core.Subscription{From: core.Queue("tickets"), Group: "kitchen"},
		func(context.Context, *core.Delivery) error { return nil })
	if err != nil {
		fmt.Println(err)
		return
	}
	consumer.Pause()
	fmt.Println(consumer.Status().Name, consumer.Status().State)
	consumer.Resume()
	consumer.SetLimit(10)
	fmt.Println(consumer.Drain(ctx), consumer.Status().State)
	// Output:
	// tickets/kitchen paused
	// <nil> stopped
}

// Run starts the subscriptions of a service together and drains them together.
func ExampleClient_Run() {
	ctx, cancel := context.WithCancel(context.Background())
	client := memoryClient(ctx)
	defer client.Close(context.WithoutCancel(ctx))
	pizzas := core.Topic("pizzas")
	_ = client.Publish(ctx, pizzas, &core.Message{Body: []byte("margherita")})
	var seen atomic.Int32
	note := func(who string) core.Handler {
		return func(_ context.Context, d *core.Delivery) error {
			fmt.Printf("%s: %s\n", who, d.Body)
			if seen.Add(1) == 2 {
				cancel()
			}
			return nil
		}
	}
	err := client.Run(ctx,
		core.Binding{Subscription: core.Subscription{From: pizzas, Group: "billing"}, Handler: note("billing")},
		core.Binding{Subscription: core.Subscription{From: pizzas, Group: "screen"}, Handler: note("screen")})
	fmt.Println(err)
	// Unordered output:
	// billing: margherita
	// screen: margherita
	// <nil>
}

type ticket struct {
	Pizza string `json:"pizza"`
}

// Typed decodes the body. NewDelivery tests a handler without any broker.
func ExampleTyped() {
	handler := core.Typed(core.JSON[ticket]{}, func(_ context.Context, t ticket, d *core.Delivery) error {
		fmt.Println(t.Pizza, d.Attempt)
		d.Publish(core.Topic("pizzas"), &core.Message{Key: d.Key}) // sent once the handler has succeeded
		return nil
	})
	m, _ := core.NewMessage(core.JSON[ticket]{}, "table-7", ticket{Pizza: "diavola"})
	d := core.NewDelivery(core.Queue("tickets"), *m)
	fmt.Println(handler(context.Background(), d))
	for to, m := range d.Held {
		fmt.Println(to, m.Key)
	}
	bad := core.NewDelivery(core.Queue("tickets"), core.Message{Body: []byte("{")})
	fmt.Println(handler(context.Background(), bad)) // permanent: it goes to the dead letter at once
	// Output:
	// diavola 1
	// <nil>
	// topic pizzas table-7
	// decode body: unexpected end of JSON input
}

// Mux dispatches by Message.Type.
func ExampleMux() {
	var mux core.Mux
	mux.Handle("ordered", func(_ context.Context, d *core.Delivery) error {
		fmt.Println("ordered:", string(d.Body))
		return nil
	})
	for _, kind := range []string{"ordered", "paid"} {
		d := core.NewDelivery(core.Topic("pizzas"), core.Message{Type: kind, Body: []byte("margherita")})
		fmt.Println(mux.Serve(context.Background(), d))
	}
	// Output:
	// ordered: margherita
	// <nil>
	// no handler for message type "paid"
}

// The error a handler returns says what becomes of the message.
func ExamplePermanent() {
	ctx, cancel := context.WithCancel(context.Background())
	client := memoryClient(ctx)
	defer client.Close(context.WithoutCancel(ctx))
	tickets := core.Queue("tickets").Keyed(1)
	for _, body := range []string{"burnt", "pineapple", "anchovies", "closed"} {
		_ = client.Publish(ctx, tickets, &core.Message{Key: "table-7", Body: []byte(body)})
	}
	err := client.Consume(ctx, core.Subscription{From: tickets, Name: "kitchen"}, func(_ context.Context, d *core.Delivery) error {
		fmt.Println(string(d.Body), d.Attempt)
		switch {
		case string(d.Body) == "burnt" && d.Attempt == 1:
			return core.RetryAfter(time.Millisecond, errors.New("burnt")) // again, not before
		case string(d.Body) == "pineapple":
			return core.Permanent(errors.New("no")) // no retry will mend it: to the dead letter
		case string(d.Body) == "anchovies":
			return core.Ignore(errors.New("they never eat them")) // failed, and done
		case string(d.Body) == "closed":
			return core.Halt(errors.New("we are closed")) // stop; the message stays
		}
		return nil
	}, middleware.SessionOrder(1), middleware.DeadLetter(core.Queue("tickets.dlq")))
	cancel()
	fmt.Println(err != nil)
	// Output:
	// burnt 1
	// burnt 2
	// pineapple 1
	// anchovies 1
	// closed 1
	// true
}
