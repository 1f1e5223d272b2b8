package deadline_test

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/goleak"

	"github.com/varal-go/varal/adapters/internal/deadline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDoReturnsWhatTheCallReturned(t *testing.T) {
	t.Parallel()
	want := errors.New("its own")
	err, abandoned, wait := deadline.Do(t.Context(), func() error { return want }, func(error) { t.Error("late") })
	wait()
	if !errors.Is(err, want) || abandoned {
		t.Errorf("%v, abandoned %v", err, abandoned)
	}
}

// TestDoReportsALateResultOnce: whoever leaves first, the result is seen exactly once.
func TestDoReportsALateResultOnce(t *testing.T) {
	t.Parallel()
	for range 2000 {
		ctx, cancel := context.WithCancel(t.Context())
		release := make(chan struct{})
		late := 0
		go cancel()
		go close(release)
		err, abandoned, wait := deadline.Do(ctx, func() error { <-release; return nil }, func(error) { late++ })
		wait()
		if seen := late; abandoned != (seen == 1) || abandoned != errors.Is(err, context.Canceled) {
			t.Fatalf("abandoned %v, late %d, err %v", abandoned, seen, err)
		}
	}
}
