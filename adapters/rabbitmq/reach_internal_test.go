package rabbitmq

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// TestReach: the end is exact, however often it is asked for.
func TestReach(t *testing.T) {
	t.Parallel()
	url := os.Getenv("VARAL_RABBITMQ_URL")
	if url == "" {
		t.Skip("VARAL_RABBITMQ_URL is not set: needs a real RabbitMQ") // the other tests see to VARAL_REQUIRE
	}
	c, err := ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	d, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close(t.Context()) }()
	b := d.(*broker) //nolint:forcetypeassert // Open's
	to := driver.Destination{Shape: driver.Stream, Name: fmt.Sprintf("test.reach.%d.%d", os.Getpid(), time.Now().UnixNano())}
	r := []driver.Resource{{Destination: to}}
	if _, err := d.Admin().Apply(t.Context(), r, driver.Create); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = d.Admin().Apply(t.Context(), r, driver.Delete) }()
	s, err := b.sub.session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	end := int64(0)
	for _, n := range []int{0, 20, 10, 500, 1, 3000, 7} {
		var batch []*driver.Message
		for range n {
			batch = append(batch, &driver.Message{ID: "x", Body: []byte("body")})
		}
		if err := d.Publish(t.Context(), to, batch); err != nil {
			t.Fatal(err)
		}
		end += int64(n)
		for range 10 {
			if got, err := reachOf(s, to.Name); err != nil || got != (reach{end: end}) {
				t.Fatalf("%+v, want the end at %d: %v", got, end, err)
			}
		}
	}
}
