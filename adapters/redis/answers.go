package redis

import (
	"context"
	"errors"
	"net"

	goredis "github.com/redis/go-redis/v9"
)

// answers is a hook that makes sure that a command without an answer does not look like
// one that succeeded.
//
// A pipeline that failed as a whole may leave its commands as they were, without an error
// and with a zero value: go-redis up to v9.21 does so after a refused connection when
// retries are off. Read one by one, every message of such a publish would be confirmed,
// and lost. Which version runs is decided by the application's go.mod, so each client of
// this adapter carries the hook.
type answers struct{}

var _ goredis.Hook = answers{}

// DialHook marks what prevented a connection: nothing was sent over it. With Sentinels
// that may be an answer of theirs, even "nil", which must not be taken for one to the
// command that waits for the connection.
func (answers) DialHook(next goredis.DialHook) goredis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if _, marked := errors.AsType[*dialError](err); err == nil || marked {
			return conn, err
		}
		if errors.Is(err, goredis.Nil) {
			err = errors.New("no Sentinel knows the primary's name now")
		}
		return nil, &dialError{err}
	}
}

// ProcessHook: the error of a single command is what the call returns.
func (answers) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }

// ProcessPipelineHook gives commands without an answer the error of the pipeline. go-redis
// returns the first error of all: where that is the server's refusal of one command, and the
// connection broke behind it, it would say that the rest was answered. So what it returns is
// the loss of the connection, if there was one.
func (answers) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		err := next(ctx, cmds)
		if err == nil {
			return nil
		}
		told := false
		for _, cmd := range cmds {
			e := cmd.Err()
			if told = told || e != nil; e != nil && offline(e) {
				return e
			}
		}
		if told {
			return err // each has its own
		}
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
		return err
	}
}
