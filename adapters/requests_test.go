package adapters_test

import (
	"context"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
)

// TestRequestsOfAClient: what SQS bills is in the description of the client. The other
// brokers bill no requests.
func TestRequestsOfAClient(t *testing.T) {
	t.Parallel()
	open := func(url string) *core.Client {
		c, err := adapters.Open(t.Context(), adapters.Config{URL: url, Provision: core.ProvisionNone})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			if err := c.Close(ctx); err != nil {
				t.Error(err)
			}
		})
		return c
	}
	c := open(sqsAt(fakeAWS(t, nil)))
	if n := c.Describe().Requests; len(n) != 0 {
		t.Errorf("%v before anything was asked", n)
	}
	for range 2 {
		if err := c.Publish(t.Context(), core.Queue("tickets"), &core.Message{Body: []byte("margherita")}); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.Describe().Requests; n["SQS.SendMessageBatch"] != 2 || n["SQS.GetQueueUrl"] != 1 || len(n) != 2 {
		t.Errorf("%v", n)
	}
	if n := open("memory:").Describe().Requests; n != nil {
		t.Errorf("memory: %v", n)
	}
}

// TestOptionsOfTheAdapter: an application cannot set what is the adapter's to fill.
func TestOptionsOfTheAdapter(t *testing.T) {
	t.Parallel()
	o := core.Options{Requests: func() map[string]int64 { return nil }}
	if c, err := adapters.Open(t.Context(), adapters.Config{URL: "memory:", Options: o}); err == nil {
		t.Error("it was accepted", c.Close(t.Context()))
	}
}
