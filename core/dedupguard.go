package core

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"
)

// guardedStore makes an error of a panic of a DedupStore, as the engine does with a
// handler's: a store whose driver panics is one that does not answer, and no reason for the
// process to end with everything that runs beside it. Only Policy.PanicCrashes asks for that.
type guardedStore struct{ DedupStore }

// guard turns a panic of the call it is deferred by into *err.
func (guardedStore) guard(call string, err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("dedup store: %s: %w\n%s", call, &panicError{value: fmt.Sprint(r)}, debug.Stack())
	}
}

func (g guardedStore) Claim(ctx context.Context, scope string, id [32]byte, lease time.Duration) (token string, held time.Duration, err error) {
	defer g.guard("Claim", &err)
	return g.DedupStore.Claim(ctx, scope, id, lease)
}

func (g guardedStore) Extend(ctx context.Context, scope string, id [32]byte, token string, lease time.Duration) (err error) {
	defer g.guard("Extend", &err)
	return g.DedupStore.Extend(ctx, scope, id, token, lease)
}

func (g guardedStore) Done(ctx context.Context, scope string, id [32]byte, token string, keep time.Duration) (err error) {
	defer g.guard("Done", &err)
	return g.DedupStore.Done(ctx, scope, id, token, keep)
}

func (g guardedStore) Release(ctx context.Context, scope string, id [32]byte, token string) (err error) {
	defer g.guard("Release", &err)
	return g.DedupStore.Release(ctx, scope, id, token)
}
