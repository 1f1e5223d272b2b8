package all_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/conformance"
)

// miniredisFull runs all cases, and also beside a real Redis.
const miniredisFull = "VARAL_MINIREDIS_FULL"

// miniredisAddr tells the processes of Spawn where the server in this one is.
const miniredisAddr = "VARAL_CONFORMANCE_MINIREDIS"

func init() {
	children["miniredis"] = func(ctx context.Context) (driver.Driver, error) {
		return openMiniredis(ctx, os.Getenv(miniredisAddr), nil)
	}
}

func openMiniredis(ctx context.Context, addr string, dial dialer) (driver.Driver, error) {
	return redis.Open(ctx, redis.Config{Addr: addr, Dial: dial, Lease: redisLease, Timeout: 2 * time.Second})
}

// miniredisDeviations are the cases in which miniredis is not what Redis is. A case that is
// not listed must pass.
var miniredisDeviations = func() map[string]string {
	const noPack = "its Lua has no cmsgpack, so that nothing can be put aside until it is due"
	out := map[string]string{}
	for _, shape := range []string{"/queue", "/topic"} {
		out["C21"+shape], out["C62"+shape] = noPack, noPack
		// It would pass where the lease ends about when the delay does.
		out["C33"+shape] = noPack
		out["C54"+shape] = noPack + ", and the case schedules a message before the restarts"
	}
	return out
}()

// miniredisCases are those that run without miniredisFull: with the race detector the
// interpreter of the scripts wants a processor for two minutes for all of them. Left out is
// what tests core more than the adapter, and what has many consumers at work.
var miniredisCases = strings.Fields(`
	C01 C02 C03 C04 C05 C06 C07 C08 C09 C11 C13 C15 C16 C17 C18 C19 C20 C22 C23 C26 C28
	C34 C35 C36 C41 C42 C44 C45 C46 C53 C54 C57 C60 C61 C63 C64 X01`)

// TestMiniredis runs the suite on a Redis server in Go, in this process: the scripts and the
// streams without any server. What it does otherwise than Redis and no case hits is in no
// list: it knows no CLIENT UNBLOCK, so that a read that waits ends by its own time, and it
// tells neither persistence nor eviction, so that nothing counts as durable.
// Beside a real Redis it is not needed, and takes the processor of the others.
func TestMiniredis(t *testing.T) {
	if os.Getenv("VARAL_REDIS_URL") != "" && os.Getenv(miniredisFull) == "" {
		t.Skip("the real Redis does it in this run")
	}
	conformance.Run(t, miniredisHarness(t))
}

func miniredisHarness(t *testing.T) conformance.Harness {
	servers := &miniredisServers{of: map[testing.TB]*miniredis.Miniredis{}}
	open := func(t testing.TB) opener {
		addr := servers.addr(t)
		return func(ctx context.Context, dial dialer) (driver.Driver, error) { return openMiniredis(ctx, addr, dial) }
	}
	h := overFaults(t, open, func(t testing.TB) driver.Driver { return mustOpen(t, open(t), nil) })
	h.Name, h.Broker, h.Emulator = "redis", "miniredis 2", true
	h.Spawn = func(t testing.TB, job conformance.Job) *conformance.Process {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"=miniredis", miniredisAddr+"="+servers.addr(t))
		cmd.Stderr = os.Stderr
		return conformance.SpawnCommand(t, cmd, job)
	}
	h.Restart = servers.restart
	guarded := miniredis.RunT(t)
	guarded.RequireUserAuth("varal", "right")
	h.BadCredentials = wrongRedisPassword("redis://" + guarded.Addr())
	h.Dedup = func(t testing.TB) core.DedupStore { return openRedisDedup(t, "redis://"+servers.addr(t)) }
	likeRedis(&h)
	// On a machine that has other things to do it is slow before it is wrong.
	h.Bulk, h.Parallel, h.Patience = 300, 6, time.Minute
	if os.Getenv(miniredisFull) == "" {
		h.Only = miniredisCases
	}
	h.Tolerance = 2 * time.Second // of it a second for a read that nothing ends
	h.Deviations = miniredisDeviations
	h.AllowNotExercised["C33/stream"] = "across a restart: a stream with order has no delay, core holds the message"
	return h
}

// miniredisServers has a server for each case that runs. With every command miniredis sorts
// its keys and wakes all reads that wait, so that one for all cases takes a processor.
type miniredisServers struct {
	mu sync.Mutex
	of map[testing.TB]*miniredis.Miniredis // guarded by mu
}

// addr is that of t's server, which starts with the first call and ends with t.
func (s *miniredisServers) addr(t testing.TB) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.of[t]
	if m == nil {
		m = miniredis.NewMiniRedis()
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
		m.ClockTTL(true) // otherwise nothing expires by itself
		s.of[t] = m
		t.Cleanup(func() {
			s.mu.Lock()
			delete(s.of, t)
			s.mu.Unlock()
			m.Close()
		})
	}
	return m.Addr()
}

// restart ends all connections to all servers, for a case may meet it on several shapes at
// once, and has them listen again, with what there was.
func (s *miniredisServers) restart(t testing.TB) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.of {
		m.Close()
		// Close leaves it over, and then a read that waits is never answered.
		m.Lock()
		m.Ctx, m.CtxCancel = context.WithCancel(context.Background()) //nolint:fatcontext // each server has its own: nothing nests
		m.Unlock()
		for deadline := time.Now().Add(10 * time.Second); m.Restart() != nil; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) { // somebody's outgoing connection has got the port
				t.Fatal("miniredis did not come back")
			}
		}
	}
}
