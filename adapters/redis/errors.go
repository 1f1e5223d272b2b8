package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/adapters/internal/sdktext"
	"github.com/varal-go/varal/adapters/internal/tlsconf"
	"github.com/varal-go/varal/core/driver"
)

// dialError marks that a connection could not be opened: nothing was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// classify gives err its class. An error that has one keeps it.
func classify(op string, err error) error {
	if err == nil || driver.ClassOf(err) != 0 {
		return err
	}
	return &driver.Error{Op: op, Class: classOf(err), Err: sdktext.Mark(err)}
}

// classOf: what the server answered was not carried out, so it is Transient or a reason
// that another try does not remove; what happened to the connection after it was there
// is Ambiguous.
func classOf(err error) driver.Class {
	if e, ok := errors.AsType[goredis.Error](err); ok {
		return classOfReply(e.Error())
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return driver.NotFound
	}
	if tlsconf.IsCertificateError(err) {
		return driver.Denied
	}
	if notSent(err) {
		return driver.Transient
	}
	return driver.Ambiguous
}

// notSent reports whether err says that a request never left.
func notSent(err error) bool {
	if _, ok := errors.AsType[*dialError](err); ok {
		return true
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "dial" {
		return true
	}
	if errors.Is(err, errNoNodes) || err.Error() == "redis: cluster has no nodes" {
		return true
	}
	return errors.Is(err, goredis.ErrPoolTimeout) || errors.Is(err, goredis.ErrPoolExhausted) || errors.Is(err, goredis.ErrClosed)
}

// unanswered adds to the error of a handshake what its silence may mean: a plain server takes
// the first bytes for half a command and waits for the rest.
func unanswered(addr string, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return fmt.Errorf("the TLS handshake with %s had no answer: %w; where the server speaks no TLS write redis:// (no Config.TLS)", addr, err)
}

// wantsTLS adds to the error of the first request of all what a closed connection may mean.
func (b *broker) wantsTLS(err error) error {
	if b.cfg.TLS != nil || !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	return fmt.Errorf("%w; a server that wants TLS ends a plain connection like this: then write rediss:// (Config.TLS)", err)
}

// replies maps the first word of an error reply. What is missing is Permanent, if it is
// a complaint about the command (ERR), and Transient otherwise: servers grow new words
// for states that pass.
var replies = map[string]driver.Class{
	"WRONGPASS": driver.Denied, "NOAUTH": driver.Denied, "NOPERM": driver.Denied,
	"WRONGTYPE": driver.Conflict, "BUSYGROUP": driver.Conflict,
	"NOGROUP": driver.NotFound,
	"MOVED":   driver.Unsupported, "ASK": driver.Unsupported, "CROSSSLOT": driver.Unsupported,
	// Not carried out, and it passes: memory, disk, start-up, failover, a busy script.
	"OOM": driver.Transient, "MISCONF": driver.Transient, "LOADING": driver.Transient, "READONLY": driver.Transient,
	"EXECABORT": driver.Transient, "BUSY": driver.Transient,
}

func classOfReply(text string) driver.Class {
	word, rest, _ := strings.Cut(text, " ")
	if c, ok := replies[word]; ok {
		return c
	}
	switch {
	case strings.Contains(text, "OOM command not allowed"): // inside a script's error
		return driver.Transient
	case word == "ERR" && strings.Contains(rest, "AUTH"):
		return driver.Denied // a password for a server that has none
	case word == "ERR" && strings.Contains(rest, "max number of clients"):
		return driver.Transient
	case word == "ERR":
		return driver.Permanent
	}
	return driver.Transient
}

// vanished reports whether an error reply says that the stream or the group is gone.
// FLUSHALL during a blocked read shows as UNBLOCKED and not as NOGROUP.
func vanished(err error) bool {
	if err == nil {
		return false
	}
	if _, ok := errors.AsType[goredis.Error](err); !ok {
		return false
	}
	text := err.Error()
	return strings.Contains(text, "NOGROUP") || strings.Contains(text, "UNBLOCKED")
}

// offline reports whether err is about the connection and not an answer.
func offline(err error) bool {
	if err == nil {
		return false
	}
	if _, ok := errors.AsType[*dialError](err); ok {
		return true // also where a Sentinel has answered
	}
	_, reply := errors.AsType[goredis.Error](err)
	return !reply || strings.HasPrefix(err.Error(), "LOADING")
}

// ended is a context that is over: Revoke with it says that ownership is lost.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func errClosed(op string) error { return driver.Errorf(op, driver.Closed, "used after Close") }
