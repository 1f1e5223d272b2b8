package adapters

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/varal-go/varal/adapters/aws"
	"github.com/varal-go/varal/adapters/internal/sdktext"
	"github.com/varal-go/varal/adapters/kafka"
	"github.com/varal-go/varal/adapters/memory"
	"github.com/varal-go/varal/adapters/rabbitmq"
	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// schemes, with the one that encrypts. That of SQS does: what is plain there is an endpoint.
var schemes = map[string]string{
	"memory": "", "kafka": "kafkas", "kafkas": "kafkas", "amqp": "amqps", "amqps": "amqps", "redis": "rediss", "rediss": "rediss",
	"sqs": "sqs",
}

const schemeList = "memory:, kafka://, kafkas://, amqp://, amqps://, redis://, rediss:// or sqs://"

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// complete checks a target's URL and applies what depends on its scheme.
func (t *target) complete() error {
	scheme := schemeOf(t.url)
	encrypted, known := schemes[scheme]
	switch {
	case !known:
		return driver.Errorf("open "+Redact(t.url), driver.Permanent, "the URL must begin with %s", schemeList)
	case Redact(t.url) == unparseable:
		return driver.Errorf("open "+unparseable, driver.Permanent, "the URL cannot be read: write %s and percent-encode the special characters of user and password", forms[encrypted])
	case t.tls != nil && encrypted == "":
		return driver.Errorf("open "+Redact(t.url), driver.Permanent, "tls: a broker in this process has no connection to encrypt")
	}
	if t.tls != nil { // a tls block means TLS; a plain scheme beside it must not win in silence
		t.url = encrypted + t.url[len(scheme):]
	}
	if t.provision == core.ProvisionDefault {
		t.provision = core.ProvisionVerify
		if scheme == "memory" {
			t.provision = core.ProvisionCreate
		}
	}
	t.secrets = append(t.secrets, secretsOf(t.url)...)
	return nil
}

var forms = map[string]string{
	"":       "memory: or memory:NAME",
	"kafkas": "kafka://user:password@host:port,host:port?parameter=value",
	"amqps":  "amqp://user:password@host:port/vhost?parameter=value",
	"rediss": "redis://user:password@host:port/db?parameter=value",
	"sqs":    "sqs://key:secret@region?parameter=value",
}

// open is the explicit switch.
func (t *target) open(ctx context.Context, dial dialer, notify func(core.Event)) (driver.Driver, error) {
	var d driver.Driver
	var err error
	switch schemeOf(t.url) {
	case "memory":
		d, err = openMemory(ctx, t, notify)
	case "kafka", "kafkas":
		d, err = openKafka(ctx, t, dial, notify)
	case "amqp", "amqps":
		d, err = openRabbitMQ(ctx, t, dial, notify)
	case "redis", "rediss":
		d, err = openRedis(ctx, t, dial, notify)
	case "sqs":
		d, err = openAWS(ctx, t, dial, notify)
	}
	if err != nil {
		return nil, t.explain(err)
	}
	return d, nil
}

func openMemory(ctx context.Context, t *target, notify func(core.Event)) (driver.Driver, error) {
	c, err := memory.ParseURL(t.url)
	if err != nil {
		return nil, err
	}
	c.Notify = notify
	return memory.Open(ctx, c)
}

func openKafka(ctx context.Context, t *target, dial dialer, notify func(core.Event)) (driver.Driver, error) {
	c, err := kafka.ParseURL(t.url)
	if err != nil {
		return nil, err
	}
	if c.TLS, err = t.oneTLS(c.TLS); err != nil {
		return nil, err
	}
	c.Dial, c.Notify = dial, notify
	return kafka.Open(ctx, c)
}

func openRabbitMQ(ctx context.Context, t *target, dial dialer, notify func(core.Event)) (driver.Driver, error) {
	c, err := rabbitmq.ParseURL(t.url)
	if err != nil {
		return nil, err
	}
	if c.TLS, err = t.oneTLS(c.TLS); err != nil {
		return nil, err
	}
	c.Dial, c.Notify = dial, notify
	return rabbitmq.Open(ctx, c)
}

func openRedis(ctx context.Context, t *target, dial dialer, notify func(core.Event)) (driver.Driver, error) {
	c, err := redis.ParseURL(t.url)
	if err != nil {
		return nil, err
	}
	if c.TLS, err = t.oneTLS(c.TLS); err != nil {
		return nil, err
	}
	c.Dial, c.Notify = dial, notify
	return redis.Open(ctx, c)
}

func openAWS(ctx context.Context, t *target, dial dialer, notify func(core.Event)) (driver.Driver, error) {
	c, err := aws.ParseURL(t.url)
	if err != nil {
		return nil, err
	}
	if c.TLS, err = t.oneTLS(c.TLS); err != nil {
		return nil, err
	}
	// There is no scheme that a tls block could change, and a plain endpoint beside it must
	// not win in silence either.
	if c.TLS != nil && (plainHTTP(c.Endpoint) || plainHTTP(c.SNSEndpoint)) {
		return nil, driver.Errorf("", driver.Permanent, "tls is set and an endpoint begins with http://: write https://, or leave tls out")
	}
	c.Dial, c.Notify, c.Requests = dial, notify, new(aws.Requests)
	t.requests = c.Requests.Counts
	return aws.Open(ctx, c)
}

func plainHTTP(endpoint string) bool { return schemeOf(strings.ToLower(endpoint)) == "http" }

// oneTLS refuses two answers to the same question.
func (t *target) oneTLS(inURL *TLS) (*TLS, error) {
	switch {
	case t.tls == nil:
		return inURL, nil
	case inURL != nil && *inURL != TLS{}:
		return nil, driver.Errorf("", driver.Permanent, "tls is set in the URL's parameters and beside it: keep one")
	}
	return t.tls, nil
}

// explain gives an adapter's error the broker's name and a class, and takes secrets
// out of what a client library says in it.
func (t *target) explain(err error) error {
	class := driver.ClassOf(err)
	if class == 0 { // ParseURL of an adapter may return a plain error: it is about the URL
		class = driver.Permanent
	}
	return &driver.Error{Op: "open " + Redact(t.url), Class: class, Err: &scrubbed{err: err, secrets: t.secrets}}
}

// scrubbed is an error whose text hides secrets. errors.Is and errors.As reach the
// error itself.
type scrubbed struct {
	err     error
	secrets []string
}

func (s *scrubbed) Error() string {
	text := sdktext.Rewrite(s.err, s.scrub)
	if e, ok := s.err.(*driver.Error); ok { //nolint:errorlint // the outermost only: its class is told by whoever wraps this
		text = strings.TrimSuffix(text, " ("+e.Class.String()+")")
	}
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "; ") // errors.Join writes lines
}

func (s *scrubbed) scrub(text string) string { return sdktext.Hide(text, s.secrets) }

func (s *scrubbed) Unwrap() error { return s.err }

// Format keeps %+v and %#v from printing the fields.
func (s *scrubbed) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.Error())) }
