// A hot key: one table orders more than the kitchen can make in time. Its orders wait for
// each other, and nobody else's wait for them.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/middleware"
)

const (
	hot, hotOrders = "table-0", 200
	others, each   = 30, 4
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, done := context.WithTimeout(ctx, time.Minute)
	defer done()
	client, err := adapters.Open(ctx, adapters.Config{
		URL:    cmp.Or(os.Getenv("VARAL_URL"), "memory:"),
		Prefix: fmt.Sprintf("example-07-%d-", time.Now().UnixNano()), Provision: core.ProvisionCreate,
	})
	if err != nil {
		return err
	}
	defer client.Close(context.WithoutCancel(ctx))

	line := core.Queue("orders").Keyed(3)
	var msgs []*core.Message
	for range hotOrders { // the hot table is first in line with everything it wants
		msgs = append(msgs, &core.Message{Key: hot})
	}
	for i := range others * each {
		msgs = append(msgs, &core.Message{Key: fmt.Sprint("table-", i%others+1)})
	}
	if err := client.Publish(ctx, line, msgs...); err != nil {
		return err
	}
	var mu sync.Mutex
	made := map[bool]int{} // by whether it is the hot table's
	cook := func(_ context.Context, d *core.Delivery) error {
		time.Sleep(3 * time.Millisecond) // in the oven
		mu.Lock()
		defer mu.Unlock()
		if made[d.Key == hot]++; d.Key != hot && made[false] == others*each {
			fmt.Printf("%d orders of %d other tables are made; most of the hot table's still wait: %v\n", made[false], others, made[true] < hotOrders/2)
		}
		if made[true]+made[false] == len(msgs) {
			fmt.Printf("%d orders of the hot table are made\n", made[true])
			done()
		}
		return nil
	}
	return client.Consume(ctx, core.Subscription{From: line, Group: "kitchen"}, cook,
		middleware.SessionOrder(8), // the hot table takes one place of eight
		middleware.Prefetch(1024))  // room for its backlog beside the orders of the others
}
