// A topic multiplies work: every group gets every pizza, at its own pace.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
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
		Prefix: "example-02-", Provision: core.ProvisionCreate,
	})
	if err != nil {
		return err
	}
	defer client.Close(context.WithoutCancel(ctx))

	pizzas := core.Topic("pizzas")
	open, done := context.WithCancel(ctx) // not Publish's: a pizza may be seen before the broker has confirmed it
	defer done()
	var seen atomic.Int32
	// Start returns once the broker knows the group: what is published from then on
	// reaches it, on every broker.
	for _, group := range []string{"billing", "screen"} {
		_, err := client.Start(open, core.Subscription{From: pizzas, Group: group}, func(_ context.Context, d *core.Delivery) error {
			fmt.Printf("%s: %s\n", group, d.Body)
			if seen.Add(1) == 4 {
				done()
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	err = client.Publish(ctx, pizzas,
		&core.Message{Key: "table-7", Body: []byte("margherita")},
		&core.Message{Key: "table-3", Body: []byte("marinara")})
	if err != nil {
		return err
	}
	<-open.Done()
	return nil
}
