package redis

import (
	"context"
	_ "embed"

	goredis "github.com/redis/go-redis/v9"
)

// The scripts. Each names all its keys, which are in one slot, and takes the time from
// the server.
var (
	//go:embed lua/create.lua
	createText string
	//go:embed lua/receive.lua
	receiveText string
	//go:embed lua/settle.lua
	settleText string
	//go:embed lua/schedule.lua
	scheduleText string
	//go:embed lua/trim.lua
	trimText string
	//go:embed lua/leave.lua
	leaveText string
	//go:embed lua/seek.lua
	seekText string
	//go:embed lua/tidy.lua
	tidyText string
	//go:embed lua/stream.lua
	streamText string
	//go:embed lua/beat.lua
	beatText string
	//go:embed lua/shard.lua
	shardText string
	//go:embed lua/shard_claim.lua
	claimText string
	//go:embed lua/shard_peek.lua
	peekText string
	//go:embed lua/shard_renew.lua
	renewText string
	//go:embed lua/shard_release.lua
	releaseText string
	//go:embed lua/shard_read.lua
	shardReadText string
	//go:embed lua/shard_recover.lua
	recoverText string
	//go:embed lua/shard_settle.lua
	shardSettleText string
	//go:embed lua/shard_seek.lua
	shardSeekText string

	createScript  = goredis.NewScript(createText)
	receiveScript = goredis.NewScript(receiveText)
	trimScript    = goredis.NewScript(trimText)
	leaveScript   = goredis.NewScript(leaveText)
	seekScript    = goredis.NewScript(seekText)

	tidyScript        = goredis.NewScript(tidyText)
	streamScript      = goredis.NewScript(streamText)
	beatScript        = goredis.NewScript(beatText)
	claimScript       = goredis.NewScript(shardText + claimText)
	peekScript        = goredis.NewScript(shardText + peekText)
	renewScript       = goredis.NewScript(shardText + renewText)
	releaseScript     = goredis.NewScript(shardText + releaseText)
	recoverScript     = goredis.NewScript(shardText + recoverText)
	shardReadScript   = goredis.NewScript(shardText + shardReadText)
	shardSettleScript = goredis.NewScript(shardText + shardSettleText)
	shardSeekScript   = goredis.NewScript(shardText + shardSeekText)
)

// The verbs of settle.lua and its answers.
const (
	verbAck    = "ack"
	verbNack   = "nack"
	verbReturn = "return"
	verbExtend = "extend"

	settledDone = 1
	settledLost = 0 // another consumer has it, or nobody
	settledGone = 2 // the entry was deleted; there is nothing left to hand out again
	settledFull = 3 // no memory for the copy that comes again; the original stays out
)

// call is one script with its arguments.
type call struct {
	script *goredis.Script
	keys   []string
	args   []any
}

// runAll runs scripts in one pipeline, one after the other; what the server does not know
// yet is sent once more in full. An error is about the connection and holds for all; what
// the server answered is in each command. In a Cluster that is so for each node: where some
// answer and others do not, each command has its own.
func (b *broker) runAll(ctx context.Context, calls []call) ([]*goredis.Cmd, error) {
	cmds := make([]*goredis.Cmd, len(calls))
	unknown, err := b.send(ctx, calls, cmds, false)
	if err != nil || !unknown {
		return cmds, err
	}
	_, err = b.send(ctx, calls, cmds, true)
	return cmds, err
}

// send fills in the commands that have no answer yet.
func (b *broker) send(ctx context.Context, calls []call, cmds []*goredis.Cmd, whole bool) (unknown bool, err error) {
	pipe := b.ctl.Pipeline()
	for i, c := range calls {
		switch {
		case !whole:
			cmds[i] = c.script.EvalSha(ctx, pipe, c.keys, c.args...)
		case goredis.HasErrorPrefix(cmds[i].Err(), "NOSCRIPT"):
			cmds[i] = c.script.Eval(ctx, pipe, c.keys, c.args...)
		}
	}
	_, err = pipe.Exec(ctx)
	if err != nil && offline(err) && !b.cfg.Cluster {
		return false, err
	}
	lost := 0
	for _, cmd := range cmds {
		if e := cmd.Err(); e != nil && offline(e) {
			lost, err = lost+1, e
		}
		unknown = unknown || goredis.HasErrorPrefix(cmd.Err(), "NOSCRIPT")
	}
	if lost > 0 && (lost == len(cmds) || !b.cfg.Cluster) {
		return false, err
	}
	return unknown, nil
}
