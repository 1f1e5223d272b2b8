package aws

import (
	"maps"
	"net/http"
	"sync"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
)

// Requests counts what was asked of the services: each HTTP request of each Driver that has
// it in its Config, whatever became of it, since that is what AWS bills (one for every 64
// KiB of a request). The zero Requests is ready. Its methods may be called concurrently.
type Requests struct {
	mu sync.Mutex
	by map[string]int64 // guarded by mu
}

// Counts returns the numbers so far by service and operation, such as
// SQS.SendMessageBatch, SQS.ReceiveMessage, SNS.PublishBatch or STS.AssumeRole. Only
// growing: the difference of two readings, divided by the messages between them, is what a
// message costs. The map is the caller's.
func (r *Requests) Counts() map[string]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.by)
}

func (r *Requests) count(operation string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by == nil {
		r.by = map[string]int64{}
	}
	r.by[operation]++
}

// counted counts on the way out. The SDK leaves the names in the context of a request.
type counted struct {
	next     http.RoundTripper
	requests *Requests
}

// RoundTrip implements http.RoundTripper.
func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.requests != nil {
		c.requests.count(awsmiddleware.GetServiceID(r.Context()) + "." + awsmiddleware.GetOperationName(r.Context()))
	}
	return c.next.RoundTrip(r)
}
