package redis

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/core/driver"
)

//go:embed lua/dedup.lua
var dedupText string

var dedupScript = goredis.NewScript(dedupText)

// Dedup is a core.DedupStore on a Redis server: one key for each id, which the server
// forgets by itself at the end of the lease or the window. Use OpenDedup. Its methods may be
// called concurrently and return by ctx.
//
// What the server loses is handled again: open it with Config.RequireDurable, so that marks
// are neither evicted nor left out of the append-only file. A mark needs about 150 bytes.
type Dedup struct{ b *broker }

// OpenDedup connects once and returns the store. Its keys are varal:dedup:<scope>:<id>, after
// Config.Namespace. Errors are those of Open.
func OpenDedup(ctx context.Context, c Config) (*Dedup, error) {
	if c.Broadcast {
		return nil, driver.Errorf("open Redis", driver.Permanent, "Config.Broadcast stores nothing: leave it out")
	}
	d, err := Open(ctx, c)
	if err != nil {
		return nil, err
	}
	return &Dedup{d.(*broker)}, nil //nolint:forcetypeassert // Open makes nothing else
}

// Close ends the connections. Calls after it fail with Closed.
func (s *Dedup) Close(ctx context.Context) error { return s.b.Close(ctx) }

// Claim implements core.DedupStore.
func (s *Dedup) Claim(ctx context.Context, scope string, id [32]byte, lease time.Duration) (token string, held time.Duration, err error) {
	token = rand.Text()
	n, err := s.run(ctx, "claim", scope, id, token, lease)
	switch {
	case err != nil:
		return "", 0, err
	case n < 0:
		return token, 0, nil
	}
	return "", time.Duration(n) * time.Millisecond, nil
}

// Extend implements core.DedupStore.
func (s *Dedup) Extend(ctx context.Context, scope string, id [32]byte, token string, lease time.Duration) error {
	return s.change(ctx, "extend", scope, id, token, lease)
}

// Done implements core.DedupStore.
func (s *Dedup) Done(ctx context.Context, scope string, id [32]byte, token string, keep time.Duration) error {
	return s.change(ctx, "done", scope, id, token, keep)
}

// Release implements core.DedupStore.
func (s *Dedup) Release(ctx context.Context, scope string, id [32]byte, token string) error {
	return s.change(ctx, "release", scope, id, token, 0)
}

func (s *Dedup) change(ctx context.Context, verb, scope string, id [32]byte, token string, d time.Duration) error {
	n, err := s.run(ctx, verb, scope, id, token, d)
	if err == nil && n == 0 {
		return driver.Errorf("dedup "+verb, driver.LeaseLost, "the token is not the current one: the lease ran out, or somebody has it done")
	}
	return err
}

func (s *Dedup) run(ctx context.Context, verb, scope string, id [32]byte, token string, d time.Duration) (n int64, err error) {
	op := "dedup " + verb
	if strings.ContainsAny(scope, "{}") {
		return 0, driver.Errorf(op, driver.Permanent, "scope %q: no braces, they name the hash slot of a key", scope)
	}
	key := s.b.cfg.Namespace + ":dedup:" + scope + ":" + hex.EncodeToString(id[:])
	err = s.b.bounded(ctx, func(ctx context.Context) (err error) {
		n, err = dedupScript.Run(ctx, s.b.ctl, []string{key}, verb, token, max(d.Milliseconds(), 1)).Int64()
		return err
	})
	return n, classify(op, err)
}
