package control_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/middleware"
	"github.com/varal-go/varal/middleware/control"
	"github.com/varal-go/varal/test/varaltest"
)

// The lag is the broker's: it grows while the subscription is paused and fetches nothing.
func TestLagStaysFreshWhilePaused(t *testing.T) {
	t.Parallel()
	c := varaltest.New(t).Client
	from := core.Queue("tickets").Keyed(2)
	block := make(chan struct{})
	defer close(block)
	s, err := c.Start(t.Context(), core.Subscription{From: from, Name: "kitchen"}, func(ctx context.Context, _ *core.Delivery) error {
		select {
		case <-block:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}, middleware.SessionOrder(2), middleware.Drain(-1))
	if err != nil {
		t.Fatal(err)
	}
	h := control.Handler(c)
	publish := func(n int) {
		for i := range n {
			key := "hot"
			if i == 0 {
				key = "cold"
			}
			if err := c.Publish(t.Context(), from, &core.Message{Key: key, Body: []byte(fmt.Sprint(i))}); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish(5)
	varaltest.Eventually(t, func() bool { return s.Status().InFlight == 5 })
	s.Pause()
	publish(20)
	code, m := do(t, h, "GET", "/lag?subscription=kitchen", false)
	if code != http.StatusOK || m["messages"] != 25.0 || m["hottest_key"] != "hot" || m["hottest_share"] != 0.8 || m["few_keys"] != nil {
		t.Errorf("%d %v", code, m)
	}
	if code, _ := do(t, h, "GET", "/lag?subscription=nobody", false); code != http.StatusNotFound {
		t.Errorf("of nobody: %d", code)
	}
}

func TestKeysOverHTTP(t *testing.T) {
	t.Parallel()
	c := varaltest.New(t).Client
	from := core.Queue("tickets").Keyed(2)
	s, err := c.Start(t.Context(), core.Subscription{From: from, Name: "a/b"}, func(context.Context, *core.Delivery) error {
		return core.Permanent(errors.New("never"))
	}, middleware.SessionOrder(2), middleware.HaltKey())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Publish(t.Context(), from, &core.Message{Key: "k/1 ?&"}); err != nil {
		t.Fatal(err)
	}
	varaltest.Eventually(t, func() bool { k := s.Keys(0); return len(k) == 1 && k[0].State == "halted" })
	h := control.Handler(c)
	const key = "&key=k%2F1+%3F%26"
	for _, tc := range []struct {
		method, path string
		header       bool
		code         int
	}{
		{"GET", "/keys?limit=0", false, http.StatusBadRequest},
		{"GET", "/keys?subscription=nobody", false, http.StatusNotFound},
		{"GET", "/keys", false, http.StatusOK},
		{"GET", "/keys?subscription=a%2Fb&limit=1", false, http.StatusOK},
		{"POST", "/keys/skip?subscription=a%2Fb" + key, false, http.StatusForbidden},
		{"POST", "/keys/explode?subscription=a%2Fb" + key, true, http.StatusNotFound},
		{"POST", "/keys/skip?subscription=a%2Fb", true, http.StatusBadRequest},
		{"POST", "/keys/skip?subscription=a%2Fb&key=other", true, http.StatusConflict},
		{"POST", "/keys/skip?subscription=a%2Fb" + key, true, http.StatusOK},
		{"POST", "/keys/skip?subscription=a%2Fb" + key, true, http.StatusConflict},
	} {
		if code, m := do(t, h, tc.method, tc.path, tc.header); code != tc.code {
			t.Errorf("%s %s: %d %v, want %d", tc.method, tc.path, code, m, tc.code)
		}
	}
	varaltest.Eventually(t, func() bool { return s.Status().InFlight == 0 })
}
