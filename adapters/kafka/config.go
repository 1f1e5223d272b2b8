package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/varal-go/varal/adapters/internal/tlsconf"
	"github.com/varal-go/varal/core/driver"
)

// TLS configures an encrypted connection.
type TLS = tlsconf.TLS

// Config is how to reach and use one Kafka cluster. Only Brokers is required.
type Config struct {
	// Brokers to ask first, host:port. At least one.
	Brokers []string `yaml:"brokers"`
	// TLS; nil = plaintext. Its files are read again for every connection.
	TLS *TLS `yaml:"tls"`
	// SASL; nil = none.
	SASL *SASL `yaml:"sasl"`
	// AllowInsecure permits SASL PLAIN, which sends the password as it is, to a
	// broker beyond loopback without TLS.
	AllowInsecure bool `yaml:"allow_insecure"`
	// ClientID names this client in the broker's logs and quotas. "" = "varal".
	ClientID string `yaml:"client_id"`
	// SessionTimeout: a consumer that sends no heartbeat for so long loses its
	// partitions, and lets go of them by itself when none was answered for so long.
	// 0 = 6 s, the least a broker allows by default. With Assignor server it is the
	// broker's, which Subscribe asks for, and 0 = that; one that is set must not be
	// longer, and has to be set where the broker does not tell.
	SessionTimeout time.Duration `yaml:"session_timeout"`
	// RebalanceTimeout: how long a consumer may take to let go of partitions. The
	// ctx of Subscription.Revoke ends a tenth (at most 3 s) before it. 0 = 60 s.
	RebalanceTimeout time.Duration `yaml:"rebalance_timeout"`
	// Assignor decides who of a group gets which partition: cooperative-sticky; or
	// sticky, range and roundrobin, which are eager: with every change of the group all
	// its members let go of all they have. All members of a group need the same one.
	// An eager one needs a RebalanceTimeout longer than SessionTimeout. Or server, by
	// which the broker assigns (KIP-848) and takes only what goes to another; it needs
	// that too, and takes no InstanceID. Where the broker does not serve it Subscribe
	// answers Unsupported. "" = cooperative-sticky.
	Assignor string `yaml:"assignor"`
	// InstanceID makes the consumer of a group a static member: Close does not leave
	// the group, and for SessionTimeout its partitions wait for the next consumer of
	// this id in place of going to others. Each consumer of a group needs its own: one
	// driver holds one subscription to a group then. Subscriptions without group and
	// temporary ones do not use it. "" = none.
	InstanceID string `yaml:"instance_id"`
	// ConnectTimeout bounds one connection attempt, TLS included, and Open. 0 = 10 s.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	// FetchMaxWait: how long the broker holds a fetch that finds nothing. A resumed
	// partition waits for at most one such fetch. 0 = 100 ms.
	FetchMaxWait time.Duration `yaml:"fetch_max_wait"`
	// FetchPartitionBytes: the most bytes of one partition in one fetch. Smaller
	// values hold less in memory and cost throughput. 0 = 1 MiB.
	FetchPartitionBytes int `yaml:"fetch_partition_bytes"`
	// MaxBytes is the most bytes of key, headers and body of one message. 0 = 1 MiB.
	// Topics made by Apply take it; elsewhere the topic's own max.message.bytes may
	// be lower and counts too.
	MaxBytes int `yaml:"max_bytes"`
	// Compression: none, gzip, snappy, lz4 or zstd. "" = snappy.
	Compression string `yaml:"compression"`
	// Partitions of a topic that Apply creates where Destination.Partitions is 0. 0 = 6.
	Partitions int `yaml:"partitions"`
	// ReplicationFactor of a topic that Apply creates. 0 = the broker's default.
	ReplicationFactor int `yaml:"replication_factor"`
	// ShareGroups asks for a share group where a queue has no partitions. Not
	// offered yet: Open answers Unsupported.
	ShareGroups bool `yaml:"share_groups"`
	// Dial opens connections in place of net.Dialer (tests, proxies). TLS is put on top.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error) `yaml:"-"`
	// Notify hears of connections made and lost. It must not block.
	Notify func(driver.Event) `yaml:"-"`
}

// The SASL mechanisms.
const (
	mechPlain  = "PLAIN"
	mechSHA256 = "SCRAM-SHA-256"
	mechSHA512 = "SCRAM-SHA-512"
)

// SASL is who we are. It prints without the password.
type SASL struct {
	// Mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. "" = PLAIN.
	Mechanism string `yaml:"mechanism"`
	// User and Password: neither may be empty.
	User     string `yaml:"user"`
	Password string `yaml:"password"`
}

// String tells mechanism and user.
func (s SASL) String() string { return "SASL " + s.mechanism() + " user " + s.User + " password ***" }

// Format prints String whatever the verb, so that %+v and %#v keep the password too.
func (s SASL) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// LogValue logs String.
func (s SASL) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText writes String, for JSON and YAML.
func (s SASL) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s SASL) mechanism() string { return or(s.Mechanism, mechPlain) }

