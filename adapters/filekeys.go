package adapters

import (
	"time"

	"github.com/varal-go/varal/core"
)

// keyLayers says what becomes of a key behind a failure, and of work that does not end.
func (f *File) keyLayers(o *object, add func(string, func(*core.Policy))) {
	byKey := o.has("order") && o.text("order") == "by-key"
	if o.has("after_terminal") {
		after := choice(o, "after_terminal", []string{"continue", "halt-key", "dead-letter-key"},
			[]core.AfterTerminal{core.ContinueKey, core.HaltKey, core.DeadLetterKey})
		switch {
		case after != core.ContinueKey && !byKey:
			o.fail("after_terminal", "%s is about keys: add order: by-key", o.text("after_terminal"))
		case after == core.DeadLetterKey && !o.has("dead_letter"):
			o.fail("after_terminal", "what follows needs a place: add dead_letter")
		}
		blockFor := o.duration("block_for", maxWait)
		name := map[core.AfterTerminal]string{core.HaltKey: "HaltKey", core.DeadLetterKey: "DeadLetterKey"}[after]
		if name != "" {
			add(name, func(p *core.Policy) { p.AfterTerminal, p.BlockFor = after, blockFor })
		}
	} else if o.has("block_for") {
		o.fail("block_for", "it is the length of after_terminal: dead-letter-key, which is not set")
	}
	if n := o.number("max_per_key", 1, maxPrefetch); n > 0 {
		add("MaxPerKey", func(p *core.Policy) { p.MaxPerKey = n })
	}
	if n := o.number("quarantine", 1, maxQuarantine); n > 0 {
		add("Quarantine", func(p *core.Policy) { p.Quarantine = n })
	}
	if o.has("breaker") {
		b := o.child("breaker")
		b.known("failures", "open_for")
		p := core.BreakerPolicy{Failures: b.number("failures", 1, maxPrefetch), OpenFor: b.duration("open_for", maxWait)}
		if p.Failures == 0 {
			b.fail("failures", "say after how many failures in a row it opens")
		}
		add("Breaker", func(to *core.Policy) { to.Breaker = p })
	}
	if o.has("retry_budget") {
		b := o.child("retry_budget")
		b.known("per_second", "percent")
		p := core.RetryBudgetPolicy{PerSecond: b.number("per_second", 1, maxRetries), Percent: b.number("percent", 1, 100)}
		if p.PerSecond == 0 {
			b.fail("per_second", "say how many retries a second are allowed at least")
		}
		add("RetryBudget", func(to *core.Policy) { to.RetryBudget = p })
	}
	if o.has("stuck") {
		s := stuck(o, o.child("stuck"))
		add("Stuck", func(p *core.Policy) { p.Stuck = s })
	}
}

// maxRetries is the largest retry budget.
const maxRetries = 1_000_000

// maxQuarantine is how many unclean ends a commit state tells apart.
const maxQuarantine = 7

func stuck(o, s *object) core.StuckPolicy {
	s.known("warn", "cancel", "abandon", "gap_skip")
	p := core.StuckPolicy{
		Warn: s.duration("warn", maxWait), Cancel: s.duration("cancel", maxWait),
		Abandon: s.duration("abandon", maxWait), GapSkip: s.duration("gap_skip", 365*24*time.Hour),
	}
	switch {
	case p.Abandon > 0 && p.Cancel == 0:
		s.fail("abandon", "a run is cancelled before it is abandoned: add cancel")
	case p.GapSkip > 0 && !o.has("dead_letter"):
		s.fail("gap_skip", "what is passed over needs a place: add dead_letter")
	}
	return p
}
