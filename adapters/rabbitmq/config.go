package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/varal-go/varal/adapters/internal/tlsconf"
	"github.com/varal-go/varal/adapters/internal/urlquery"
	"github.com/varal-go/varal/core/driver"
)

// TLS is the tls block of the configuration.
type TLS = tlsconf.TLS

// Config of one RabbitMQ connection pair (one for publishing, one for consuming). The
// zero value of every field but URLs is a documented default. A Config is not changed
// after Open.
type Config struct {
	// URLs: amqp://user:password@host:port/vhost or amqps://…, at least one. Several
	// are the nodes of one cluster and are tried in turn.
	URLs []string
	// TLS of an amqps URL; nil = the system's roots. With a client certificate and no
	// user in the URL the login is SASL EXTERNAL.
	TLS *TLS
	// AllowInsecure permits a password over an unencrypted connection beyond
	// loopback. It is refused otherwise.
	AllowInsecure bool
	// ConnectionName is what the management page shows. "" = "varal".
	ConnectionName string
	// Heartbeat interval; a dead peer is noticed after 1.5 intervals. 0 = 10 s, the
	// smallest is 1 s, below 5 s a busy broker looks dead.
	Heartbeat time.Duration
	// ConnectTimeout bounds one attempt with one URL. 0 = 10 s.
	ConnectTimeout time.Duration
	// PublishTimeout bounds the wait for confirms where ctx does not end earlier; what
	// is unconfirmed then is Ambiguous. 0 = 30 s.
	PublishTimeout time.Duration
	// Window is the most unconfirmed messages of one exchange. 0 = 1024.
	Window int
	// MaxBytes is the most bytes of one message, headers included. 0 = the broker's
	// default: 16 MiB from 4.0 on, 128 MiB before.
	MaxBytes int
	// Classic makes queues of type classic instead of quorum.
	Classic bool
	// Priorities is the number of levels (x-max-priority) of classic queues, at most
	// 255. 0 = none; above 0 it needs Classic.
	Priorities int
	// Renew is how often the record that proves the ownership of a shard is
	// rewritten. Well below the broker's consumer_timeout (30 min). 0 = 5 min.
	Renew time.Duration
	// Balance is how often a member of a keyed queue counts the others. 0 = 300 ms.
	Balance time.Duration
	// Dial opens the TCP connection. nil = net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Notify is told about the connections. It must not block.
	Notify func(driver.Event)
}

// fields of a Config that a URL may set, by parameter.
var urlParams = map[string]func(*Config, string) error{
	"ca":                   func(c *Config, v string) error { c.tls().CA = v; return nil },
	"cert":                 func(c *Config, v string) error { c.tls().Cert = v; return nil },
	"key":                  func(c *Config, v string) error { c.tls().Key = v; return nil },
	"server_name":          func(c *Config, v string) error { c.tls().ServerName = v; return nil },
	"insecure_skip_verify": func(c *Config, v string) error { return setBool(&c.tls().InsecureSkipVerify, v) },
	"allow_insecure":       func(c *Config, v string) error { return setBool(&c.AllowInsecure, v) },
	"connection_name":      func(c *Config, v string) error { c.ConnectionName = v; return nil },
	"heartbeat":            func(c *Config, v string) error { return setDuration(&c.Heartbeat, v) },
	"connect_timeout":      func(c *Config, v string) error { return setDuration(&c.ConnectTimeout, v) },
	"publish_timeout":      func(c *Config, v string) error { return setDuration(&c.PublishTimeout, v) },
	"renew":                func(c *Config, v string) error { return setDuration(&c.Renew, v) },
	"balance":              func(c *Config, v string) error { return setDuration(&c.Balance, v) },
	"window":               func(c *Config, v string) error { return setInt(&c.Window, v) },
	"max_bytes":            func(c *Config, v string) error { return setInt(&c.MaxBytes, v) },
	"priorities":           func(c *Config, v string) error { return setInt(&c.Priorities, v) },
	"classic":              func(c *Config, v string) error { return setBool(&c.Classic, v) },
}

func (c *Config) tls() *TLS {
	if c.TLS == nil {
		c.TLS = &TLS{}
	}
	return c.TLS
}

func setBool(to *bool, v string) (err error) {
	if *to, err = strconv.ParseBool(v); err != nil {
		return errors.New("want true or false")
	}
	return nil
}

func setInt(to *int, v string) (err error) {
	if *to, err = strconv.Atoi(v); err != nil || *to < 0 {
		return errors.New("want a whole number ≥ 0")
	}
	return nil
}

func setDuration(to *time.Duration, v string) (err error) {
	if *to, err = time.ParseDuration(v); err != nil || *to < 0 {
		return errors.New("want a duration such as 10s")
	}
	return nil
}

