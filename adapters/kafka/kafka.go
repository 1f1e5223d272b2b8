package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/varal-go/varal/adapters/internal/deadline"
	"github.com/varal-go/varal/adapters/internal/sdktext"
	"github.com/varal-go/varal/core/driver"
)

// kafka is the driver: one client that publishes and asks; each Consumer has a
// client of its own, since a client is one member of at most one group.
type kafka struct {
	conf Config
	link *link
	cl   *kgo.Client
	adm  *kadm.Client
	kill context.CancelFunc // ends cl's context

	topics sync.Map // name -> *topicInfo, of topics published to

	mu        sync.Mutex
	closed    bool                   // guarded by mu
	consumers map[*consumer]struct{} // guarded by mu
	static    map[string]*consumer   // by group, those that are static members; guarded by mu
	closing   sync.Once
}

// Open asks a broker once, so that a wrong address, certificate or password is told
// here: class NotFound or Transient where nobody answers, Denied where we are not let
// in, Permanent or Unsupported for a Config that cannot work. It takes no longer than
// ctx and Config.ConnectTimeout.
func Open(ctx context.Context, c Config) (driver.Driver, error) {
	const op = "open kafka"
	c = c.withDefaults()
	if err := c.check(); err != nil {
		return nil, driver.Errorf(op, driver.Permanent, "%w", err)
	}
	if c.ShareGroups {
		return nil, driver.Errorf(op, driver.Unsupported, "share_groups: share groups are not offered yet; leave it out, and a queue without partitions uses a consumer group")
	}
	d := &kafka{conf: c, link: &link{notify: c.Notify}, consumers: make(map[*consumer]struct{}), static: make(map[string]*consumer)}
	life, kill := context.WithCancel(context.WithoutCancel(ctx))
	d.kill = kill
	opts := append(c.options(d.link), kgo.WithContext(life))
	cl, err := kgo.NewClient(append(opts, d.publishOptions()...)...)
	if err != nil {
		kill()
		return nil, driver.Errorf(op, driver.Permanent, "%w", sdktext.Mark(err))
	}
	d.cl, d.adm = cl, kadm.NewClient(cl)
	if err := d.ask(ctx); err != nil {
		kill()
		d.link.close()
		cl.Close()
		return nil, classify(op, err, driver.Transient)
	}
	return d, nil
}

// ask sends one metadata request, which passes dial, TLS and SASL.
func (d *kafka) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.conf.ConnectTimeout)
	defer cancel()
	meta, err := d.adm.BrokerMetadata(ctx)
	if err != nil {
		return d.conf.hint(sdktext.Mark(d.explain(err)))
	}
	if len(meta.Brokers) == 0 {
		return errors.New("the cluster answered but names no broker")
	}
	return nil
}

// hint recognises a listener that wants TLS or SASL from a client that has none. The
// client has no error of its own for every way in which a broker hangs up.
func (c Config) hint(err error) error {
	switch {
	case c.TLS == nil && strings.Contains(err.Error(), "tls alert record"):
		return driver.Errorf("open kafka", driver.Denied, "the broker speaks TLS here: set tls (kafkas://): %w", err)
	case errors.Is(err, io.EOF):
		// Not a restart: the client has asked again for a while.
		return driver.Errorf("open kafka", driver.Denied, "the broker hangs up on our first question: does it want TLS or SASL, are user and password right? %w", err)
	}
	return err
}

// Capabilities tells what a destination can do.
func (d *kafka) Capabilities(driver.Destination) driver.Capabilities {
	return driver.Capabilities{
		Settle:     driver.UpTo,
		Order:      driver.PerPartition,
		Durable:    true,
		Replay:     true,
		MaxBytes:   d.conf.MaxBytes,
		StateBytes: stateBytes,
	}
}

// Admin returns the broker's administration.
func (d *kafka) Admin() driver.Admin { return &admin{d} }

// Close ends all consumers, then the connections. Publishes under way end Ambiguous.
// Past ctx it cuts what is left. A second call returns nil.
func (d *kafka) Close(ctx context.Context) error {
	var err error
	d.closing.Do(func() {
		d.mu.Lock()
		d.closed = true
		open := make([]*consumer, 0, len(d.consumers))
		for c := range d.consumers {
			open = append(open, c)
		}
		d.mu.Unlock()
		errs := make([]error, len(open))
		var wg sync.WaitGroup
		for i, c := range open {
			wg.Go(func() { errs[i] = c.Close(ctx) })
		}
		wg.Wait()
		d.link.close()
		closeClient(ctx, d.cl, d.kill)
		err = errors.Join(errs...)
	})
	return err
}

// closeClient closes cl; past ctx it ends the client's own context, on which every
// request of it hangs, and waits for the rest of Close.
func closeClient(ctx context.Context, cl *kgo.Client, kill context.CancelFunc) {
	defer kill()
	_, abandoned, wait := deadline.Do(ctx, func() error { cl.Close(); return nil }, nil)
	if abandoned {
		kill()
	}
	wait()
}

func (d *kafka) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

var errClosed = errors.New("used after Close")

// checkDestination refuses what no Kafka topic can be.
func checkDestination(op string, of driver.Destination) error {
	switch {
	case of.Shape < driver.Queue || of.Shape > driver.Stream:
		return driver.Errorf(op, driver.Permanent, "destination %q: Shape is not set", of.Name)
	case of.Name == "" || of.Name == "." || of.Name == ".." || len(of.Name) > 249:
		return driver.Errorf(op, driver.Permanent, "destination: a topic's name has 1 to 249 characters and is not . or ..")
	}
	if !isTopicName(of.Name) {
		return driver.Errorf(op, driver.Permanent, "destination %q: a topic's name holds only a-z A-Z 0-9 . _ -", of.Name)
	}
	return nil
}

// isTopicName is Kafka's rule for names of topics, which is that for instance ids too.
func isTopicName(s string) bool {
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-' {
			return false
		}
	}
	return s != "" && s != "." && s != ".." && len(s) <= 249
}

// topic asks for the metadata of one topic: NotFound, Denied.
func (d *kafka) topic(ctx context.Context, name string) (kadm.TopicDetail, error) {
	meta, err := d.adm.Metadata(ctx, name)
	if err != nil {
		return kadm.TopicDetail{}, d.explain(err)
	}
	t := meta.Topics[name]
	switch {
	case errors.Is(t.Err, kerr.UnknownTopicOrPartition):
		return t, fmt.Errorf("there is no topic %s: create it (varal topology apply) or correct the name: %w", name, t.Err)
	case t.Err != nil:
		return t, t.Err
	}
	return t, nil
}