// or returns v, or def where v is its type's zero value.
func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// withDefaults fills what is zero.
func (c Config) withDefaults() Config {
	c.ClientID = or(c.ClientID, "varal")
	c.Assignor = or(c.Assignor, assignCooperative)
	if !c.server() { // there it stays 0: the broker is asked
		c.SessionTimeout = or(c.SessionTimeout, 6*time.Second)
	}
	c.RebalanceTimeout = or(c.RebalanceTimeout, time.Minute)
	c.ConnectTimeout = or(c.ConnectTimeout, 10*time.Second)
	c.FetchMaxWait = or(c.FetchMaxWait, 100*time.Millisecond)
	c.FetchPartitionBytes = or(c.FetchPartitionBytes, 1<<20)
	c.MaxBytes = or(c.MaxBytes, 1<<20)
	c.Partitions = or(c.Partitions, 6)
	return c
}

var codecs = map[string]kgo.CompressionCodec{
	"":       kgo.SnappyCompression(),
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

// maxMaxBytes keeps a batch below the client's own limit of a request.
const maxMaxBytes = 64 << 20

// check names the first field that is wrong; c has its defaults.
func (c Config) check() error {
	if len(c.Brokers) == 0 {
		return errors.New("brokers: name at least one host:port")
	}
	for i, b := range c.Brokers {
		if err := checkBroker(b); err != nil {
			return fmt.Errorf("brokers[%d]: %w", i, err)
		}
	}
	if _, ok := codecs[c.Compression]; !ok {
		return errors.New("compression: use none, gzip, snappy, lz4 or zstd")
	}
	if err := c.checkSizes(); err != nil {
		return err
	}
	if err := c.checkGroup(); err != nil {
		return err
	}
	if c.TLS != nil {
		if err := c.TLS.Check(); err != nil {
			return err
		}
	}
	return c.checkSASL()
}

func (c Config) checkSizes() error {
	for _, d := range []struct {
		name string
		v    time.Duration
	}{
		{"session_timeout", c.SessionTimeout},
		{"rebalance_timeout", c.RebalanceTimeout},
		{"connect_timeout", c.ConnectTimeout},
		{"fetch_max_wait", c.FetchMaxWait},
	} {
		if d.name == "session_timeout" && d.v == 0 && c.server() {
			continue
		}
		if d.v < time.Millisecond || d.v > 24*time.Hour {
			return fmt.Errorf("%s: %v is not between 1ms and 24h", d.name, d.v)
		}
	}
	for _, n := range []struct {
		name     string
		v, least int
		most     int
	}{
		{"max_bytes", c.MaxBytes, 1, maxMaxBytes},
		{"fetch_partition_bytes", c.FetchPartitionBytes, 1 << 10, maxMaxBytes},
		{"partitions", c.Partitions, 1, 100_000},
		{"replication_factor", c.ReplicationFactor, 0, 1000},
	} {
		if n.v < n.least || n.v > n.most {
			return fmt.Errorf("%s: %d is not between %d and %d", n.name, n.v, n.least, n.most)
		}
	}
	return nil
}

func (c Config) checkSASL() error {
	if c.SASL == nil {
		return nil
	}
	switch c.SASL.mechanism() {
	case mechPlain, mechSHA256, mechSHA512:
	default:
		return errors.New("sasl.mechanism: use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
	}
	if c.SASL.User == "" || c.SASL.Password == "" {
		return errors.New("sasl: user and password are both needed")
	}
	for _, b := range c.Brokers {
		if err := c.checkPlain(b); err != nil {
			return err
		}
	}
	return nil
}

// checkPlain refuses to send a password in the clear beyond loopback. It is asked
// for every connection, since a broker may advertise other addresses than ours.
func (c Config) checkPlain(addr string) error {
	if c.SASL == nil || c.SASL.mechanism() != mechPlain || c.TLS != nil || c.AllowInsecure {
		return nil
	}
	host, _, _ := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return errInsecure
}

var errInsecure = errors.New("sasl: PLAIN without TLS sends the password in the clear to a broker beyond loopback: write kafkas://, or add ?sasl=SCRAM-SHA-512 or ?allow_insecure=true to the URL (Config.TLS, SASL.Mechanism, AllowInsecure)")

// checkBroker accepts host:port. Its errors do not quote the address: part of a
// password may have ended up there.
func checkBroker(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" {
		return errors.New("not host:port")
	}
	for _, r := range host {
		if r <= ' ' || r == 0x7f || r == '@' || r == '/' || r == '%' {
			return errors.New("the host holds a character that no host name has")
		}
	}
	n := 0
	for _, r := range port {
		if r < '0' || r > '9' || n > 65535 {
			return errors.New("the port is not a number from 1 to 65535")
		}
		n = n*10 + int(r-'0')
	}
	if n < 1 || n > 65535 {
		return errors.New("the port is not a number from 1 to 65535")
	}
	return nil
}
