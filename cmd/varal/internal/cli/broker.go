package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
)

// broker is the flags that say where to connect.
type broker struct {
	url, file, section string
	prefix             string
	create             bool
	timeout            time.Duration

	loaded *adapters.File // what load has read
}

func (b *broker) flags(f *pflag.FlagSet) {
	f.StringVar(&b.url, "url", "", "broker; default $"+adapters.EnvURL)
	f.StringVar(&b.file, "file", "", "YAML file with brokers (docs/configuration.md)")
	f.StringVar(&b.section, "broker", "", "section of --file; default $"+adapters.EnvBroker+", else the file's own")
	f.StringVar(&b.prefix, "prefix", "", "put before the name of every destination and group")
	f.BoolVar(&b.create, "create", false, "create destinations that do not exist")
	f.DurationVar(&b.timeout, "timeout", 15*time.Second, "how long to wait for the broker")
}

func (b *broker) config() adapters.Config {
	c := adapters.Config{URL: b.url, File: b.file, Broker: b.section, Prefix: b.prefix, Options: core.Options{Logger: slog.New(slog.DiscardHandler)}}
	if b.create {
		c.Provision = core.ProvisionCreate
	}
	return c
}

// load reads --file once and tells what is wrong with it and yet allowed. It returns nil
// where there is no file.
func (s *session) load(b *broker) (*adapters.File, error) {
	if b.file == "" || b.loaded != nil {
		return b.loaded, nil
	}
	f, err := adapters.Load(b.file)
	if err != nil {
		return nil, err
	}
	for _, w := range f.Warnings() {
		_, _ = fmt.Fprintln(s.err, "varal: warning:", w) // a closed stderr hears nothing
	}
	b.loaded = f
	return f, nil
}

// destination reads "queue:tickets". Where the file has a destination of that name, its
// own name and partitions hold: to publish without them would lose the order it asks for.
func (s *session) destination(b *broker, arg string, partitions int) (core.Destination, error) {
	d, err := parseDestination(arg, partitions)
	if err != nil {
		return d, err
	}
	f, err := s.load(b)
	if err != nil || f == nil || !slices.Contains(f.Destinations(), d.Name) {
		return d, err
	}
	entry, err := f.Destination(d.Name)
	switch {
	case err != nil:
		return d, err
	case entry.Shape != d.Shape:
		return d, usage("%s is a %s in %s: write %s:%s", d.Name, entry.Shape, b.file, entry.Shape, d.Name)
	case partitions > 0 && partitions != entry.Partitions:
		return d, usage("--partitions %d contradicts %s, where %s has %d: leave it out", partitions, b.file, d.Name, entry.Partitions)
	}
	return entry, nil
}

const memoryNote = "varal: memory: lives in this process: what is published here ends with it; use kafka://, amqp://, redis:// or sqs:// between two commands"

// noteMemory says what nobody expects who publishes in one shell and consumes in another.
func (s *session) noteMemory(c *core.Client) {
	if strings.HasPrefix(c.Describe().Broker, "memory:") {
		_, _ = fmt.Fprintln(s.err, memoryNote) // a closed stderr hears nothing
	}
}

// open connects within the timeout.
func (s *session) open(ctx context.Context, b *broker) (*core.Client, error) {
	if b.timeout <= 0 {
		return nil, usage("--timeout %v is not positive", b.timeout)
	}
	if b.section != "" && b.file == "" {
		return nil, usage("--broker names a section of --file, which is not given")
	}
	if b.url == "" && b.file == "" && os.Getenv(adapters.EnvURL) == "" {
		return nil, usage("no broker is named: set --url (or --file), or the environment variable %s, for example to kafka://localhost:9092", adapters.EnvURL)
	}
	f, err := s.load(b)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	if f != nil {
		return f.Open(ctx, b.config())
	}
	return adapters.Open(ctx, b.config())
}

// closeClient drains within 35 s: a handler has 30 s of its own.
func closeClient(c *core.Client, err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 35*time.Second)
	defer cancel()
	if cerr := c.Close(ctx); cerr != nil {
		return errors.Join(err, fmt.Errorf("close: %w", cerr))
	}
	return err
}
