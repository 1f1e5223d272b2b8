package adapters

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// File is a configuration file: the brokers side by side, and the destinations and
// subscriptions they share. It does not change after Load; its methods may be called
// concurrently.
type File struct {
	name      string
	broker    string
	brokers   map[string]*section
	prefix    string
	provision core.Provision
	dests     map[string]core.Destination
	subs      map[string]subscription
	secrets   []string
	warnings  []string
}

// section is one entry of brokers, as written: references are looked up only when the
// section is chosen, so that a laptop needs no production secrets to run on memory.
type section struct {
	lines    map[string]int // of each field
	url      string
	user     string
	password Secret
	tls      *TLS
}

// Load reads a YAML file:
//
//	broker: memory            # the section to use; VARAL_BROKER and Config.Broker win over it
//	brokers:
//	  memory:
//	    url: "memory:"
//	  kafka:
//	    url: kafkas://k1:9093,k2:9093
//	    user: kitchen
//	    password: ${env:KAFKA_PASSWORD}
//	    tls: {ca: /etc/kafka/ca.pem}
//	prefix: dev-
//	provision: create         # verify | create | none
//	destinations:
//	  tickets: {shape: queue, partitions: 8}
//	subscriptions:
//	  kitchen:
//	    from: tickets
//	    group: kitchen
//	    order: by-key
//	    retry: {base: 1s, cap: 1m, attempts: 5}
//	    dead_letter: tickets.dlq
//
// docs/configuration.md lists every field. A field that is unknown, given twice or out
// of range is an error (core.ErrPermanent) that names file, line and field; no error
// holds a value of url, user or password.
func Load(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, driver.Errorf("read configuration", driver.Permanent, "%w", err)
	}
	defer func() { _ = f.Close() }() // read only
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, driver.Errorf("read configuration", driver.Permanent, "%w", err)
	}
	return Parse(path, data)
}

// Parse is Load for a file that has been read; name stands for it in errors.
func Parse(name string, data []byte) (*File, error) {
	r := &reader{name: short(name), refs: &references{}}
	f := &File{name: r.name, brokers: map[string]*section{}, dests: map[string]core.Destination{}, subs: map[string]subscription{}}
	if o := r.document(data); o != nil {
		f.read(o)
	}
	if r.err != nil {
		return nil, r.err
	}
	f.secrets, f.warnings = r.refs.secrets, append(f.warnings, r.refs.warnings...)
	return f, nil
}

func (f *File) read(o *object) {
	o.known("broker", "brokers", "prefix", "provision", "destinations", "subscriptions")
	f.broker, f.prefix = o.text("broker"), o.text("prefix")
	f.provision = choice(o, "provision", []string{"verify", "create", "none"},
		[]core.Provision{core.ProvisionVerify, core.ProvisionCreate, core.ProvisionNone})
	brokers := o.child("brokers")
	for _, name := range brokers.keys {
		f.brokers[name] = f.section(brokers.child(name))
	}
	if o.r.err == nil && len(f.brokers) == 0 {
		o.fail("brokers", "no broker is described: add for example memory: {url: \"memory:\"}")
	}
	if f.broker != "" && f.brokers[f.broker] == nil {
		o.fail("broker", "%s is none of the brokers %s", quote(f.broker), f.brokerNames())
	}
	dests := o.child("destinations")
	for _, name := range dests.keys {
		f.dests[name] = destination(name, dests.child(name))
	}
	subs := o.child("subscriptions")
	for _, name := range subs.keys {
		f.subs[name] = f.subscription(name, subs.child(name))
	}
}

func (f *File) section(o *object) *section {
	o.known("url", "user", "password", "tls")
	s := &section{lines: o.lines(""), url: o.raw("url"), user: o.raw("user"), password: NewSecret(o.raw("password"))}
	if !o.has("url") {
		o.fail("url", "the URL is missing")
	}
	if o.has("password") && !o.has("user") {
		o.fail("user", "a password needs a user beside it")
	}
	if o.has("user") && !o.has("password") {
		o.fail("user", "a user needs a password beside it")
	}
	if text := s.password.Reveal(); text != "" && !strings.Contains(text, "${") {
		f.warnings = append(f.warnings, fmt.Sprintf("%s:%d: a password is written in the file: use ${env:NAME} or ${file:/path}", f.name, o.line))
	}
	if o.has("tls") {
		t := o.child("tls")
		maps.Copy(s.lines, t.lines("tls."))
		t.known("ca", "cert", "key", "server_name", "insecure_skip_verify")
		s.tls = &TLS{CA: t.raw("ca"), Cert: t.raw("cert"), Key: t.raw("key"), ServerName: t.raw("server_name"), InsecureSkipVerify: t.boolean("insecure_skip_verify")}
	}
	return s
}

func destination(name string, o *object) core.Destination {
	o.known("shape", "partitions", "name")
	d := core.Destination{Name: name, Partitions: o.number("partitions", 1, 100_000)}
	d.Shape = choice(o, "shape", []string{"queue", "topic", "stream"}, []core.Shape{core.ShapeQueue, core.ShapeTopic, core.ShapeStream})
	if !o.has("shape") {
		o.fail("shape", "the shape is missing: queue, topic or stream")
	}
	if o.has("name") {
		d.Name = o.text("name")
	}
	return d
}

