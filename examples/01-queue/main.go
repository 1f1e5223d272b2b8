// A queue divides work: each ticket goes to one cook. Keyed(4) keeps the tickets of
// one table in order, through a failure too.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync/atomic"
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
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	client, err := adapters.Open(ctx, adapters.Config{
		URL:    cmp.Or(os.Getenv("VARAL_URL"), "memory:"),
		Prefix: "example-01-", Provision: core.ProvisionCreate,
	})
	if err != nil {
		return err
	}
	defer client.Close(context.WithoutCancel(ctx))

	tickets := core.Queue("tickets").Keyed(4)
	for _, pizza := range []string{"margherita", "marinara", "diavola"} {
		if err := client.Publish(ctx, tickets, &core.Message{Key: "table-7", Body: []byte(pizza)}); err != nil {
			return err
		}
	}

	ctx, done := context.WithCancel(ctx)
	defer done()
	var made atomic.Int32
	cook := func(_ context.Context, d *core.Delivery) error {
		if string(d.Body) == "marinara" && d.Attempt == 1 {
			fmt.Println("marinara: the oven is too cold")
			return errors.New("the oven is too cold")
		}
		fmt.Printf("%s for %s, attempt %d\n", d.Body, d.Key, d.Attempt)
		if made.Add(1) == 3 {
			done()
		}
		return nil
	}
	return client.Consume(ctx, core.Subscription{From: tickets, Group: "kitchen"}, cook,
		middleware.SessionOrder(16), // one ticket of a table at a time, 16 tables at once
		middleware.Retry(middleware.Exponential{Base: 20 * time.Millisecond, Attempts: 5}),
		middleware.DeadLetter(core.Queue("tickets.dlq")))
}
