// Package plant makes histories with a known fault in them. A checker that has not
// caught its bug proves nothing, so each check has bugs here that it must catch,
// and clean controls, legal but ugly, that it must leave alone.
//
// The toy is broker, client and clock in one: publishers, a log of partitions with
// committed positions and owners, workers with lanes per key, retries, a dead
// letter log, kills, freezes, revokes, unknown publishes. It is a random walk in
// virtual time, a pure function of Options.
package plant

import (
	"math/rand/v2"
	"strconv"

	"github.com/varal-go/varal/test/lab/history"
)

// Bug is a fault to plant. The zero Bug is None.
type Bug string

// The bugs.
const (
	None            Bug = ""
	EarlyAck        Bug = "early ack"         // settled and committed at receive; a kill then loses it
	Lost            Bug = "lost"              // dropped after the confirm
	UnknownAsOK     Bug = "unknown as ok"     // not stored, reported ok
	RejectedStored  Bug = "rejected stored"   // reported rejected, delivered
	Phantom         Bug = "phantom"           // delivered, never published
	Corrupted       Bug = "corrupted"         // a byte differs
	OtherKey        Bug = "other key"         // delivered under another key
	Swapped         Bug = "swapped"           // two of a key stored in the other order
	Overtaken       Bug = "overtaken"         // n+1 runs while n waits for its retry
	Overlapped      Bug = "overlapped"        // n+1 runs at another process while n runs
	Repeated        Bug = "repeated"          // settled, delivered again
	RevokeNoCommit  Bug = "revoke no commit"  // graceful revoke without a final commit
	DoubleSettle    Bug = "double settle"     // the broker accepts a second settle
	StaleSettle     Bug = "stale settle"      // the broker accepts the settle of one that lost it
	AttemptsReset   Bug = "attempts reset"    // every attempt is the first
	AttemptsBeyond  Bug = "attempts beyond"   // one attempt too many
	DeadTwice       Bug = "dead twice"        // two copies
	DeadEarly       Bug = "dead early"        // after the first failure
	DeadSwapped     Bug = "dead swapped"      // two of a key in the other order
	DoneAndDead     Bug = "done and dead"     // handled, and dead-lettered too
	OverLimit       Bug = "over limit"        // takes more than it may
	CommitGap       Bug = "commit gap"        // commits past a running message
	CommitAhead     Bug = "commit ahead"      // commits past what was not received yet
	LateCommit      Bug = "late commit"       // commits again after a graceful revoke
	Leak            Bug = "leak"              // goroutines grow
	SlowCall        Bug = "slow call"         // a call ignores its deadline
	Stolen          Bug = "stolen"            // a running message is given to another process
	RewindScrambled Bug = "rewind scrambled"  // after a kill the new owner goes back behind what it started
	LinesMissing    Bug = "lines missing"     // the lab: each 100th start line is not there
	TailMissing     Bug = "tail missing"      // the lab: the end of a log is not there
	ClockJumped     Bug = "clock jumped"      // the lab: a worker's clock leaps 1 s
	Stalled         Bug = "machine stalled"   // the lab: everything stands still for 2 s
	DrainShort      Bug = "drain ended early" // the lab: messages are still on their way
)

// Limits of the toy that a check's Params must repeat.
const (
	MaxAttempts = 3
	InFlight    = 8
	Group       = "kitchen"
	Dest        = "queue tickets"
	DeadDest    = "queue tickets.dlq"
)

// Options of a history. The zero Options make an honest one of 400 messages.
type Options struct {
	Seed     uint64
	Messages int // 0 = 400
	Bug      Bug
	Calm     bool // no kill, freeze, revoke, unknown or rejected publish
}

// message as the toy's broker stores it.
type message struct {
	id, key   string
	n, offset int
	poison    bool // always fails
	attempts  int  // counted by the broker
	fails     int
	done      bool // terminal in truth
	dead      bool
	settled   bool    // at the broker: never again
	spoilt    bool    // the planted bug was played on it
	gone      bool    // the broker has lost it
	copies    bool    // may be stored more than once
	by        *worker // who started it last
}

type partition struct {
	name      string
	log       []*message
	owner     int
	fence     uint64
	cursor    int
	committed int
	lanes     map[string][]*task // received and not terminal, per key, in order
	acked     int                // messages below are reported as settled
}

// task is a message in a worker's hands.
type task struct {
	m       *message
	running bool
	part    *partition
}

type worker struct {
	name       string
	gen        int
	skew       int64
	seq        int
	held       int
	frozen     bool
	ticked     int64
	lostParts  []string // partitions lost while frozen
	lostBefore []*task  // was running when it was frozen and lost its partitions
}

type publisher struct {
	name    string
	counter int
	seq     int
	pending *message // published, no result yet
	result  string
	resend  *message
}

type toy struct {
	o       Options
	r       *rand.Rand
	now     int64
	out     []history.Event
	parts   []*partition
	workers []*worker
	pubs    []*publisher
	keys    []string
	next    map[string]int
	letters []*message // dead-letter log
	read    int
	lab     int
	reader  int
	calls   int
	planted int // how often the bug was played
	left    int // messages still to publish
	faults  bool
	delayed map[string]*message // Swapped: held back, by key
}

// Made is a history and what is known about it.
type Made struct {
	History *history.History
	Planted int // how often the bug was played; 0 = this seed gave no occasion
}