// Open opens the broker that the file and c choose; c.File is ignored. Use it beside
// Subscription, so that the file is read once.
func (f *File) Open(ctx context.Context, c Config) (*core.Client, error) {
	c.File = ""
	t, err := f.target(c)
	if err != nil {
		return nil, err
	}
	return t.client(ctx, c)
}

// target is Config.target for a file.
func (f *File) target(c Config) (*target, error) {
	t := &target{prefix: c.Prefix, provision: c.Provision, secrets: slices.Clone(f.secrets), warnings: slices.Clone(f.warnings)}
	if t.prefix == "" {
		t.prefix = f.prefix
	}
	if t.provision == core.ProvisionDefault {
		t.provision = f.provision
	}
	if c.URL != "" {
		t.url, t.tls = c.URL, c.TLS
		err := t.complete()
		return t, err
	}
	name, err := f.choose(c.Broker)
	if err != nil {
		return nil, err
	}
	if err := f.apply(t, name); err != nil {
		return nil, err
	}
	if c.TLS != nil {
		t.tls = c.TLS
	}
	err = t.complete()
	return t, err
}

// choose picks a section: asked for, VARAL_BROKER, the file's broker, the only one.
func (f *File) choose(asked string) (string, error) {
	source := "Config.Broker"
	if asked == "" {
		asked, source = os.Getenv(EnvBroker), EnvBroker
	}
	switch {
	case asked != "" && f.brokers[asked] == nil:
		return "", driver.Errorf(f.name, driver.Permanent, "%s is %s; the brokers are %s", source, quote(asked), f.brokerNames())
	case asked != "":
		return asked, nil
	case f.broker != "":
		return f.broker, nil
	case len(f.brokers) == 1:
		return f.Brokers()[0], nil
	}
	return "", driver.Errorf(f.name, driver.Permanent, "no broker is chosen: set broker: to one of %s, or %s", f.brokerNames(), EnvBroker)
}

// apply resolves the chosen section into t.
func (f *File) apply(t *target, name string) error {
	s, refs := f.brokers[name], &references{}
	r := &reader{name: f.name, refs: refs}
	get := func(field, raw string, esc func(string) string) string {
		if raw == "" || r.err != nil {
			return ""
		}
		out, err := refs.resolve(raw, esc)
		if err != nil {
			r.fail(s.lines[field], "brokers."+short(name)+"."+field, "%w", err)
		}
		return out
	}
	esc := escape
	if strings.HasPrefix(s.url, "${") && strings.Index(s.url, "}") == len(s.url)-1 {
		esc = nil // the whole URL comes from outside: it is encoded already
	}
	t.url = get("url", s.url, esc)
	user, password := get("user", s.user, nil), get("password", s.password.Reveal(), nil)
	if s.tls != nil {
		tls := *s.tls
		tls.CA, tls.Cert, tls.Key = get("tls.ca", tls.CA, nil), get("tls.cert", tls.Cert, nil), get("tls.key", tls.Key, nil)
		tls.ServerName = get("tls.server_name", tls.ServerName, nil)
		t.tls = &tls
	}
	if p, ok := split(t.url); r.err == nil && user != "" && ok {
		switch {
		case p.mark != "://":
			r.fail(s.lines["user"], "brokers."+short(name)+".user", "this URL takes no user")
		case p.user != "" || p.password != "":
			r.fail(s.lines["user"], "brokers."+short(name)+".user", "the URL names a user too: keep one")
		default:
			t.url = withUser(t.url, user, password)
		}
	}
	t.secrets = append(append(t.secrets, refs.secrets...), password)
	t.warnings = append(t.warnings, refs.warnings...)
	return r.err
}

// Brokers returns the names of the sections, sorted.
func (f *File) Brokers() []string { return slices.Sorted(maps.Keys(f.brokers)) }

func (f *File) brokerNames() string { return strings.Join(f.Brokers(), ", ") }

// Destinations returns the names of the destinations, sorted.
func (f *File) Destinations() []string { return slices.Sorted(maps.Keys(f.dests)) }

// Subscriptions returns the names of the subscriptions, sorted.
func (f *File) Subscriptions() []string { return slices.Sorted(maps.Keys(f.subs)) }

// Warnings returns what is allowed and should not be, one sentence each. Open logs
// them.
func (f *File) Warnings() []string { return slices.Clone(f.warnings) }

// Destination returns the destination of that name, core.ErrNotFound where the file
// has none.
func (f *File) Destination(name string) (core.Destination, error) {
	d, ok := f.dests[name]
	if !ok {
		return d, driver.Errorf(f.name, driver.NotFound, "%w", missing("destination", name, f.Destinations()))
	}
	return d, nil
}

func missing(what, name string, have []string) error {
	if len(have) == 0 {
		return fmt.Errorf("there is no %s %s: the file has none", what, quote(name))
	}
	list := strings.Join(have, ", ")
	if len(have) > 20 {
		list = strings.Join(have[:20], ", ") + ", …"
	}
	return errors.New("there is no " + what + " " + quote(name) + ": there are " + list)
}
