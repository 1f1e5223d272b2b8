package conformance

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// shapeOf is one kind of destination a case runs on.
type shapeOf struct {
	name       string
	shape      driver.Shape
	partitions int
}

var (
	queue    = shapeOf{"queue", driver.Queue, 0}
	topic    = shapeOf{"topic", driver.Topic, 0}
	stream   = shapeOf{"stream", driver.Stream, 4}
	keyed    = shapeOf{"keyed", driver.Queue, 4}
	shapesOf = []shapeOf{queue, topic, stream, keyed}
)

// Case is one behaviour.
type Case struct {
	// ID as in the list, C01 to C64.
	ID string
	// Rule is the sentence that holds where the case passes.
	Rule string

	on    []shapeOf
	gate  gate
	alone bool // breaks or restarts the broker: nothing else may run
	meet  bool // all shapes at once, and one fault for all of them
	run   func(e *env)
}

// gate says what a destination must be able to do for a case; the zero gate is "core":
// everything must.
type gate struct {
	need   driver.Need
	on     bool
	upTo   bool
	refuse func(e *env) // nil = Require: need must be refused
}

func needs(n driver.Need) gate { return gate{need: n, on: true} }

// Cases lists the behaviours of the suite, in order.
func Cases() []Case { return allCases() }

func allCases() []Case {
	return slices.Concat(publishCases(), distributionCases(), settleCases(), leaseCases(), retryCases(), deadLetterCases(),
		orderCases(), flowCases(), lifecycleCases(), faultCases(), topologyCases())
}

// Run runs every case as a subtest C01 … C64, prints the score card, and merges it
// into the file VARAL_SCORECARD.
func Run(t *testing.T, h Harness) {
	h.setDefaults(t)
	seed := newSeed(t)
	r := &runner{h: h, seed: seed, slots: make(chan struct{}, h.Parallel), selected: selector(t)}
	r.startAll(t)
	res := RunResult{Adapter: h.Name, Broker: h.Broker, Real: h.Real, Emulator: h.Emulator, Bulk: h.Bulk}
	for _, c := range allCases() {
		t.Run(c.ID, func(t *testing.T) {
			out := r.await(t, c)
			if out.Outcome == Fail && h.SecondTry {
				out = r.again(t, c, out)
			}
			res.Cases = append(res.Cases, out)
			report(t, h, c, out, seed)
		})
	}
	t.Log("\n" + res.String())
	if !slices.ContainsFunc(res.Cases, func(c CaseResult) bool { return c.Unsteady }) { // a first try may have left some
		awaitGoroutines(t)
	}
	if len(res.Cases) == len(allCases()) && h.Only == nil {
		if err := Update(func(s *Scorecard) { s.Merge(res) }); err != nil {
			t.Errorf("score card: %v", err)
		}
	}
}

// Trial runs the named cases and returns their outcomes without failing t: for
// adapters that are broken on purpose.
func Trial(t testing.TB, h Harness, ids ...string) []CaseResult {
	h.setDefaults(t)
	want := map[string]bool{}
	for _, id := range ids {
		want[id] = true
	}
	r := &runner{h: h, seed: newSeed(t), slots: make(chan struct{}, h.Parallel), selected: func(id string) bool { return want[id] }}
	r.startAll(t)
	var out []CaseResult
	for _, c := range allCases() {
		if want[c.ID] {
			out = append(out, r.await(t, c))
		}
	}
	return out
}

func report(t *testing.T, h Harness, c Case, out CaseResult, seed uint64) {
	t.Helper()
	switch out.Outcome {
	case Fail:
		t.Errorf("rule: %s\nseed: VARAL_SEED=%d\nshapes: %v\n%s", c.Rule, seed, out.Shapes, out.log)
	case NotExercised:
		if shapes := h.forbidden(out); len(shapes) > 0 {
			t.Errorf("not exercised on %v and not allowed to be (Harness.AllowNotExercised): %s\nrule: %s", shapes, out.Reason, c.Rule)
			return
		}
		t.Skipf("not exercised: %s", out.Reason)
	case Pass, Refused:
		t.Logf("%s: %s %v", out.Outcome, c.Rule, out.Shapes)
	}
}

// forbidden returns the shapes on which a case was not exercised although it must be.
func (h *Harness) forbidden(out CaseResult) (shapes []string) {
	if _, ok := h.AllowNotExercised[out.ID]; ok || h.AllowNotExercised == nil || h.leftOut(out.ID) {
		return nil
	}
	if len(out.Shapes) == 0 {
		return []string{"any shape"}
	}
	for _, v := range shapesOf {
		_, ok := h.AllowNotExercised[out.ID+"/"+v.name]
		_, deviates := h.deviation(out.ID, v.name)
		if out.Shapes[v.name] == NotExercised && !ok && !deviates {
			shapes = append(shapes, v.name)
		}
	}
	return shapes
}

func newSeed(t testing.TB) uint64 {
	if s := os.Getenv("VARAL_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("VARAL_SEED: %v", err)
		}
		return n
	}
	return rand.Uint64()
}

