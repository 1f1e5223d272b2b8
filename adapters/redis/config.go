package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/varal-go/varal/adapters/internal/tlsconf"
	"github.com/varal-go/varal/core/driver"
)

// TLS is the tls block of the configuration.
type TLS = tlsconf.TLS

// Config of one Redis server. The zero value of every field but Addr is a documented
// default. A Config is not changed after Open, and prints without its password.
type Config struct {
	// Addr is host:port. Required.
	Addr string
	// User and Password of the login. "" = none; a password without a user is that of
	// the server's default user.
	User, Password string
	// DB is the number of the database. 0 = the first.
	DB int
	// TLS encrypts the connections. nil = plain TCP.
	TLS *TLS
	// AllowInsecure permits a password over an unencrypted connection beyond loopback.
	// It is refused otherwise.
	AllowInsecure bool
	// ClientName is what CLIENT LIST shows. "" = "varal". No spaces.
	ClientName string
	// Namespace begins the name of every key. "" = "varal". No braces.
	Namespace string
	// Lease is how long a delivery is ours without extending it. All consumers of a
	// group must have the same: a shorter one takes from the others what they still
	// hold. 0 = 30 s, the smallest is 200 ms.
	Lease time.Duration
	// Timeout bounds the wait for the answer of one request. 0 = 3 s.
	Timeout time.Duration
	// ConnectTimeout bounds one attempt to connect. 0 = 5 s.
	ConnectTimeout time.Duration
	// MaxBytes is the most bytes of one message, headers included. 0 = 4 MiB, at most
	// 256 MiB.
	MaxBytes int
	// RequireDurable makes Open fail unless the server keeps what it confirms: an
	// append-only file, and no eviction.
	RequireDurable bool
	// Dial opens the TCP connections. nil = net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Notify is told about the connection. It must not block.
	Notify func(driver.Event)
}

// String describes c without its secrets.
func (c Config) String() string {
	return fmt.Sprintf("redis.Config{Addr: %q, DB: %d, TLS: %t, Namespace: %q, Lease: %v}", c.Addr, c.DB, c.TLS != nil, c.Namespace, c.Lease)
}

// Format prints String whatever the verb, so that %+v and %#v keep the password too.
func (c Config) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(c.String())) }

// LogValue logs String.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MarshalText writes String, for JSON and YAML.
func (c Config) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

const (
	minLease = 200 * time.Millisecond
	maxBytes = 256 << 20
)

// withDefaults checks c and fills in what is zero.
func (c Config) withDefaults() (Config, error) {
	host, _, err := net.SplitHostPort(c.Addr)
	if err != nil || host == "" {
		return c, errors.New("Config.Addr: want host:port")
	}
	fill(&c.ClientName, "varal")
	fill(&c.Namespace, "varal")
	fill(&c.Lease, 30*time.Second)
	fill(&c.Timeout, 3*time.Second)
	fill(&c.ConnectTimeout, 5*time.Second)
	fill(&c.MaxBytes, 4<<20)
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	switch {
	case c.Password == "" && c.User != "":
		return c, errors.New("Config.User is set without a Password")
	case c.Password != "" && c.TLS == nil && !c.AllowInsecure && !loopback(host):
		return c, fmt.Errorf("a password would travel unencrypted to %s: write rediss://, or add ?allow_insecure=true to the URL (Config.AllowInsecure)", host)
	case c.DB < 0:
		return c, errors.New("Config.DB is negative")
	case c.Lease < minLease:
		return c, fmt.Errorf("Config.Lease: at least %v", minLease)
	case c.Timeout < 0 || c.ConnectTimeout < 0:
		return c, errors.New("Config.Timeout and Config.ConnectTimeout cannot be negative")
	case c.MaxBytes < 0 || c.MaxBytes > maxBytes:
		return c, fmt.Errorf("Config.MaxBytes: 1 to %d", maxBytes)
	case strings.ContainsAny(c.Namespace, "{}"):
		return c, errors.New("Config.Namespace: no braces, they name the hash slot of a key")
	case strings.ContainsAny(c.ClientName, " \r\n"):
		return c, errors.New("Config.ClientName: no spaces and line breaks")
	}
	if c.TLS != nil {
		return c, c.TLS.Check()
	}
	return c, nil
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
