package redis_test

import (
	"context"
	"errors"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/adapters/redis"
)

// reply is an error that the server has told.
type reply string

func (r reply) Error() string { return string(r) }
func (r reply) RedisError()   {}

// A pipeline that was never sent leaves no command that looks done; one that was answered
// in part keeps the answers it has.
func TestNoAnswerIsNoSuccess(t *testing.T) {
	t.Parallel()
	refused := errors.New("connection refused")
	var full error = reply("OOM command not allowed")
	for name, c := range map[string]struct {
		exec error
		have []error // what go-redis notes on the commands
		want []error
		ends error // what the pipeline ends with
	}{
		"nothing sent":          {refused, []error{nil, nil, nil}, []error{refused, refused, refused}, refused},
		"refused in part":       {full, []error{nil, full, nil}, []error{nil, full, nil}, full},
		"cut in the middle":     {refused, []error{nil, refused, refused}, []error{nil, refused, refused}, refused},
		"refused, and then cut": {full, []error{full, refused}, []error{full, refused}, refused},
		"all done":              {nil, []error{nil, nil}, []error{nil, nil}, nil},
	} {
		var cmds []goredis.Cmder
		for range c.have {
			cmds = append(cmds, goredis.NewCmd(context.Background(), "XADD"))
		}
		run := redis.Answers{}.ProcessPipelineHook(func(_ context.Context, cmds []goredis.Cmder) error {
			for i, err := range c.have {
				if err != nil {
					cmds[i].SetErr(err)
				}
			}
			return c.exec
		})
		if err := run(context.Background(), cmds); !errors.Is(err, c.ends) {
			t.Errorf("%s: the pipeline ends with %v, want %v", name, err, c.ends)
		}
		for i, cmd := range cmds {
			if !errors.Is(cmd.Err(), c.want[i]) {
				t.Errorf("%s: command %d has the error %v, want %v", name, i, cmd.Err(), c.want[i])
			}
		}
	}
}
