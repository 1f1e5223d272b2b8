package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/adapters/aws"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/middleware"
)

const (
	sqsPayload  = 1 << 10
	sqsMessages = 3000 // ours; ten in a request
	sqsSingles  = 500  // the peer's; each a request of its own, three times
	sqsCallers  = 30
	sqsLease    = 30 * time.Second
	sqsWait     = 20 * time.Second // of the long polls of both sides
	// sqsWatch takes in three long polls of both sides, wherever it begins.
	sqsWatch = 3 * sqsWait
)

// sqsRows are none: what counts on SQS is not the rate, which here is the emulator's, but
// the requests, which are billed. See sqsRequests.
func sqsRows() []row { return nil }

// requests is the result of a row: HTTP requests a message, or a second.
type requests struct {
	Name         string  `json:"name"`
	What         string  `json:"what"`
	Peer         string  `json:"peer"`
	Per          string  `json:"per"`
	Ours         float64 `json:"ours"`
	PeerRate     float64 `json:"peer_value"`
	Messages     int     `json:"messages,omitempty"`
	PeerMessages int     `json:"peer_messages,omitempty"`
	Seconds      float64 `json:"seconds,omitempty"`
	Bar          float64 `json:"bar"`
	Met          bool    `json:"met"`
}

// sqsSide runs one side with the server behind a counter. It sends and handles n messages,
// then calls idle with the subscription still there.
type sqsSide func(ctx context.Context, endpoint, queue string, n int, idle func() error) error

// sqsRequests measures both rows, the two sides at the same time: neither takes anything
// from the other that is counted.
func (p printer) sqsRequests(ctx context.Context, o options, progress io.Writer) error {
	saturated := requests{
		Name: "sqs-saturated", Per: "message", Bar: 0.35, Messages: sqsMessages, PeerMessages: sqsSingles,
		What: fmt.Sprintf("messages of %d bytes on a standard queue, sent, handled and acknowledged, by %d callers of 10", sqsPayload, sqsCallers),
	}
	idle := requests{Name: "sqs-idle", Per: "second", Bar: 0.06, Seconds: sqsWatch.Seconds(), What: "the subscription of the row before, with nothing to do"}
	if !strings.Contains(saturated.Name, o.only) && !strings.Contains(idle.Name, o.only) {
		return nil
	}
	_, _ = fmt.Fprintf(progress, "%s: %s\n%s: %s, for %s\n", saturated.Name, saturated.What, idle.Name, idle.What, sqsWatch)
	var ours, peer sqsCount
	var oursErr, peerErr error
	var wg sync.WaitGroup
	both, failed := context.WithCancel(ctx)
	defer failed()
	side := func(c *sqsCount, into *error, n int, f sqsSide) {
		wg.Go(func() {
			if *c, *into = countSQS(both, n, f); *into != nil {
				failed() // alone, the other would go on for two minutes
			}
		})
	}
	side(&ours, &oursErr, sqsMessages, varalSQS)
	side(&peer, &peerErr, sqsSingles, watermillSQS)
	wg.Wait()
	if err := errors.Join(oursErr, peerErr); err != nil {
		return fmt.Errorf("sqs: %w", err)
	}
	saturated.Ours, saturated.PeerRate = ours.perMessage, peer.perMessage
	idle.Ours, idle.PeerRate = ours.perSecond, peer.perSecond
	for _, r := range []requests{saturated, idle} {
		if strings.Contains(r.Name, o.only) {
			p.requests(r)
		}
	}
	return nil
}

func (p printer) requests(r requests) {
	r.Peer, r.Met = "watermill-aws", r.Ours <= r.Bar
	if p.json {
		p.object(r)
		return
	}
	over := fmt.Sprintf("%d and %d messages", r.Messages, r.PeerMessages)
	if r.Seconds > 0 {
		over = fmt.Sprintf("%g s", r.Seconds)
	}
	_, _ = fmt.Fprintf(p.out, "requests %s ours %.3f %s %.3f a %s  (%s)  bar <= %g: %s\n", r.Name, r.Ours, r.Peer, r.PeerRate, r.Per, over, r.Bar, verdict(r.Met))
}

// sqsCount is what one side asked of the server.
type sqsCount struct{ perMessage, perSecond float64 }

