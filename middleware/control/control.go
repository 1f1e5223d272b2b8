// Package control serves a client's state and verbs over HTTP: an http.Handler that
// the service mounts itself, on loopback unless it adds authentication.
//
//	GET  /describe                       the manifest
//	GET  /health                         200 when ready, 503 with the reasons otherwise
//	GET  /status                         every subscription
//	POST /subscriptions/{name}/pause     stop new deliveries
//	POST /subscriptions/{name}/resume
//	POST /subscriptions/{name}/limit?n=N change MaxInFlight
//	GET  /lag?subscription=S             how far it is behind, asked of the broker
//	GET  /keys?subscription=S&limit=N    what keys wait for, by subscription; both optional
//	POST /keys/resume?subscription=S&key=K   a halted key gets one more attempt
//	POST /keys/replay?subscription=S&key=K   … all attempts, from the first
//	POST /keys/skip?subscription=S&key=K     … goes on behind its first message
package control

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/varal-go/varal/core"
)

// Handler returns the http.Handler for client c. It has no authentication of its own:
// whoever reaches it can pause consumers. State changes must be POST and carry the
// header "X-Varal-Control", which a browser does not send across sites unasked.
func Handler(c *core.Client) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /describe", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, c.Describe()) })
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, c.Health().Subscriptions) })
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		h, code := c.Health(), http.StatusOK
		if !h.Ready {
			code = http.StatusServiceUnavailable
		}
		reply(w, code, h)
	})
	mux.HandleFunc("GET /lag", func(w http.ResponseWriter, r *http.Request) { lag(c, w, r) })
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, r *http.Request) { keys(c, w, r) })
	mux.HandleFunc("POST /keys/{verb}", func(w http.ResponseWriter, r *http.Request) { actOnKey(c, w, r) })
	mux.HandleFunc("POST /subscriptions/{name...}", func(w http.ResponseWriter, r *http.Request) { act(c, w, r) })
	return mux
}

// act carries out a verb. Names may hold slashes, so the verb is the last element.
func act(c *core.Client, w http.ResponseWriter, r *http.Request) {
	if !meant(w, r) {
		return
	}
	name, verb := splitLast(r.PathValue("name"))
	s, ok := c.Consumer(name)
	if !ok {
		http.Error(w, "no such subscription", http.StatusNotFound)
		return
	}
	switch verb {
	case "pause":
		s.Pause()
	case "resume":
		s.Resume()
	case "limit":
		n, err := strconv.Atoi(r.URL.Query().Get("n"))
		if err != nil || n < 1 {
			http.Error(w, "limit needs ?n=N with N of at least 1", http.StatusBadRequest)
			return
		}
		s.SetLimit(n)
	default:
		http.Error(w, "the verbs are pause, resume and limit", http.StatusNotFound)
		return
	}
	reply(w, http.StatusOK, s.Status())
}

// meant refuses a request that a browser may have sent across sites unasked.
func meant(w http.ResponseWriter, r *http.Request) bool {
	if r.Header.Get("X-Varal-Control") == "" {
		http.Error(w, "state changes need the header X-Varal-Control", http.StatusForbidden)
		return false
	}
	return true
}

func splitLast(path string) (name, verb string) {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return path[:i], path[i+1:]
		}
	}
	return "", path
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the peer is gone when this fails
}
