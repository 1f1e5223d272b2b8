package aws

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/varal-go/varal/adapters/internal/tlsconf"
	"github.com/varal-go/varal/core/driver"
)

// TLS is the tls block of the configuration.
type TLS = tlsconf.TLS

// Config of one AWS account and region. The zero Config is the SDK's own: region and
// credentials from the environment, the shared configuration files or the machine. A
// Config is not changed after Open, and prints without its secrets.
type Config struct {
	// Region such as eu-central-1. "" = AWS_REGION, or the one of the shared configuration.
	Region string
	// Endpoint is the base URL of another server that speaks SQS, for example an emulator
	// or a VPC endpoint. "" = the region's own. With one set no other host is dialled,
	// whatever the URL of a queue says.
	Endpoint string
	// SNSEndpoint is the same for SNS. "" = Endpoint.
	SNSEndpoint string
	// AccessKeyID, SecretAccessKey and SessionToken are static credentials. "" = the SDK's
	// default chain: environment, shared files, web identity, container, machine.
	AccessKeyID, SecretAccessKey, SessionToken string
	// Profile of the shared configuration files. "" = AWS_PROFILE, or "default".
	Profile string
	// RoleARN is a role to assume with the credentials above. "" = none. ExternalID and
	// RoleSession go with it; RoleSession "" = "varal".
	RoleARN, ExternalID, RoleSession string
	// AccountID owns queues and topics. With it their URLs and ARNs are made from their
	// names, which needs no right to look them up. "" = they are looked up.
	AccountID string
	// Prefix begins the name of every queue and topic. "" = none.
	Prefix string
	// Lease is the visibility timeout of a delivery, in whole seconds, at most 12 h. 0 =
	// the queue's own, or 30 s where it may not be read.
	Lease time.Duration
	// Wait is how long an empty queue is waited for in one request, in whole seconds, at
	// most 20 s. 0 = two thirds of the lease, at most 20 s. A consumer that ends waits for
	// the request that is open: a cut one may be handed a message that then stays hidden
	// for a lease.
	Wait time.Duration
	// Linger is how long a batch that is not full waits for other calls of Publish. 0 =
	// 5 ms, negative = not at all.
	Linger time.Duration
	// Polls is the most requests for messages that one consumer has open. 0 = 8.
	Polls int
	// MaxBytes is the MaximumMessageSize of the queues, on the wire. 0 = 1 MiB.
	MaxBytes int
	// TopicMaxBytes is the MaximumMessageSize of the topics. 0 = 256 KiB.
	TopicMaxBytes int
	// Attributes lists headers, at most three, that are sent as message attributes too, so
	// that a filter policy of SNS can see them. traceparent always is one.
	Attributes []string
	// TLS changes how certificates are checked, that of STS too. nil = the system's roots.
	TLS *TLS
	// AllowInsecure permits an Endpoint without TLS beyond loopback: whoever is on the way
	// can read every message. It is refused otherwise.
	AllowInsecure bool
	// Timeout bounds the wait for the answer of one request, beside Wait. 0 = 10 s.
	Timeout time.Duration
	// ConnectTimeout bounds one attempt to connect. 0 = 5 s.
	ConnectTimeout time.Duration
	// Dial opens the TCP connections, also those to STS for a role or a web identity; only
	// the metadata service of a machine is dialled directly. nil = net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Notify is told about the connection. It must not block.
	Notify func(driver.Event)
	// Requests counts what is asked of the services, which is what they bill. nil = nothing
	// is counted. Several Configs may share one.
	Requests *Requests
}

// String describes c without its secrets.
func (c Config) String() string {
	return fmt.Sprintf("aws.Config{Region: %q, Endpoint: %q, RoleARN: %q, Prefix: %q, Lease: %v}", c.Region, c.Endpoint, c.RoleARN, c.Prefix, c.Lease)
}

// Format prints String whatever the verb, so that %+v and %#v keep the secrets too.
func (c Config) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(c.String())) }

// LogValue logs String.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MarshalText writes String, for JSON and YAML.
func (c Config) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

const (
	maxLease     = 12 * time.Hour
	defaultLease = 30 * time.Second
	maxWait      = 20 * time.Second
	wireLimit    = 1 << 20
	minWire      = 1 << 10
	maxPolls     = 100
	morePromoted = 3 // headers that may be attributes too, beside traceparent
)

