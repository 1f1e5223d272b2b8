package adapters

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"

	"github.com/varal-go/varal/adapters/internal/tlsconf"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// The environment variables that Open reads.
const (
	// EnvURL is the URL of a Config that has neither URL nor File.
	EnvURL = "VARAL_URL"
	// EnvBroker is the section of a File, where Config.Broker is empty.
	EnvBroker = "VARAL_BROKER"
)

// TLS configures an encrypted connection. The zero TLS trusts the system's roots.
type TLS = tlsconf.TLS

// Config says which broker to open. The zero Config opens the broker of VARAL_URL.
// It prints without its secrets.
type Config struct {
	// URL of the broker; see the package comment. It wins over the sections of File.
	// "" = the section of File, or without a File the environment variable VARAL_URL.
	URL string
	// File is the path of a YAML file; see Load. "" = none.
	File string
	// Broker is the section of File to open. "" = the environment variable
	// VARAL_BROKER, else the file's own "broker:", else its only section. Without a
	// File it must be empty.
	Broker string
	// Prefix is put before the name of every destination and group. "" = the file's prefix.
	Prefix string
	// Provision says what to do about destinations that do not exist. 0 = the file's
	// provision; else create for memory, where nothing could exist yet, and verify for
	// the others.
	Provision core.Provision
	// Options of the client. Its Prefix, Provision and Broker are the business of the
	// fields above, its Requests those of the adapter, and must be zero.
	Options core.Options
	// Dial opens the TCP connections, for proxies and tests. nil = net.Dialer. Memory
	// dials nothing.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS asks for an encrypted connection, whatever the scheme says. nil = as the
	// scheme says. It wins over the tls block of a file.
	TLS *TLS
	// Notify is told about connections made and lost, beside the client. It must not
	// block. nil = nobody.
	Notify func(core.Event)
}

// String describes c without its secrets.
func (c Config) String() string {
	return fmt.Sprintf("adapters.Config{URL: %q, File: %q, Broker: %q, Prefix: %q, Provision: %s}",
		Redact(c.URL), c.File, c.Broker, c.Prefix, c.Provision)
}

// Format prints String whatever the verb, so that %+v and %#v keep the password too.
func (c Config) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(c.String())) }

// LogValue logs String.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MarshalText writes String, for JSON and YAML.
func (c Config) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// Open connects to a broker and returns a client of it. Close the client. An error
// has a class: core.ErrPermanent for a configuration that is wrong, core.ErrDenied for
// credentials and certificates, core.ErrTransient for a broker that does not answer.
// No error holds a secret.
func Open(ctx context.Context, c Config) (*core.Client, error) {
	t, err := c.target()
	if err != nil {
		return nil, err
	}
	return t.client(ctx, c)
}

// client opens t with the rest of c.
func (t *target) client(ctx context.Context, c Config) (*core.Client, error) {
	if o := c.Options; o.Prefix != "" || o.Provision != 0 || o.Broker != "" || o.Requests != nil {
		return nil, driver.Errorf("open", driver.Permanent, "Config.Options: set Prefix and Provision on Config itself, and leave Options.Broker and Options.Requests empty")
	}
	news := &relay{also: c.Notify}
	d, err := t.open(ctx, c.Dial, news.notify)
	if err != nil {
		return nil, err
	}
	t.warn(c.Options.Logger)
	o := c.Options
	o.Prefix, o.Provision, o.Broker, o.Requests = t.prefix, t.provision, Redact(t.url), t.requests
	client := core.NewClient(d, o)
	news.attach(client.Notify)
	return client, nil
}

// OpenDriver connects as Open does and returns the driver without a client: for
// tools that put something between the two. Prefix, Provision and Options, which are
// the client's, must be zero. Close the driver.
func OpenDriver(ctx context.Context, c Config) (driver.Driver, error) {
	if c.Prefix != "" || c.Provision != 0 {
		return nil, driver.Errorf("open", driver.Permanent, "Config.Prefix and Config.Provision are settings of a client: OpenDriver takes neither")
	}
	t, err := c.target()
	if err != nil {
		return nil, err
	}
	notify := c.Notify
	if notify == nil {
		notify = func(core.Event) {}
	}
	return t.open(ctx, c.Dial, notify)
}

// target is where a Config leads.
type target struct {
	url       string
	tls       *TLS
	prefix    string
	provision core.Provision
	secrets   []string // not to appear in an error
	warnings  []string
	requests  func() map[string]int64 // of the adapter that open chose; nil = it counts none
}

// target decides which broker c means, by one rule: URL, else File, else VARAL_URL.
func (c Config) target() (*target, error) {
	if c.File != "" {
		f, err := Load(c.File)
		if err != nil {
			return nil, err
		}
		return f.target(c)
	}
	if c.Broker != "" {
		return nil, driver.Errorf("open", driver.Permanent, "Config.Broker names a section of Config.File, which is empty")
	}
	t := &target{url: c.URL, tls: c.TLS, prefix: c.Prefix, provision: c.Provision}
	if t.url == "" {
		t.url = os.Getenv(EnvURL)
	}
	if t.url == "" {
		return nil, driver.Errorf("open", driver.Permanent, "no broker is named: set Config.URL (or Config.File), or the environment variable %s, for example to memory: or kafka://localhost:9092", EnvURL)
	}
	err := t.complete()
	return t, err
}

func (t *target) warn(l *slog.Logger) {
	if l == nil {
		l = slog.Default()
	}
	for _, w := range t.warnings {
		l.Warn("varal: " + w)
	}
}
