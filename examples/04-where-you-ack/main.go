// Where you acknowledge decides what a crash costs: before the work it loses a ticket,
// after the work it repeats one.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/middleware"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := shift(ctx, "ack first", middleware.AckFirst()); err != nil {
		return err
	}
	return shift(ctx, "work first")
}

// shift works off five tickets. The first cook is killed in the middle of the second
// one; another takes over.
func shift(ctx context.Context, name string, layers ...core.Layer) error {
	client, err := adapters.Open(ctx, adapters.Config{
		URL:    cmp.Or(os.Getenv("VARAL_URL"), "memory:"),
		Prefix: fmt.Sprintf("example-04-%d-", time.Now().UnixNano()), Provision: core.ProvisionCreate,
	})
	if err != nil {
		return err
	}
	defer client.Close(context.WithoutCancel(ctx))
	tickets := core.Queue("tickets").Keyed(1)
	for i := range 5 {
		if err := client.Publish(ctx, tickets, &core.Message{Key: "table-7", Body: fmt.Append(nil, "ticket ", i+1)}); err != nil {
			return err
		}
	}
	layers = append(layers, middleware.Concurrency(1), middleware.Prefetch(1), middleware.Drain(0))
	sub := core.Subscription{From: tickets, Group: "kitchen"}
	started, finished := map[string]int{}, 0
	first, kill := context.WithTimeout(ctx, time.Minute)
	defer kill()
	err = client.Consume(first, sub, func(ctx context.Context, d *core.Delivery) error {
		if started[string(d.Body)]++; string(d.Body) == "ticket 2" {
			kill()
			<-ctx.Done() // the handler never gets any further
			return ctx.Err()
		}
		finished++
		return nil
	}, layers...)
	if err != nil {
		return err
	}
	second, stop := context.WithCancel(ctx)
	defer stop()
	quiet := time.AfterFunc(5*time.Second, stop)
	err = client.Consume(second, sub, func(_ context.Context, d *core.Delivery) error {
		started[string(d.Body)]++
		finished++
		quiet.Reset(time.Second)
		return nil
	}, layers...)
	fmt.Printf("%s: %d of 5 tickets finished, ticket 2 was started %d time(s)\n", name, finished, started["ticket 2"])
	return err
}