// selector tells which cases -run asks for, so that only those start early.
func selector(t testing.TB) func(id string) bool {
	f := flag.Lookup("test.run")
	if f == nil || f.Value.String() == "" {
		return func(string) bool { return true }
	}
	parts := strings.Split(f.Value.String(), "/")
	depth := strings.Count(t.Name(), "/") + 1
	if len(parts) <= depth {
		return func(string) bool { return true }
	}
	re, err := regexp.Compile(parts[depth])
	if err != nil {
		return func(string) bool { return true }
	}
	return re.MatchString
}

// runner runs cases beside each other, more of them than -parallel allows: they
// mostly wait.
type runner struct {
	h        Harness
	seed     uint64
	slots    chan struct{}
	selected func(id string) bool
	pending  map[string][]*attemptOf
	parallel sync.WaitGroup
}

// attemptOf is one case on one shape.
type attemptOf struct {
	on   shapeOf
	p    *probe
	done chan struct{}
	meet *together
}

func (r *runner) startAll(t testing.TB) {
	r.pending = map[string][]*attemptOf{}
	for _, c := range allCases() {
		if c.alone || !r.selected(c.ID) {
			continue
		}
		for _, on := range c.on {
			a := &attemptOf{on: on, p: newProbe(t, c.ID+"/"+on.name), done: make(chan struct{})}
			r.pending[c.ID] = append(r.pending[c.ID], a)
			r.parallel.Go(func() {
				r.slots <- struct{}{}
				defer func() { <-r.slots }()
				r.execute(c, a)
			})
		}
	}
}

func (r *runner) execute(c Case, a *attemptOf) {
	defer close(a.done)
	began := time.Now()
	e := newEnv(a.p, &r.h, c, a.on, r.seed)
	e.meet = a.meet
	a.p.run(e.gated)
	if a.meet != nil {
		a.meet.leave()
	}
	if testing.Verbose() {
		o, _, _ := a.p.result()
		fmt.Fprintf(os.Stderr, "conformance %s %-13s %-13s %v\n", r.h.Name, a.p.name, o, time.Since(began).Round(time.Millisecond))
	}
}

// await returns the outcome of a case; one that must be alone runs now, after all the
// others.
func (r *runner) await(t testing.TB, c Case) CaseResult {
	all := r.pending[c.ID]
	if c.alone || all == nil {
		r.parallel.Wait()
		all = r.alone(t, c)
	}
	out := CaseResult{ID: c.ID, Shapes: map[string]Outcome{}, rule: c.Rule}
	for _, a := range all {
		<-a.done
		o, reason, log := a.p.result()
		if o == "" { // not a case for this shape
			continue
		}
		out.add(a.on.name, o, reason, log)
	}
	if out.Outcome == "" {
		out.Outcome, out.Reason = NotExercised, "no shape of this adapter is concerned"
	}
	return out
}

// again is the second try of a case that failed, by itself.
func (r *runner) again(t testing.TB, c Case, first CaseResult) CaseResult {
	t.Helper()
	r.parallel.Wait()
	out := CaseResult{ID: c.ID, Shapes: map[string]Outcome{}, rule: c.Rule, Unsteady: true}
	for _, a := range r.alone(t, c) {
		if o, reason, log := a.p.result(); o != "" {
			out.add(a.on.name, o, reason, log)
		}
	}
	_, _ = fmt.Fprintf(os.Stderr, "conformance %s %s failed beside other cases; by itself: %s\nseed %d\n%s\n",
		r.h.Name, c.ID, out.Outcome, r.seed, first.log)
	return out
}

// alone runs a case while no other runs: its shapes one after the other, or together.
func (r *runner) alone(t testing.TB, c Case) (all []*attemptOf) {
	meet := newTogether(len(c.on))
	var wg sync.WaitGroup
	for _, on := range c.on {
		a := &attemptOf{on: on, p: newProbe(t, c.ID+"/"+on.name), done: make(chan struct{})}
		all = append(all, a)
		if !c.meet {
			r.execute(c, a)
			continue
		}
		a.meet = meet
		wg.Go(func() { r.execute(c, a) })
	}
	wg.Wait()
	return all
}

var weight = map[Outcome]int{"": 0, Refused: 1, Pass: 2, NotExercised: 3, Fail: 4}

// add takes the outcome on one shape: the worst counts, and a pass on one shape is
// more than a refusal on another.
func (r *CaseResult) add(shape string, o Outcome, reason, log string) {
	r.Shapes[shape] = o
	if weight[o] > weight[r.Outcome] {
		r.Outcome, r.Reason = o, reason
	}
	if log != "" && o == Fail {
		r.log += "--- on " + shape + "\n" + log + "\n"
	}
}

// awaitGoroutines fails when the engine or a case has left goroutines behind. Those of
// the adapter's client library belong to drivers that t may still hold: a package
// that tests an adapter looks for them in its TestMain.
func awaitGoroutines(t testing.TB) {
	var left []string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		buf := make([]byte, 4<<20)
		left = left[:0]
		for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")[1:] { // the first is ours
			if strings.Contains(g, "/core.(*Consumer)") || strings.Contains(g, "conformance.(*env)") {
				left = append(left, g)
			}
		}
		if len(left) == 0 {
			return
		}
	}
	t.Errorf("%d goroutines are left after the cases:\n%s", len(left), strings.Join(left, "\n\n"))
}
