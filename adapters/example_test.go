package adapters_test

import (
	"context"
	"fmt"

	"github.com/varal-go/varal/adapters"
)

func ExampleOpen() {
	ctx := context.Background()
	client, err := adapters.Open(ctx, adapters.Config{URL: "memory:"}) // or kafka://localhost:9092, amqp://localhost:5672/, redis://localhost:6379, sqs://eu-central-1
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)
	fmt.Println(client.Describe().Broker)
	// Output: memory:
}

func ExampleParse() {
	file, err := adapters.Parse("varal.yaml", []byte(`
broker: memory
brokers:
  memory: {url: "memory:"}
  kafka: {url: "kafka://localhost:9092"}
destinations:
  tickets: {shape: queue, partitions: 8}
subscriptions:
  kitchen: {from: tickets, group: kitchen, order: by-key, prefetch: 64}
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	sub, layers, err := file.Subscription("kitchen")
	fmt.Println(sub.From, sub.From.Partitions, sub.Group, len(layers), err)
	// Output: queue tickets 8 kitchen 2 <nil>
}
