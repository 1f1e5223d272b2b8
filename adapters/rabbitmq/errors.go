package rabbitmq

import (
	"context"
	"errors"
	"net"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/varal-go/varal/adapters/internal/tlsconf"
	"github.com/varal-go/varal/core/driver"
)

// classify gives err its class. An error that has one keeps it.
func classify(op string, err error) error {
	if err == nil || driver.ClassOf(err) != 0 {
		return err
	}
	return &driver.Error{Op: op, Class: classOf(err), Err: err}
}

func classOf(err error) driver.Class {
	if e, ok := errors.AsType[*amqp.Error](err); ok {
		return classOfReply(e)
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return driver.NotFound
	}
	if tlsconf.IsCertificateError(err) {
		return driver.Denied
	}
	return driver.Transient // a socket's error, an ended ctx: call again, which reconnects
}

func classOfReply(e *amqp.Error) driver.Class {
	switch e.Code {
	case amqp.NotFound:
		// The node that leads the queue is away; the queue is not.
		if strings.Contains(e.Reason, "down or inaccessible") {
			return driver.Transient
		}
		return driver.NotFound
	case amqp.AccessRefused:
		return driver.Denied
	case amqp.NotAllowed: // connection.open: no such virtual host, or not for this user
		return driver.Denied
	case amqp.ResourceLocked, amqp.PreconditionFailed:
		return driver.Conflict
	case amqp.ContentTooLarge:
		return driver.TooLarge
	case amqp.NotImplemented:
		return driver.Unsupported
	}
	return driver.Transient
}

// ended is a context that is over: Revoke with it says that ownership is lost.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func errClosed(op string) error {
	return driver.Errorf(op, driver.Closed, "used after Close")
}
