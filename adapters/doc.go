// Package adapters opens a client by configuration: the one place that knows every
// broker, so that changing the broker is changing a word.
//
//	client, err := adapters.Open(ctx, adapters.Config{URL: "kafka://localhost:9092"})
//
// The scheme of the URL chooses the adapter:
//
//	memory:  memory:NAME     package adapters/memory
//	kafka:// kafkas://       package adapters/kafka
//	amqp://  amqps://        package adapters/rabbitmq
//	redis:// rediss://       package adapters/redis
//	sqs://                   package adapters/aws
//
// The parameters after ? are those of the adapter's ParseURL. With no URL at all the
// environment variable VARAL_URL counts. A file (see [Load]) keeps the settings of
// every broker side by side with the destinations and subscriptions they share; there
// the broker is one word too, and VARAL_BROKER overrides it.
//
// This package links the client library of every broker. An application that wants
// one of them alone imports core and that adapter:
//
//	d, err := kafka.Open(ctx, kafka.Config{Brokers: []string{"localhost:9092"}})
//	client := core.NewClient(d, core.Options{})
package adapters
