package adapters

import (
	"slices"
	"strings"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

const (
	maxWait        = 7 * 24 * time.Hour
	maxPrefetch    = 1 << 24
	maxConcurrency = 1 << 20
	maxAttempts    = 1000
)

// subscription is one entry of subscriptions.
type subscription struct {
	sub    core.Subscription
	layers []core.Layer
}

// Subscription returns the subscription of that name with its layers, ready for
// Client.Consume; core.ErrNotFound where the file has none. The layers have the names
// of package middleware, so that a setting in the file and the same one in code are
// refused instead of one winning.
func (f *File) Subscription(name string) (core.Subscription, []core.Layer, error) {
	s, ok := f.subs[name]
	if !ok {
		return core.Subscription{}, nil, driver.Errorf(f.name, driver.NotFound, "%w", missing("subscription", name, f.Subscriptions()))
	}
	s.sub.Require, s.sub.Prefer = slices.Clone(s.sub.Require), slices.Clone(s.sub.Prefer)
	return s.sub, slices.Clone(s.layers), nil
}

func (f *File) subscription(name string, o *object) subscription {
	o.known("from", "group", "start", "reset", "temporary", "require", "prefer", "order", "concurrency", "prefetch",
		"prefetch_bytes", "retry", "dead_letter", "native_dead_letter", "on_exhausted", "timeout", "drain", "ack_first",
		"after_terminal", "block_for", "max_per_key", "quarantine", "stuck", "breaker", "retry_budget")
	s := subscription{sub: core.Subscription{Name: name, Group: o.text("group"), Temporary: o.boolean("temporary")}}
	from := o.text("from")
	s.sub.From = f.dests[from]
	if !o.has("from") {
		o.fail("from", "the source is missing: name one of destinations")
	} else if s.sub.From.Name == "" {
		o.fail("from", "%v", missing("destination", from, f.Destinations()))
	}
	if s.sub.From.Shape == core.ShapeTopic && s.sub.Group == "" {
		o.fail("group", "a topic gives every group its own copy, so the group must have a name")
	}
	kinds := []core.PositionKind{core.Earliest, core.Latest}
	s.sub.Start.Kind = choice(o, "start", []string{"earliest", "latest"}, kinds)
	s.sub.Reset = choice(o, "reset", []string{"earliest", "latest"}, kinds)
	s.sub.Require, s.sub.Prefer = needs(o, "require"), needs(o, "prefer")
	s.layers = f.layers(o)
	return s
}

func needs(o *object, key string) (out []core.Need) {
	for _, word := range o.list(key) {
		n, err := driver.ParseNeed(word)
		if err != nil {
			o.fail(key, "%s is no capability: there are %s", quote(word), strings.Join(needWords(), ", "))
		}
		out = append(out, n)
	}
	return out
}

func needWords() (out []string) {
	for n := range driver.NeedCount {
		out = append(out, n.String())
	}
	return out
}

// layers builds what package middleware builds from code. Each field that is left out
// keeps core's default.
func (f *File) layers(o *object) (out []core.Layer) {
	add := func(name string, edit func(*core.Policy)) {
		out = append(out, core.Layer{Name: name, Edit: func(p *core.Policy) error { edit(p); return nil }})
	}
	concurrency := o.number("concurrency", 1, maxConcurrency)
	byKey := choice(o, "order", []string{"by-key", "unordered"}, []bool{true, false})
	switch {
	case byKey:
		add("SessionOrder", func(p *core.Policy) { p.Order = core.ByKey; p.Concurrency = concurrency })
	case concurrency > 0:
		add("Concurrency", func(p *core.Policy) { p.Concurrency = concurrency })
	}
	if n := o.number("prefetch", 1, maxPrefetch); n > 0 {
		add("Prefetch", func(p *core.Policy) { p.MaxInFlight = n })
	}
	if n := o.number("prefetch_bytes", 1, 1<<40); n > 0 {
		add("PrefetchBytes", func(p *core.Policy) { p.MaxInFlightBytes = int64(n) })
	}
	if o.has("retry") {
		r := retry(o.child("retry"))
		add("Retry", func(p *core.Policy) { p.SetRetry(r) })
	}
	f.failureLayers(o, add)
	f.keyLayers(o, add)
	if d := o.duration("timeout", maxWait); d > 0 {
		add("Timeout", func(p *core.Policy) { p.Timeout = d })
	}
	if d := o.duration("drain", maxWait); d > 0 {
		add("Drain", func(p *core.Policy) { p.DrainTimeout = d })
	}
	if o.boolean("ack_first") {
		add("AckFirst", func(p *core.Policy) { p.AckFirst = true })
	}
	return out
}

// failureLayers says what becomes of a message that cannot be handled.
func (f *File) failureLayers(o *object, add func(string, func(*core.Policy))) {
	if o.has("dead_letter") {
		name := o.text("dead_letter")
		to, declared := f.dests[name]
		if !declared {
			to = core.Queue(name)
		}
		add("DeadLetter", func(p *core.Policy) { p.DeadLetter = to })
	}
	if o.boolean("native_dead_letter") {
		add("NativeDeadLetter", func(p *core.Policy) { p.NativeDeadLetter = true })
	}
	if o.has("on_exhausted") {
		e := choice(o, "on_exhausted", []string{"halt", "discard"}, []core.Exhausted{core.ExhaustedHalt, core.ExhaustedDiscard})
		add("OnExhausted", func(p *core.Policy) { p.Exhausted = e })
	}
	refuseCombinations(o)
}

// refuseCombinations says in the words of the file what core would say in those of code
// when the subscription starts.
func refuseCombinations(o *object) {
	dead, ackFirst := "", o.boolean("ack_first")
	for _, key := range []string{"native_dead_letter", "dead_letter"} {
		if key == "dead_letter" && o.has(key) || key != "dead_letter" && o.boolean(key) {
			dead = key
		}
	}
	attempts := 0
	if o.has("retry") {
		attempts = o.child("retry").number("attempts", 1, maxAttempts)
	}
	ended := o.has("on_exhausted") || o.has("after_terminal") && o.text("after_terminal") == "halt-key"
	switch {
	case ackFirst && o.has("retry"):
		o.fail("ack_first", "a message acknowledged before the handler cannot be tried again: drop retry or ack_first")
	case ackFirst && dead != "":
		o.fail("ack_first", "a message acknowledged before the handler cannot become a dead letter: drop %s or ack_first", dead)
	case ackFirst && o.has("order") && o.text("order") == "by-key":
		o.fail("ack_first", "order per key does not survive a failure that was acknowledged before: drop order or ack_first")
	case o.has("dead_letter") && o.boolean("native_dead_letter"):
		o.fail("native_dead_letter", "dead_letter is set too: keep one")
	case dead != "" && o.has("on_exhausted"):
		o.fail("on_exhausted", "%s says already what becomes of the message: keep one", dead)
	case attempts > 0 && dead == "" && !ended:
		o.child("retry").fail("attempts", "after %d attempts there is no place for the message: add dead_letter, or say on_exhausted: halt or on_exhausted: discard", attempts)
	}
}

func retry(o *object) core.RetryPolicy {
	o.known("base", "cap", "attempts", "max_elapsed", "jitter")
	return core.RetryPolicy{
		Base: o.duration("base", maxWait), Cap: o.duration("cap", maxWait), Attempts: o.number("attempts", 1, maxAttempts),
		MaxElapsed: o.duration("max_elapsed", 365*24*time.Hour),
		Jitter:     choice(o, "jitter", []string{"full", "half", "none"}, []core.Jitter{core.FullJitter, core.HalfJitter, core.NoJitter}),
	}
}
