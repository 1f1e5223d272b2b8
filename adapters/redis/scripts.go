package redis

import (
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

	createScript  = goredis.NewScript(createText)
	receiveScript = goredis.NewScript(receiveText)
	trimScript    = goredis.NewScript(trimText)
	leaveScript   = goredis.NewScript(leaveText)
	seekScript    = goredis.NewScript(seekText)
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
