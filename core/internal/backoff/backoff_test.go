package backoff_test

import (
	"testing"
	"time"

	"github.com/varal-go/varal/core/internal/backoff"
)

func TestWait(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, c := range []struct {
		n           int
		base, limit time.Duration
		shape       backoff.Shape
		r           float64
		want        time.Duration
	}{
		{0, s, time.Minute, backoff.Exact, 0, s},
		{1, s, time.Minute, backoff.Exact, 0.9, s},
		{4, s, time.Minute, backoff.Exact, 0, 8 * s},
		{40, s, time.Minute, backoff.Exact, 0, time.Minute},
		{1 << 40, time.Nanosecond, 1<<63 - 1, backoff.Exact, 0, 1<<63 - 1}, // no overflow
		{2, s, time.Minute, backoff.Full, 0, 0},
		{2, s, time.Minute, backoff.Full, 0.5, s},
		{2, s, time.Minute, backoff.Half, 0, s},
		{2, s, time.Minute, backoff.Half, 0.5, 2 * s},
		{1, time.Minute, s, backoff.Exact, 0, s},
	} {
		if got := backoff.Wait(c.n, c.base, c.limit, c.shape, c.r); got != c.want {
			t.Errorf("Wait(%d, %v, %v, %d, %v) = %v, want %v", c.n, c.base, c.limit, c.shape, c.r, got, c.want)
		}
	}
}
