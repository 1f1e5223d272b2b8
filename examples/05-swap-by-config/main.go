// The broker is a word in varal.yaml: VARAL_BROKER=kafka swaps it without a build.
package main

import (
	"context"
	_ "embed"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
)

//go:embed varal.yaml
var config []byte

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
	file, err := adapters.Parse("varal.yaml", config)
	if err != nil {
		return err
	}
	// A URL wins over the section that the file chooses.
	client, err := file.Open(ctx, adapters.Config{URL: os.Getenv("VARAL_URL")})
	if err != nil {
		return err
	}
	defer client.Close(context.WithoutCancel(ctx))
	tickets, err := file.Destination("tickets")
	if err != nil {
		return err
	}
	kitchen, layers, err := file.Subscription("kitchen")
	if err != nil {
		return err
	}
	plan, err := client.DescribeSubscription(kitchen, layers...)
	if err != nil {
		return err // a broker that cannot keep the order is refused here, before anything moves
	}
	fmt.Printf("%s: %s, order %s, dead letter %s\n", plan.Name, plan.Shape, plan.Order, plan.DeadLetter)
	if err := client.Publish(ctx, tickets, &core.Message{Key: "table-7", Body: []byte("margherita")}); err != nil {
		return err
	}
	ctx, done := context.WithCancel(ctx)
	defer done()
	return client.Consume(ctx, kitchen, func(_ context.Context, d *core.Delivery) error {
		fmt.Printf("%s for %s\n", d.Body, d.Key)
		done()
		return nil
	}, layers...)
}
