//go:build unix

package faults

import (
	"testing"
	"time"

	"github.com/varal-go/varal/test/internal/brokers"
)

// The brokers are tested side by side, the faults of one broker one after the
// other: a restart would disturb the rest.

// testMembers does to members what every broker must bear.
func testMembers(t *testing.T, r brokers.Report) {
	t.Run("Kill", func(t *testing.T) { testKill(t, r, true) })
	t.Run("KillUnordered", func(t *testing.T) { testKill(t, r, false) })
	t.Run("Term", func(t *testing.T) { testTerm(t, r, false) })
	t.Run("TermOrdered", func(t *testing.T) { testTerm(t, r, true) })
	t.Run("Freeze", func(t *testing.T) { testFreeze(t, r, true) })
	t.Run("Cut", func(t *testing.T) { testCut(t, r, true) })
}

// testLeases does what a lease on each message, and no owner, must bear as well.
func testLeases(t *testing.T, r brokers.Report) {
	t.Run("FreezeUnordered", func(t *testing.T) { testFreeze(t, r, false) })
	t.Run("CutUnordered", func(t *testing.T) { testCut(t, r, false) })
}

func TestKafka(t *testing.T) {
	t.Parallel()
	r := own.up(t, "kafka")
	testMembers(t, r)
	t.Run("Split", func(t *testing.T) { testSplit(t, r, 8*time.Second) })
	t.Run("Restart", func(t *testing.T) { testRestart(t, r, true, true) })
}

func TestRabbitMQ(t *testing.T) {
	t.Parallel()
	r := own.up(t, "rabbitmq")
	testMembers(t, r)
	t.Run("Alarm", func(t *testing.T) { testAlarm(t, r) })
	t.Run("Split", func(t *testing.T) { testSplit(t, r, 12*time.Second) })
	t.Run("Restart", func(t *testing.T) { testRestart(t, r, true, true) })
}

func TestRedis(t *testing.T) {
	t.Parallel()
	r := own.up(t, "redis")
	testMembers(t, r)
	testLeases(t, r)
	t.Run("Split", func(t *testing.T) { testSplit(t, r, redisLease+3*time.Second) })
	t.Run("Restart", func(t *testing.T) { testRestart(t, r, true, true) })
	t.Run("RestartUnordered", func(t *testing.T) { testRestart(t, r, false, true) })
}

func TestSQS(t *testing.T) {
	t.Parallel()
	r := own.up(t, "sqs")
	testMembers(t, r)
	testLeases(t, r)
	t.Run("Split", func(t *testing.T) { testSplit(t, r, sqsLease+3*time.Second) })
	// By SIGTERM alone: the emulator writes its queues down when it ends in good order, and
	// after a SIGKILL there are none. AWS has no such moment.
	t.Run("Restart", func(t *testing.T) { testRestart(t, r, true, false) })
	t.Run("RestartUnordered", func(t *testing.T) { testRestart(t, r, false, false) })
}