// withDefaults checks c and fills in what is zero.
func (c Config) withDefaults() (Config, error) {
	fill(&c.SNSEndpoint, c.Endpoint)
	fill(&c.RoleSession, "varal")
	fill(&c.Linger, 5*time.Millisecond)
	fill(&c.Polls, 8)
	fill(&c.MaxBytes, wireLimit)
	fill(&c.TopicMaxBytes, 256<<10)
	fill(&c.Timeout, 10*time.Second)
	fill(&c.ConnectTimeout, 5*time.Second)
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	for _, check := range []func() error{c.checkEndpoints, c.checkLogin, c.checkTimes, c.checkSizes} {
		if err := check(); err != nil {
			return c, err
		}
	}
	if c.TLS != nil {
		return c, c.TLS.Check()
	}
	return c, nil
}

func (c *Config) checkEndpoints() error {
	for _, e := range [...]struct{ field, raw string }{{"Config.Endpoint", c.Endpoint}, {"Config.SNSEndpoint", c.SNSEndpoint}} {
		if e.raw == "" {
			continue
		}
		field := e.field
		u, err := url.Parse(e.raw)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
			return fmt.Errorf("%s: want http://host:port or https://host", field)
		case u.User != nil:
			return fmt.Errorf("%s: no user and password here, use AccessKeyID and SecretAccessKey", field)
		case u.Scheme == "http" && !c.AllowInsecure && !loopback(u.Hostname()):
			return fmt.Errorf("%s: messages would travel unencrypted to %s: write https://, or add allow_insecure=true to the URL (Config.AllowInsecure)", field, u.Hostname())
		}
	}
	return nil
}

func (c *Config) checkLogin() error {
	switch {
	case (c.AccessKeyID == "") != (c.SecretAccessKey == ""):
		return errors.New("Config.AccessKeyID and Config.SecretAccessKey go together: set both or none")
	case c.SessionToken != "" && c.AccessKeyID == "":
		return errors.New("Config.SessionToken is set without an AccessKeyID")
	case c.ExternalID != "" && c.RoleARN == "":
		return errors.New("Config.ExternalID is set without a RoleARN")
	case c.RoleARN != "" && !strings.HasPrefix(c.RoleARN, "arn:"):
		return errors.New("Config.RoleARN: want arn:aws:iam::<account>:role/<name>")
	case c.AccountID != "" && !isAccount(c.AccountID):
		return errors.New("Config.AccountID: want the 12 digits of an account")
	case !legalName(c.Prefix) && c.Prefix != "":
		return errors.New("Config.Prefix: letters, digits, - and _ only")
	}
	return nil
}

func (c *Config) checkTimes() error {
	switch {
	case c.Lease < 0 || c.Lease > maxLease || c.Lease%time.Second != 0:
		return errors.New("Config.Lease: whole seconds, from 1 s to 12 h")
	case c.Wait < 0 || c.Wait > maxWait || c.Wait%time.Second != 0:
		return errors.New("Config.Wait: whole seconds, from 1 s to 20 s")
	case c.Lease > 0 && c.Wait >= c.Lease && c.Lease > time.Second:
		return errors.New("Config.Wait must be shorter than Config.Lease")
	case c.Linger > time.Second:
		return errors.New("Config.Linger: at most 1 s")
	case c.Timeout < 0 || c.ConnectTimeout < 0:
		return errors.New("Config.Timeout and Config.ConnectTimeout cannot be negative")
	}
	return nil
}

func (c *Config) checkSizes() error {
	switch {
	case c.MaxBytes < minWire || c.MaxBytes > wireLimit:
		return fmt.Errorf("Config.MaxBytes: %d to %d", minWire, wireLimit)
	case c.TopicMaxBytes < minWire || c.TopicMaxBytes > wireLimit:
		return fmt.Errorf("Config.TopicMaxBytes: %d to %d", minWire, wireLimit)
	case c.Polls < 0 || c.Polls > maxPolls:
		return fmt.Errorf("Config.Polls: 1 to %d", maxPolls)
	case len(c.Attributes) > morePromoted:
		return fmt.Errorf("Config.Attributes: at most %d, a message has room for 10 attributes and the adapter needs the others", morePromoted)
	}
	for _, name := range c.Attributes {
		if !legalAttribute(name) || strings.HasPrefix(name, driver.HeaderPrefix) {
			return errors.New("Config.Attributes: a name has letters, digits, -, _ and single dots inside, and does not begin with varal-, AWS. or Amazon")
		}
	}
	return nil
}

func isAccount(s string) bool {
	for _, r := range s {
		if r < '0' || r > '9' {
			return false
		}
	}
	return len(s) == 12
}

func fill[T comparable](field *T, def T) {
	var zero T
	if *field == zero {
		*field = def
	}
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || (ip != nil && ip.IsLoopback())
}