// countSQS runs a side on a queue of its own.
func countSQS(ctx context.Context, n int, side sqsSide) (c sqsCount, err error) {
	server := os.Getenv("VARAL_SQS_URL")
	if server == "" {
		return c, errors.New("VARAL_SQS_URL is not set: start an emulator with `go run ./test/brokers up --install sqs` and load the variables it prints")
	}
	target, err := url.Parse(server)
	if err != nil {
		return c, errors.New("VARAL_SQS_URL is no URL")
	}
	drv, err := aws.Open(ctx, sqsConfig(server)) // makes and deletes the queue, uncounted
	if err != nil {
		return c, err
	}
	defer drv.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the row is over
	queue := uniqueName("queue")
	made := []core.Resource{{Destination: core.Queue(queue)}}
	if _, err := drv.Admin().Apply(ctx, made, driver.Create); err != nil {
		return c, err
	}
	defer drv.Admin().Apply(context.WithoutCancel(ctx), made, driver.Delete) //nolint:errcheck // what is left is one empty queue
	proxy := &requestCounter{next: &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}}
	srv := httptest.NewServer(proxy)
	defer srv.Close()
	err = side(ctx, srv.URL, queue, n, func() error {
		c.perMessage = float64(proxy.n.Load()) / float64(n)
		if err := wait(ctx, sqsWait+2*time.Second); err != nil { // what the work has begun is over
			return err
		}
		before := proxy.n.Load()
		err := wait(ctx, sqsWatch)
		c.perSecond = float64(proxy.n.Load()-before) / sqsWatch.Seconds()
		return err
	})
	return c, err
}

// requestCounter counts every request before it is answered.
type requestCounter struct {
	n    atomic.Int64
	next http.Handler
}

func (c *requestCounter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.n.Add(1)
	c.next.ServeHTTP(w, r)
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func sqsConfig(endpoint string) aws.Config {
	return aws.Config{Region: "us-east-1", Endpoint: endpoint, AccessKeyID: "test", SecretAccessKey: "test", Lease: sqsLease, Wait: sqsWait}
}

// varalSQS sends all messages, then consumes them.
func varalSQS(ctx context.Context, endpoint, queue string, n int, idle func() error) error {
	drv, err := aws.Open(ctx, sqsConfig(endpoint))
	if err != nil {
		return err
	}
	c := core.NewClient(drv, core.Options{Logger: quiet, Provision: core.ProvisionNone})
	defer func() { // the open poll is not waited for
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = c.Close(closing)
	}()
	src := newSource(sqsPayload, 0)
	var left, settled atomic.Int64
	left.Store(int64(n / 10))
	errs := make(chan error, sqsCallers)
	for range sqsCallers {
		go func() {
			for left.Add(-1) >= 0 {
				if err := c.Publish(ctx, core.Queue(queue), sqsTexts(src, 10)...); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range sqsCallers {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		return err
	}
	_, err = c.Start(ctx, core.Subscription{From: core.Queue(queue)}, func(context.Context, *core.Delivery) error {
		settled.Add(1)
		return nil
	}, middleware.Prefetch(256), middleware.Concurrency(engineWorkers))
	if err != nil {
		return err
	}
	if err := emptied(ctx, drv, queue, &settled, n); err != nil {
		return err
	}
	return idle()
}

// sqsText is a body that SQS takes as it is: Watermill does not encode those it does not.
func sqsText(src *source) []byte {
	body, _ := src.next()
	return base64.StdEncoding.AppendEncode(nil, body[:sqsPayload/4*3])
}

func sqsTexts(src *source, n int) []*core.Message {
	out := make([]*core.Message, n)
	for i := range out {
		out[i] = &core.Message{Body: sqsText(src)}
	}
	return out
}

// emptied waits until n messages were handled and the queue has none left. What it asks the
// server is counted against ours.
func emptied(ctx context.Context, drv driver.Driver, queue string, handled *atomic.Int64, n int) error {
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		if handled.Load() >= int64(n) {
			s, err := drv.Admin().Stats(ctx, core.Resource{Destination: core.Queue(queue)})
			if err != nil {
				return err
			}
			if s.Ready+s.InFlight == 0 {
				return nil
			}
		}
		if err := wait(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("%d of %d messages were handled within two minutes", handled.Load(), n)
}
