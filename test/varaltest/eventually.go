package varaltest

import (
	"testing"
	"time"
)

// Patience is how long Eventually waits.
const Patience = 10 * time.Second

// Eventually waits until cond holds, and fails the test when it does not within
// Patience. cond is called again and again on the test's goroutine, from every
// millisecond to every 50. Inside a testing/synctest bubble time jumps from one event to
// the next, so that waiting there costs nothing. args, a format and its operands, say
// what was waited for.
func Eventually(t testing.TB, cond func() bool, args ...any) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for wait := time.Millisecond; !cond(); wait = min(wait*2, 50*time.Millisecond) {
		if time.Now().After(deadline) {
			fatal(t, args)
			return
		}
		time.Sleep(wait)
	}
}

func fatal(t testing.TB, args []any) {
	t.Helper()
	if len(args) > 0 {
		if format, ok := args[0].(string); ok {
			t.Fatalf("not within "+Patience.String()+": "+format, args[1:]...)
			return
		}
	}
	t.Fatalf("not within %v %v", Patience, args)
}
