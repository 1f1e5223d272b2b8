package memory

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// Defaults and fixed limits.
const (
	DefaultLease       = 30 * time.Second
	DefaultMaxBytes    = 1 << 20   // one message
	DefaultMaxMessages = 1_000_000 // one destination
	DefaultMaxStored   = 256 << 20 // bytes of one destination
	DefaultRetention   = 24 * time.Hour

	maxDelay   = 7 * 24 * time.Hour
	maxLease   = 12 * time.Hour // in all, extensions included
	maxState   = 64 << 10
	priorities = 10

	// maxHistory is what a topic keeps for groups to come once it has one. Before that
	// nobody else has its messages, so it keeps all that its limits allow; after it the rest
	// would be a heap that the garbage collector walks for the sake of a rare case.
	maxHistory = 1 << 16
)

// Config of one driver. The zero Config is a new private broker with the defaults.
type Config struct {
	// Broker to work on; several drivers with one Broker are several clients of it.
	// nil = a new one that nobody else sees.
	Broker *Broker
	// Lease of each message handed out by a queue or topic. 0 = 30 s.
	Lease time.Duration
	// Notify is told Connected and Disconnected. It must not block. May be nil.
	Notify func(driver.Event)
	// MaxBytes of one message: headers, key and body. 0 = 1 MiB.
	MaxBytes int

	// The limits below belong to destinations this driver creates.

	// MaxMessages a destination keeps: the backlog of each group of a queue or topic (a
	// full one makes publishing Transient), and what a topic keeps for later groups (at
	// most 65,536 once it has a group) or a stream keeps at all (the oldest go; a stream
	// divides the number by its partitions). 0 = 1,000,000.
	MaxMessages int
	// MaxStored is the same limit in bytes. 0 = 256 MiB.
	MaxStored int64
	// Retention is how long a topic keeps messages for later groups, and a stream at
	// all. 0 = 24 h, negative = no limit of age.
	Retention time.Duration
}

func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Lease < 0 || c.Lease > maxLease:
		return c, driver.Errorf("open memory", driver.Permanent, "Lease is %v: use 0 for the default or at most %v", c.Lease, maxLease)
	case c.MaxBytes < 0:
		return c, driver.Errorf("open memory", driver.Permanent, "MaxBytes is %d: use 0 for the default or a positive size", c.MaxBytes)
	case c.MaxMessages < 0:
		return c, driver.Errorf("open memory", driver.Permanent, "MaxMessages is %d: use 0 for the default or a positive number", c.MaxMessages)
	case c.MaxStored < 0:
		return c, driver.Errorf("open memory", driver.Permanent, "MaxStored is %d: use 0 for the default or a positive size", c.MaxStored)
	}
	c.Lease = or(c.Lease, DefaultLease)
	c.MaxBytes = or(c.MaxBytes, DefaultMaxBytes)
	c.MaxMessages = or(c.MaxMessages, DefaultMaxMessages)
	c.MaxStored = or(c.MaxStored, int64(DefaultMaxStored))
	c.Retention = or(c.Retention, DefaultRetention)
	if c.Broker == nil {
		c.Broker = NewBroker()
	}
	return c, nil
}

func (c Config) limits() limits {
	return limits{messages: c.MaxMessages, bytes: c.MaxStored, age: c.Retention}
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// ParseURL reads "memory:", "memory:NAME" and the parameters lease, retention (durations
// such as 2s), max_bytes, max_messages and max_stored (whole numbers), as in
// "memory:?lease=2s&max_bytes=65536". A NAME stands for one broker shared by the
// whole process, as long as the process lives; without one the broker is private. A
// parameter that is unknown, repeated or unreadable is an error that names it. A user
// or password is Denied, since there is nobody to check it.
func ParseURL(raw string) (Config, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "memory" { // unquoted: it may hold a password
		return Config{}, badURL("the URL is not of the form memory:NAME?lease=2s")
	}
	if u.User != nil {
		return Config{}, driver.Errorf("parse memory URL", driver.Denied, "the memory broker knows no user and no password: leave them out, write memory:NAME")
	}
	if u.Fragment != "" {
		return Config{}, badURL("a memory URL takes a name and parameters only: leave out what follows the #")
	}
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Config{}, badURL("the parameters are not readable: %w", err)
	}
	var c Config
	for name, v := range values {
		if len(v) != 1 {
			return Config{}, badURL("parameter %q is given %d times", name, len(v))
		}
		if err := c.set(name, v[0]); err != nil {
			return Config{}, err
		}
	}
	if name := strings.Trim(u.Opaque+u.Host+u.Path, "/"); name != "" {
		c.Broker = named(name)
	}
	return c, nil
}

func (c *Config) set(name, value string) (err error) {
	switch name {
	case "lease":
		c.Lease, err = time.ParseDuration(value)
	case "retention":
		c.Retention, err = time.ParseDuration(value)
	case "max_bytes":
		c.MaxBytes, err = strconv.Atoi(value)
	case "max_messages":
		c.MaxMessages, err = strconv.Atoi(value)
	case "max_stored":
		c.MaxStored, err = strconv.ParseInt(value, 10, 64)
	default:
		return badURL("parameter %q is unknown: use lease, retention, max_bytes, max_messages or max_stored", name)
	}
	if err != nil {
		return badURL("parameter %q: %w", name, err)
	}
	return nil
}

func badURL(format string, args ...any) error {
	return &driver.Error{Op: "parse memory URL", Class: driver.Permanent, Err: fmt.Errorf(format, args...)}
}
