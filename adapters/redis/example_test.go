package redis_test

import (
	"context"
	"fmt"
	"time"

	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core/driver"
)

// A queue on a Redis of one's own. Applications mostly get the adapter from the URL.
func ExampleOpen() {
	c, err := redis.ParseURL("redis://localhost:6379?lease=1m")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	d, err := redis.Open(ctx, c)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close(ctx)
	tickets := driver.Destination{Shape: driver.Queue, Name: "tickets"}
	fmt.Println(d.Capabilities(tickets).Durable) // appendonly yes, maxmemory-policy noeviction
}
