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

// Config of one Redis server, of the primary that Sentinels name, or of a Cluster. The zero
// value of every field but the addresses is a documented default. A Config is not changed after
// Open, and prints without its passwords.
type Config struct {
	// Addr is the host:port of the server. Required, unless Addrs is set.
	Addr string
	// Addrs are the host:port of Sentinels, or of nodes of a Cluster: any one that answers
	// is enough. Only with Sentinel or Cluster; Addr counts as one more of them.
	Addrs []string
	// Cluster says that the addresses are nodes of a Redis Cluster. It is not found out by
	// asking: a Cluster has other limits (see the package's documentation), and whoever
	// meets one unawares is told so by Open.
	Cluster bool
	// Sentinel is the name that the Sentinels know the primary by. "" = there are none,
	// and Addr is the server itself.
	Sentinel string
	// SentinelUser and SentinelPassword of the login at the Sentinels, which have users of
	// their own. "" = none.
	SentinelUser, SentinelPassword string
	// User and Password of the login at the server. "" = none; a password without a user
	// is that of the server's default user.
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
	// Replicas is how many replicas must have a message before its publish is confirmed
	// (WAIT, for at most half of Timeout). With fewer the outcome is Ambiguous. 0 = none is
	// waited for, and a failover may lose what was confirmed just before it.
	Replicas int
	// Broadcast makes topics channels of PUBLISH and SUBSCRIBE, and there is nothing else:
	// at most once, to whoever listens at that moment (see the package's documentation).
	Broadcast bool
	// Dial opens the TCP connections. nil = net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Notify is told about the connection. It must not block.
	Notify func(driver.Event)
}

// String describes c without its secrets.
func (c Config) String() string {
	at := fmt.Sprintf("Addr: %q", c.Addr)
	if c.Sentinel != "" {
		at = fmt.Sprintf("Sentinel: %q, Addrs: %q", c.Sentinel, c.addrs())
	} else if c.Cluster {
		at = fmt.Sprintf("Cluster: true, Addrs: %q", c.addrs())
	}
	return fmt.Sprintf("redis.Config{%s, DB: %d, TLS: %t, Namespace: %q, Lease: %v}", at, c.DB, c.TLS != nil, c.Namespace, c.Lease)
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
	// maxReplicas is more than a primary has.
	maxReplicas = 100
)

// addrs are all addresses.
func (c *Config) addrs() []string {
	if c.Addr == "" {
		return c.Addrs
	}
	return append([]string{c.Addr}, c.Addrs...)
}

// withDefaults checks c and fills in what is zero.
func (c Config) withDefaults() (Config, error) {
	if err := c.checkAddrs(); err != nil {
		return c, err
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
	case c.SentinelPassword == "" && c.SentinelUser != "":
		return c, errors.New("Config.SentinelUser is set without a SentinelPassword")
	case c.Broadcast && (c.RequireDurable || c.Replicas > 0):
		return c, errors.New("Config.Broadcast stores nothing: leave RequireDurable and Replicas out")
	case c.DB < 0:
		return c, errors.New("Config.DB is negative")
	case c.Lease < minLease:
		return c, fmt.Errorf("Config.Lease: at least %v", minLease)
	case c.Timeout < 0 || c.ConnectTimeout < 0:
		return c, errors.New("Config.Timeout and Config.ConnectTimeout cannot be negative")
	case c.MaxBytes < 0 || c.MaxBytes > maxBytes:
		return c, fmt.Errorf("Config.MaxBytes: 1 to %d", maxBytes)
	case c.Replicas < 0 || c.Replicas > maxReplicas:
		return c, fmt.Errorf("Config.Replicas: 0 to %d", maxReplicas)
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

// checkAddrs checks where c leads, and that no password goes there in the open.
func (c *Config) checkAddrs() error {
	addrs := c.addrs()
	switch {
	case c.Cluster && c.Sentinel != "":
		return errors.New("Config.Cluster and Config.Sentinel: a Cluster has no Sentinels, keep one")
	case c.Cluster && c.DB != 0:
		return errors.New("Config.DB: a Cluster has database 0 only")
	case len(c.Addrs) > 0 && c.Sentinel == "" && !c.Cluster:
		return errors.New("Config.Addrs are addresses of Sentinels or of nodes of a Cluster: set Config.Sentinel to the name that they know the primary by, or Config.Cluster, or give the one server in Config.Addr")
	case (c.SentinelUser != "" || c.SentinelPassword != "") && c.Sentinel == "":
		return errors.New("Config.SentinelUser and Config.SentinelPassword are for Sentinels: set Config.Sentinel to the name that they know the primary by")
	case len(addrs) == 0:
		return errors.New("Config.Addr: want host:port")
	}
	for i, addr := range addrs {
		host, _, err := net.SplitHostPort(addr)
		switch {
		case (err != nil || host == "") && len(c.Addrs) == 0:
			return errors.New("Config.Addr: want host:port")
		case err != nil || host == "":
			return fmt.Errorf("Config.Addrs: want host:port, and number %d is not", i+1)
		case c.mayLeak() && !loopback(host):
			return inTheOpen(host)
		}
	}
	return nil
}

// mayLeak tells that a password would travel in the open.
func (c *Config) mayLeak() bool {
	return (c.Password != "" || c.SentinelPassword != "") && c.TLS == nil && !c.AllowInsecure
}

func inTheOpen(host string) error {
	return fmt.Errorf("a password would travel unencrypted to %s: write rediss://, or add ?allow_insecure=true to the URL (Config.AllowInsecure)", host)
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
