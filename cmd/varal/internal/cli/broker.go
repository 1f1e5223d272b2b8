package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
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
}

func (b *broker) flags(f *pflag.FlagSet) {
	f.StringVar(&b.url, "url", "", "broker; default $"+adapters.EnvURL)
	f.StringVar(&b.file, "file", "", "YAML file with brokers (docs/configuration.md)")
	f.StringVar(&b.section, "broker", "", "section of --file; default $"+adapters.EnvBroker+", else the file's own")
	f.StringVar(&b.prefix, "prefix", "", "put before the name of every destination")
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

// open connects within the timeout.
func (b *broker) open(ctx context.Context) (*core.Client, error) {
	if b.timeout <= 0 {
		return nil, usage("--timeout %v is not positive", b.timeout)
	}
	if b.section != "" && b.file == "" {
		return nil, usage("--broker names a section of --file, which is not given")
	}
	if b.url == "" && b.file == "" && os.Getenv(adapters.EnvURL) == "" {
		return nil, usage("no broker is named: set --url (or --file), or the environment variable %s, for example to kafka://localhost:9092", adapters.EnvURL)
	}
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
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
