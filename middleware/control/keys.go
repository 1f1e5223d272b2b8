package control

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/varal-go/varal/core"
)

// SubscriptionKeys is what GET /keys returns for one subscription.
type SubscriptionKeys struct {
	// Subscription is its name.
	Subscription string `json:"subscription"`
	// Total is how many keys have unfinished messages; Keys are those that have waited
	// longest, halted and blocked ones first.
	Total int              `json:"total"`
	Keys  []core.KeyStatus `json:"keys"`
}

const defaultKeys = 100

func keys(c *core.Client, w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit := defaultKeys
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			http.Error(w, "limit must be a number of at least 1", http.StatusBadRequest)
			return
		}
		limit = n
	}
	want := q.Get("subscription")
	out := []SubscriptionKeys{}
	for _, st := range c.Health().Subscriptions {
		if want != "" && st.Name != want {
			continue
		}
		if s, ok := c.Consumer(st.Name); ok {
			out = append(out, SubscriptionKeys{Subscription: st.Name, Total: st.Keys, Keys: append([]core.KeyStatus{}, s.Keys(limit)...)})
		}
	}
	if want != "" && len(out) == 0 {
		http.Error(w, "no such subscription", http.StatusNotFound)
		return
	}
	reply(w, http.StatusOK, out)
}

// actOnKey carries out a verb on a halted key.
func actOnKey(c *core.Client, w http.ResponseWriter, r *http.Request) {
	if !meant(w, r) {
		return
	}
	q := r.URL.Query()
	s, ok := c.Consumer(q.Get("subscription"))
	if !ok {
		http.Error(w, "no such subscription: say ?subscription=NAME", http.StatusNotFound)
		return
	}
	verb := map[string]func(string) error{"resume": s.ResumeKey, "replay": s.ReplayKey, "skip": s.SkipKey}[r.PathValue("verb")]
	switch {
	case verb == nil:
		http.Error(w, "the verbs are resume, replay and skip", http.StatusNotFound)
		return
	case q.Get("key") == "":
		http.Error(w, "which key? say ?key=KEY", http.StatusBadRequest)
		return
	}
	switch err := verb(q.Get("key")); {
	case errors.Is(err, core.ErrNotFound):
		http.Error(w, err.Error(), http.StatusConflict)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		reply(w, http.StatusOK, s.Status())
	}
}

// lag answers with core.Lag; 502 when the broker does not.
func lag(c *core.Client, w http.ResponseWriter, r *http.Request) {
	s, ok := c.Consumer(r.URL.Query().Get("subscription"))
	if !ok {
		http.Error(w, "no such subscription: say ?subscription=NAME", http.StatusNotFound)
		return
	}
	l, err := s.Lag(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	reply(w, http.StatusOK, l)
}