// Make makes a history.
func Make(o Options) Made {
	if o.Messages == 0 {
		o.Messages = 400
	}
	t := &toy{
		o: o, r: rand.New(rand.NewPCG(o.Seed, 77)), next: map[string]int{}, left: o.Messages, //nolint:gosec // a seed, not a secret
		faults: !o.Calm, delayed: map[string]*message{}, now: 1e9,
		out: make([]history.Event, 0, 32*o.Messages),
	}
	t.setUp()
	for steps := 0; steps < 400*o.Messages && !t.over(); steps++ {
		t.step()
	}
	t.finish()
	return t.made()
}

func (t *toy) setUp() {
	for i := range 12 {
		t.keys = append(t.keys, "table-"+strconv.Itoa(i))
	}
	for i := range 3 {
		w := &worker{name: "w" + strconv.Itoa(i+1), gen: 1, skew: int64(t.r.IntN(9001)) - 4500}
		t.workers = append(t.workers, w)
		t.hello(w)
		t.pubs = append(t.pubs, &publisher{name: "p" + strconv.Itoa(i+1)})
	}
	for i := range 4 {
		p := &partition{name: strconv.Itoa(i), owner: i % 3, lanes: map[string][]*task{}}
		t.parts = append(t.parts, p)
		t.assign(p, p.owner)
	}
}

func (t *toy) hello(w *worker) {
	t.emit(w, history.Event{Op: history.OpHello})
	t.emit(w, history.Event{Op: history.OpStat, Outcome: "goroutines", Class: history.Resource, N: 20})
}

// emit writes an event of a worker, on a clock that is off by no more than it says.
func (t *toy) emit(w *worker, e history.Event) {
	t.now += 10
	w.seq++
	e.Proc, e.Gen, e.Seq, e.T, e.Eps = w.name, w.gen, w.seq, t.now+w.skew, 5000
	t.out = append(t.out, e)
}

func (t *toy) labEvent(e history.Event) {
	t.now += 10
	t.lab++
	e.Proc, e.Gen, e.Seq, e.T = "lab", 1, t.lab, t.now
	t.out = append(t.out, e)
}

func (t *toy) pubEvent(p *publisher, e history.Event) {
	t.now += 10
	p.seq++
	e.Proc, e.Gen, e.Seq, e.T = p.name, 1, p.seq, t.now
	t.out = append(t.out, e)
}

// about fills in what every event about a message carries.
func about(op history.Op, m *message, p *partition) history.Event {
	return history.Event{
		Op: op, ID: m.id, Key: m.key, N: m.n, Dest: Dest, Group: Group,
		Partition: p.name, Position: strconv.Itoa(m.offset), Fence: p.fence,
	}
}

// bug reports whether b is to be played now, with the given chance.
func (t *toy) bug(b Bug, chance float64) bool {
	return t.o.Bug == b && t.r.Float64() < chance
}

func (t *toy) over() bool {
	if t.left > 0 || t.read < len(t.letters) || len(t.delayed) > 0 {
		return false
	}
	for _, p := range t.pubs {
		if p.pending != nil || p.resend != nil {
			return false
		}
	}
	for _, w := range t.workers {
		if w.frozen || len(w.lostBefore) > 0 {
			return false
		}
	}
	for _, p := range t.parts {
		if p.committed < len(p.log) {
			return false
		}
	}
	return true
}

func (t *toy) step() {
	t.now += int64(t.r.IntN(200_000)) + 20_000
	t.tick()
	switch k := t.r.IntN(100); {
	case k < 25:
		t.publish(t.pubs[t.r.IntN(len(t.pubs))])
	case k < 45:
		t.receive(t.parts[t.r.IntN(len(t.parts))])
	case k < 80:
		t.work(t.parts[t.r.IntN(len(t.parts))])
	case k < 90:
		p := t.parts[t.r.IntN(len(t.parts))]
		t.commit(p, t.o.Bug == CommitGap)
		if t.bug(CommitAhead, 0.3) && p.cursor < len(p.log) && !t.workers[p.owner].frozen {
			t.planted++
			t.commitLine(t.workers[p.owner], p, p.cursor+1) // nor did the broker mean this one
		}
	case k < 93:
		t.readLetters()
	case k < 94:
		t.call()
	case k < 95 && t.faults && t.r.IntN(8) == 0:
		t.kill(t.r.IntN(len(t.workers)))
	case k < 96 && t.faults && t.r.IntN(4) == 0:
		t.rebalance(t.parts[t.r.IntN(len(t.parts))])
	case k < 97 && t.faults && t.r.IntN(8) == 0:
		t.freeze(t.workers[t.r.IntN(len(t.workers))])
	case k < 99:
		t.thaw()
	}
}

// tick lets every process that is not frozen report that it lives.
func (t *toy) tick() {
	if t.o.Bug == Stalled && t.planted == 0 && t.left < t.o.Messages/2 {
		t.planted++
		t.now += 2e9
	}
	for _, w := range t.workers {
		if !w.frozen && t.now-w.ticked >= 10e6 {
			w.ticked = t.now
			t.emit(w, history.Event{Op: history.OpTick})
		}
	}
}

// finish ends all logs.
func (t *toy) finish() {
	for i, w := range t.workers {
		n := 20
		if t.o.Bug == Leak && i == 0 {
			n, t.planted = 57, t.planted+1
		}
		t.emit(w, history.Event{Op: history.OpStat, Outcome: "goroutines", Class: history.Resource, N: n})
		t.emit(w, history.Event{Op: history.OpBye})
	}
	t.labEvent(history.Event{Op: history.OpStat, Outcome: history.StatInFlight, Dest: Dest})
	outcome := history.OK
	if t.o.Bug == DrainShort {
		outcome = history.Unknown
	}
	t.labEvent(history.Event{Op: history.OpDrained, Outcome: outcome})
}
