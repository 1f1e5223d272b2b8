// Session order: what one table orders is made in that order, also when an order fails
// and is tried again, while the other tables go on.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/middleware"
)

const tables, orders = 4, 6

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
		Prefix: fmt.Sprintf("example-06-%d-", time.Now().UnixNano()), Provision: core.ProvisionCreate,
	})
	if err != nil {
		return err
	}
	defer client.Close(context.WithoutCancel(ctx))

	line := core.Queue("orders").Keyed(3) // tables share partitions; order is per table all the same
	for i := range tables * orders {
		m := &core.Message{Key: fmt.Sprint("table-", i%tables+1), Body: strconv.AppendInt(nil, int64(i/tables+1), 10)}
		if err := client.Publish(ctx, line, m); err != nil {
			return err
		}
	}
	var mu sync.Mutex
	made, left := map[string][]string{}, tables*orders
	cook := func(_ context.Context, d *core.Delivery) error {
		if n := string(d.Body); (n == "2" || n == "5") && d.Attempt <= 2 {
			return errors.New("the oven is too cold") // transient: what is behind it at this table waits
		}
		mu.Lock()
		defer mu.Unlock()
		made[d.Key] = append(made[d.Key], string(d.Body))
		if left--; left == 0 {
			done()
		}
		return nil
	}
	err = client.Consume(ctx, core.Subscription{From: line, Group: "kitchen"}, cook,
		middleware.SessionOrder(tables),
		middleware.Retry(middleware.Exponential{Base: 5 * time.Millisecond, Jitter: core.HalfJitter}))
	held := true
	for t := range tables {
		key := fmt.Sprint("table-", t+1)
		fmt.Println(key, made[key])
		for i, n := range made[key] {
			held = held && n == strconv.Itoa(i+1)
		}
	}
	fmt.Printf("order held: %v, missing: %d\n", held, left)
	return err
}
