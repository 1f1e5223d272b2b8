package control_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/middleware/control"
	"github.com/varal-go/varal/test/varaltest"
)

func do(t *testing.T, h http.Handler, method, path string, header bool) (int, map[string]any) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
	if header {
		r.Header.Set("X-Varal-Control", "1")
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	var body map[string]any
	_ = json.Unmarshal(w.Body.Bytes(), &body) // refusals are plain text
	return w.Code, body
}

func TestVerbs(t *testing.T) {
	t.Parallel()
	c := varaltest.New(t).Client
	sub := core.Subscription{From: core.Topic("pizzas"), Group: "billing"}
	s, err := c.Start(t.Context(), sub, func(context.Context, *core.Delivery) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Drain(context.Background()) }()
	h := control.Handler(c)
	const path = "/subscriptions/pizzas/billing/"

	varaltest.Eventually(t, func() bool { code, _ := do(t, h, "GET", "/health", false); return code == http.StatusOK })
	if code, m := do(t, h, "GET", "/describe", false); code != 200 || m["subscriptions"] == nil {
		t.Errorf("describe: %d %v", code, m)
	}
	for _, refused := range []struct {
		method, path string
		header       bool
		code         int
	}{
		{"POST", path + "pause", false, http.StatusForbidden},
		{"GET", path + "pause", true, http.StatusMethodNotAllowed},
		{"POST", path + "explode", true, http.StatusNotFound},
		{"POST", "/subscriptions/nobody/pause", true, http.StatusNotFound},
		{"POST", path + "limit?n=0", true, http.StatusBadRequest},
		{"POST", path + "limit", true, http.StatusBadRequest},
	} {
		if code, _ := do(t, h, refused.method, refused.path, refused.header); code != refused.code {
			t.Errorf("%s %s: %d, want %d", refused.method, refused.path, code, refused.code)
		}
	}
	if st := s.Status(); st.State != "running" {
		t.Fatalf("a refused verb changed the state to %s", st.State)
	}
	if code, m := do(t, h, "POST", path+"pause", true); code != 200 || m["state"] != "paused" {
		t.Errorf("pause: %d %v", code, m)
	}
	if code, m := do(t, h, "POST", path+"resume", true); code != 200 || m["state"] != "running" {
		t.Errorf("resume: %d %v", code, m)
	}
	if code, m := do(t, h, "POST", path+"limit?n=5", true); code != 200 || m["limit"] != 5.0 {
		t.Errorf("limit: %d %v", code, m)
	}
}
