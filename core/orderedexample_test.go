package core_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/middleware"
)

// unlucky loses the confirm of the first message.
type unlucky struct {
	core.Publisher
	calls int
}

func (u *unlucky) Publish(ctx context.Context, to core.Destination, msgs ...*core.Message) error {
	if u.calls++; u.calls == 1 {
		return driver.Errorf("publish "+to.String(), driver.Ambiguous, "the connection broke")
	}
	return u.Publisher.Publish(ctx, to, msgs...)
}

// After a failure nothing of the same key is sent until that message has been sent again: a
// later one cannot overtake it. The numbers let the consumer check.
func ExampleOrderedPublisher() {
	ctx := context.Background()
	client := memoryClient(ctx)
	defer client.Close(ctx)
	p := core.NewOrderedPublisher(&unlucky{Publisher: client}, core.OrderedOptions{Sequence: true})
	defer p.Close(ctx)
	tickets := core.Queue("tickets").Keyed(8)

	first := &core.Message{ID: "m1", Key: "table-7", Body: []byte("margherita")}
	fmt.Println(errors.Is(p.Publish(ctx, tickets, first), core.ErrIndeterminate))
	second := &core.Message{ID: "m2", Key: "table-7", Body: []byte("no, diavola")}
	fmt.Println(p.Publish(ctx, tickets, second))
	fmt.Println(p.Publish(ctx, tickets, &core.Message{Key: "table-3", Body: []byte("marinara")})) // another key
	for _, b := range p.Blocked() {
		fmt.Printf("%q by %s\n", b.Key, b.ID)
	}
	fmt.Println(p.Publish(ctx, tickets, first), p.Publish(ctx, tickets, second)) // in order again

	var last core.Sequence
	for d, err := range client.Messages(ctx, core.Subscription{From: tickets}, middleware.SessionOrder(4)) {
		if err != nil {
			fmt.Println(err)
			break
		}
		_ = d.Ack()
		if d.Key != "table-7" {
			continue
		}
		seq, _ := core.SequenceOf(&d.Message)
		order, _ := seq.Compare(last)
		fmt.Printf("%s is number %d, in order: %v\n", d.Body, seq.N, order > 0 || last.N == 0)
		if last = seq; seq.N == 2 {
			break
		}
	}
	// Output:
	// true
	// publish queue tickets: not sent: key "table-7" is blocked by message "m1": publish that one again, or ResumeKey: varal: key blocked by an earlier message (transient)
	// <nil>
	// "table-7" by m1
	// <nil> <nil>
	// margherita is number 1, in order: true
	// no, diavola is number 2, in order: true
}
