// A stream remembers: whoever comes later reads from the beginning, as often as they
// like, and a group goes on where it stopped.
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
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	client, err := adapters.Open(ctx, adapters.Config{
		URL:       cmp.Or(os.Getenv("VARAL_URL"), "memory:"),
		Prefix:    fmt.Sprintf("example-03-%d-", time.Now().Unix()), // a diary of its own for each run
		Provision: core.ProvisionCreate,
	})
	if err != nil {
		return err
	}
	defer client.Close(context.WithoutCancel(ctx))

	diary := core.Stream("diary").Keyed(1) // one partition: in order on every broker
	for _, line := range []string{"opened", "oven lit", "first guest", "closed"} {
		if err := client.Publish(ctx, diary, &core.Message{Key: "today", Body: []byte(line)}); err != nil {
			return err
		}
	}
	start := core.Position{Kind: core.Earliest}
	// Without a group nothing is committed: both readings see everything.
	if err := read(ctx, client, core.Subscription{From: diary, Start: start}, "first reading", 4); err != nil {
		return err
	}
	if err := read(ctx, client, core.Subscription{From: diary, Start: start}, "second reading", 4); err != nil {
		return err
	}
	// A group has a place of its own: the second visit begins where the first ended.
	auditor := core.Subscription{From: diary, Group: "auditor", Start: start}
	if err := read(ctx, client, auditor, "auditor, morning", 2); err != nil {
		return err
	}
	return read(ctx, client, auditor, "auditor, evening", 2)
}

// read prints n messages.
func read(ctx context.Context, client *core.Client, sub core.Subscription, who string, n int) error {
	for d, err := range client.Messages(ctx, sub, middleware.SessionOrder(1)) { // in order per key
		if err != nil {
			return err
		}
		fmt.Printf("%s: %s\n", who, d.Body)
		if err := d.Ack(); err != nil {
			return err
		}
		if n--; n == 0 {
			break
		}
	}
	return ctx.Err()
}
