package kafka

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/varal-go/varal/core/driver"
)

// dial opens one connection, TLS included, within ConnectTimeout.
func (c Config) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if err := c.checkPlain(addr); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.ConnectTimeout)
	defer cancel()
	open := c.Dial
	if open == nil {
		open = new(net.Dialer).DialContext
	}
	conn, err := open(ctx, network, addr)
	if err != nil || c.TLS == nil {
		return conn, err
	}
	host, _, err := net.SplitHostPort(addr)
	if err == nil {
		var conf *tls.Config
		if conf, err = c.TLS.Config(host); err == nil {
			secure := tls.Client(conn, conf)
			if err = secure.HandshakeContext(ctx); err == nil {
				return secure, nil
			}
		}
	}
	_ = conn.Close()
	return nil, err
}

func (s SASL) kgo() sasl.Mechanism {
	switch s.mechanism() {
	case mechSHA256:
		return scram.Auth{User: s.User, Pass: s.Password}.AsSha256Mechanism()
	case mechSHA512:
		return scram.Auth{User: s.User, Pass: s.Password}.AsSha512Mechanism()
	}
	return plain.Auth{User: s.User, Pass: s.Password}.AsMechanism()
}

// options are what every client of this configuration has in common.
func (c Config) options(l *link) []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.ClientID(c.ClientID),
		kgo.Dialer(c.dial),
		kgo.WithHooks(l),
		// With the client's 5 s the first confirm on a topic just made took 5 s.
		kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.RequestTimeoutOverhead(10 * time.Second),
		kgo.DisableClientMetrics(),
	}
	if c.SASL != nil {
		opts = append(opts, kgo.SASL(c.SASL.kgo()))
	}
	return opts
}

// link turns what happens to the connections of one client into Connected and
// Disconnected. A connection that is closed because it was idle is no event: only a
// failed dial, read or write is.
type link struct {
	notify func(driver.Event)

	mu     sync.Mutex
	state  driver.EventKind // guarded by mu; zero before the first connection
	err    error            // guarded by mu: why it is Disconnected
	silent bool             // guarded by mu: we are closing
}

var (
	_ kgo.HookBrokerConnect = (*link)(nil)
	_ kgo.HookBrokerRead    = (*link)(nil)
	_ kgo.HookBrokerWrite   = (*link)(nil)
)

// OnBrokerConnect is the client's hook.
func (l *link) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	l.heard(err, true)
}

// OnBrokerRead is the client's hook.
func (l *link) OnBrokerRead(_ kgo.BrokerMetadata, _ int16, _ int, _, _ time.Duration, err error) {
	l.heard(err, false)
}

// OnBrokerWrite is the client's hook.
func (l *link) OnBrokerWrite(_ kgo.BrokerMetadata, _ int16, _ int, _, _ time.Duration, err error) {
	l.heard(err, false)
}

func (l *link) heard(err error, connect bool) {
	if err == nil && !connect {
		return
	}
	kind := driver.Connected
	if err != nil {
		kind = driver.Disconnected
	}
	l.mu.Lock()
	changed := l.state != kind && !l.silent
	if !l.silent {
		l.state, l.err = kind, err
	}
	l.mu.Unlock()
	if changed && l.notify != nil {
		l.notify(driver.Event{Kind: kind, Err: err})
	}
}

// last tells why there is no connection, nil where there is one.
func (l *link) last() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent = true
}