// ParseURL reads amqp://user:password@host:port/vhost?parameter=value. The parameters
// are the fields of Config and TLS in snake case. An unknown parameter, one given twice
// or one that cannot be read is an error that names it; no error holds the password.
func ParseURL(raw string) (Config, error) {
	const op = "parse RabbitMQ URL"
	base, query, _ := strings.Cut(raw, "?")
	if _, err := parseEndpoint(base); err != nil {
		return Config{}, driver.Errorf(op, driver.Permanent, "%w", err)
	}
	c := Config{URLs: []string{base}}
	if err := urlquery.Set(&c, query, urlParams); err != nil {
		return Config{}, driver.Errorf(op, driver.Permanent, "%w", err)
	}
	return c, nil
}

// endpoint is one broker node as a URL names it.
type endpoint struct {
	tls            bool
	host, port     string
	user, password string
	hasUser        bool
	vhost          string
}

func (e endpoint) addr() string { return net.JoinHostPort(e.host, e.port) }

// parseEndpoint never quotes the input: url.Parse would, password and all.
func parseEndpoint(raw string) (endpoint, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return endpoint{}, errors.New("the URL cannot be read: want amqp://user:password@host:port/vhost with reserved characters percent-encoded")
	}
	e := endpoint{host: u.Hostname(), port: u.Port(), user: "guest", password: "guest", vhost: "/"}
	switch u.Scheme {
	case "amqp":
	case "amqps":
		e.tls = true
	default:
		return endpoint{}, errors.New("the URL must start with amqp:// or amqps://")
	}
	if u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" {
		return endpoint{}, errors.New("a URL of Config.URLs has no parameters and no fragment: use ParseURL for parameters")
	}
	if e.host == "" {
		return endpoint{}, errors.New("the URL names no host")
	}
	if e.port == "" {
		e.port = map[bool]string{false: "5672", true: "5671"}[e.tls]
	}
	if p, err := strconv.Atoi(e.port); err != nil || p < 1 || p > 65535 {
		return endpoint{}, fmt.Errorf("port %q is not in 1..65535", e.port)
	}
	if u.User != nil {
		e.hasUser, e.user = true, u.User.Username()
		e.password, _ = u.User.Password()
	}
	if v := strings.TrimPrefix(u.EscapedPath(), "/"); v != "" {
		if e.vhost, err = url.PathUnescape(v); err != nil || strings.Contains(v, "/") {
			return endpoint{}, errors.New("the virtual host in the URL cannot be read: write / as %2F")
		}
	}
	return e, nil
}

// settings is a checked Config with its defaults filled in.
type settings struct {
	Config
	ends []endpoint
}

func check(c Config) (*settings, error) {
	s := &settings{Config: c}
	if len(c.URLs) == 0 {
		return nil, errors.New("Config.URLs is empty: name at least one amqp:// URL")
	}
	for i, raw := range c.URLs {
		e, err := parseEndpoint(raw)
		if err != nil {
			return nil, fmt.Errorf("Config.URLs[%d]: %w", i, err)
		}
		if !e.tls && !c.AllowInsecure && !loopback(e.host) {
			return nil, fmt.Errorf("Config.URLs[%d]: a password would travel unencrypted to %s: write amqps://, or add ?allow_insecure=true to the URL (Config.AllowInsecure)", i, e.host)
		}
		s.ends = append(s.ends, e)
	}
	if c.TLS != nil {
		if err := c.TLS.Check(); err != nil {
			return nil, err
		}
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"Heartbeat", int64(c.Heartbeat)},
		{"ConnectTimeout", int64(c.ConnectTimeout)},
		{"PublishTimeout", int64(c.PublishTimeout)},
		{"Renew", int64(c.Renew)},
		{"Balance", int64(c.Balance)},
		{"Window", int64(c.Window)},
		{"MaxBytes", int64(c.MaxBytes)},
		{"Priorities", int64(c.Priorities)},
	} {
		if f.value < 0 {
			return nil, fmt.Errorf("%s is negative", "Config."+f.name)
		}
	}
	if c.Priorities > 255 || (c.Priorities > 0 && !c.Classic) {
		return nil, errors.New("Config.Priorities: 1..255, and only with Classic: quorum queues have no levels of their own")
	}
	if c.Heartbeat != 0 && c.Heartbeat < time.Second {
		return nil, errors.New("Config.Heartbeat: at least 1s")
	}
	fill(&s.ConnectionName, "varal")
	fill(&s.Heartbeat, 10*time.Second)
	fill(&s.ConnectTimeout, 10*time.Second)
	fill(&s.PublishTimeout, 30*time.Second)
	fill(&s.Window, 1024)
	fill(&s.Renew, 5*time.Minute)
	fill(&s.Balance, 300*time.Millisecond)
	if s.Dial == nil {
		s.Dial = (&net.Dialer{}).DialContext
	}
	return s, nil
}

func fill[T comparable](field *T, def T) {
	var zero T
	if *field == zero {
		*field = def
	}
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}
