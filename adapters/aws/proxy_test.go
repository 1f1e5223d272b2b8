package aws_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// proxy stands before an emulator and does what none of them does: it throttles, fails
// entries, loses answers after the work was done, and counts requests by action.
type proxy struct {
	t    *testing.T
	srv  *httptest.Server
	back *httputil.ReverseProxy

	mu     sync.Mutex
	counts map[string]int
	rules  []*rule
	hosts  map[string]bool
}

// rule is a fault. It holds for the next times requests of an action.
type rule struct {
	action string
	times  int
	// refuse answers without asking the emulator.
	refuse func(body []byte) (status int, code, message string)
	// before sees a request before the emulator does.
	before func()
	// after edits the answer; false = the connection is cut instead.
	after func(request, answer []byte) ([]byte, bool)
	seen  int
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	target, err := url.Parse(endpoint(t))
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, counts: map[string]int{}, hosts: map[string]bool{}}
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	p.back = &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: transport, ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }}
	p.srv = httptest.NewServer(p)
	t.Cleanup(func() { p.srv.Close(); transport.CloseIdleConnections() })
	return p
}

// action of a request: a header in the JSON protocol of SQS, a field in the query protocol
// of SNS.
func action(r *http.Request, body []byte) string {
	if target := r.Header.Get("X-Amz-Target"); target != "" {
		return target[strings.LastIndex(target, ".")+1:]
	}
	form, _ := url.ParseQuery(string(body))
	return form.Get("Action")
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	name := action(r, body)
	rule := p.note(name, r.Host)
	r.Body = io.NopCloser(bytes.NewReader(body))
	switch {
	case rule == nil:
		p.back.ServeHTTP(w, r)
		return
	case rule.refuse != nil:
		if status, code, message := rule.refuse(body); status != 0 {
			answer(w, r, status, code, message)
			return
		}
	case rule.before != nil:
		rule.before()
	}
	rec := httptest.NewRecorder()
	p.back.ServeHTTP(rec, r)
	reply, keep := rec.Body.Bytes(), true
	if rule.after != nil {
		reply, keep = rule.after(body, reply)
	}
	if !keep {
		panic(http.ErrAbortHandler) // the connection is cut
	}
	for k, v := range rec.Header() {
		if k != "Content-Length" && !strings.Contains(strings.ToLower(k), "crc32") {
			w.Header()[k] = v
		}
	}
	w.WriteHeader(rec.Code)
	_, _ = w.Write(reply)
}

// answer writes an error, in the protocol of the request.
func answer(w http.ResponseWriter, r *http.Request, status int, code, message string) {
	if r.Header.Get("X-Amz-Target") == "" {
		w.Header().Set("Content-Type", "text/xml")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `<ErrorResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><Error><Type>Sender</Type><Code>%s</Code><Message>%s</Message></Error></ErrorResponse>`, code, message)
		return
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"__type": code, "message": message})
}

func (p *proxy) note(name, host string) *rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[name]++
	p.hosts[host] = true
	for _, r := range p.rules {
		if r.action == name && r.seen < r.times {
			r.seen++
			return r
		}
	}
	return nil
}

func (p *proxy) add(r *rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
}

// seen is how often a rule took effect.
func (p *proxy) seen(r *rule) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return r.seen
}

// count returns requests by action, all of them without one.
func (p *proxy) count(actions ...string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, k := range p.counts {
		if len(actions) == 0 {
			n += k
		}
		for _, a := range actions {
			if a == name {
				n += k
			}
		}
	}
	return n
}

func refusal(status int, code, message string) func([]byte) (int, string, string) {
	return func([]byte) (int, string, string) { return status, code, message }
}

// lostAnswer cuts the connection after the work was done.
func lostAnswer(_, answer []byte) ([]byte, bool) { return answer, false }

// failedEntry is an entry of a batch that an answer shall say failed.
type failedEntry struct {
	ID, Code    string
	SenderFault bool
}

// fail edits an answer: the entry has failed. The emulator has carried it out all the same,
// which a lease that is lost looks like.
func (f failedEntry) fail(_, answer []byte) ([]byte, bool) {
	var doc map[string]any
	if json.Unmarshal(answer, &doc) != nil {
		return answer, true
	}
	ok, _ := doc["Successful"].([]any)
	var rest []any
	for _, e := range ok {
		if m, _ := e.(map[string]any); m["Id"] != f.ID {
			rest = append(rest, e)
		}
	}
	doc["Successful"] = rest
	bad, _ := doc["Failed"].([]any)
	doc["Failed"] = append(bad, map[string]any{"Id": f.ID, "Code": f.Code, "Message": "made up", "SenderFault": f.SenderFault})
	out, _ := json.Marshal(doc)
	return out, true
}
