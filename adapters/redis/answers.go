package redis

import (
	"context"

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

func (answers) DialHook(next goredis.DialHook) goredis.DialHook { return next }

// ProcessHook: the error of a single command is what the call returns.
func (answers) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }

func (answers) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		err := next(ctx, cmds)
		if err == nil {
			return nil
		}
		for _, cmd := range cmds {
			if cmd.Err() != nil {
				return err // each has its own
			}
		}
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
		return err
	}
}

// dial returns a client that carries the hook. It connects when it is used.
func dial(o *goredis.Options) *goredis.Client {
	cl := goredis.NewClient(o)
	cl.AddHook(answers{})
	return cl
}
