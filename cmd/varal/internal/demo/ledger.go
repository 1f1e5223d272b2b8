package demo

import (
	"fmt"
	"sync"
)

// ticket is what the counter hangs on the line.
type ticket struct {
	Table int    `json:"table"`
	Seq   int    `json:"seq"` // 1, 2, 3 … per table
	Pizza string `json:"pizza"`
}

func (t ticket) key() string { return fmt.Sprintf("table-%d", t.Table) }

// record is what became of one ticket. It is judged by itself: a set of what arrived
// would hide a message that came twice in the place of one that was lost.
type record struct {
	published  bool
	started    bool
	overtaken  bool // a later ticket of its table started first
	done       int  // times the handler succeeded
	rejected   bool
	deadLetter int
	billing    int
	screen     int
	diary      int
}

// ledger judges. Its methods may be called concurrently.
type ledger struct {
	mu       sync.Mutex
	tables   [][]record // by table, by Seq-1
	latest   []int      // highest Seq started, by table
	retried  int
	events   int // grows with everything that happens: no growth = nothing moves
	done     int
	rejected int
	dead     int
	bills    int
	shown    int
	read     int
	diaryPos []int // highest Seq read from the diary, by table
	diaryOOO int
	foreign  int // messages that nobody published
}

func newLedger(tables, messages int) *ledger {
	l := &ledger{tables: make([][]record, tables), latest: make([]int, tables), diaryPos: make([]int, tables)}
	for i := range l.tables {
		n := messages / tables
		if i < messages%tables {
			n++
		}
		l.tables[i] = make([]record, n)
	}
	return l
}

// change looks a ticket up and alters its record. false: nobody published it.
func (l *ledger) change(t ticket, f func(*record)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events++
	if t.Table < 0 || t.Table >= len(l.tables) || t.Seq < 1 || t.Seq > len(l.tables[t.Table]) {
		l.foreign++
		return false
	}
	f(&l.tables[t.Table][t.Seq-1])
	return true
}

func (l *ledger) published(t ticket) { l.change(t, func(r *record) { r.published = true }) }

// start is the beginning of an attempt. A ticket that is not finished and starts
// after a later one of its table is out of order; one that is finished and comes again
// is a duplicate, which at least once allows.
func (l *ledger) start(t ticket) bool {
	return l.change(t, func(r *record) {
		if r.done == 0 && !r.rejected && l.latest[t.Table] > t.Seq {
			r.overtaken = true
		}
		r.started = true
		l.latest[t.Table] = max(l.latest[t.Table], t.Seq)
	})
}

func (l *ledger) retry(t ticket) { l.change(t, func(*record) { l.retried++ }) }

func (l *ledger) finish(t ticket) {
	l.change(t, func(r *record) { r.done++; count(r.done, &l.done) })
}

func (l *ledger) reject(t ticket) {
	l.change(t, func(r *record) {
		if !r.rejected {
			l.rejected++
		}
		r.rejected = true
	})
}

func (l *ledger) deadLettered(t ticket) {
	l.change(t, func(r *record) { r.deadLetter++; count(r.deadLetter, &l.dead) })
}

func (l *ledger) billed(t ticket) {
	l.change(t, func(r *record) { r.billing++; count(r.billing, &l.bills) })
}

func (l *ledger) screened(t ticket) {
	l.change(t, func(r *record) { r.screen++; count(r.screen, &l.shown) })
}

// wrote is one entry of the replayed diary.
func (l *ledger) wrote(t ticket) {
	l.change(t, func(r *record) {
		r.diary++
		count(r.diary, &l.read)
		if r.diary == 1 && l.diaryPos[t.Table] > t.Seq {
			l.diaryOOO++
		}
		l.diaryPos[t.Table] = max(l.diaryPos[t.Table], t.Seq)
	})
}

// count counts a ticket the first time only.
func count(times int, n *int) {
	if times == 1 {
		*n++
	}
}

// Progress is a snapshot of a run.
type Progress struct {
	Messages, Done, Retried, Rejected, DeadLettered, Billed, Shown, DiaryRead int
	events                                                                    int
}

func (l *ledger) progress(messages int) Progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Progress{
		Messages: messages, Done: l.done, Retried: l.retried, Rejected: l.rejected,
		DeadLettered: l.dead, Billed: l.bills, Shown: l.shown, DiaryRead: l.read, events: l.events,
	}
}

// complete: every ticket has its end, and every end has reached whoever waits for it.
func (p Progress) complete() bool {
	return p.Done+p.DeadLettered >= p.Messages && p.Billed >= p.Done && p.Shown >= p.Done
}

// Row is the account of one destination (for a topic: of one of its groups).
type Row struct {
	Shape        string `json:"shape"`
	Name         string `json:"name"`
	Published    int    `json:"published"`
	Handled      int    `json:"handled"`
	Retried      int    `json:"retried"`
	DeadLettered int    `json:"dead_lettered"`
	Duplicates   int    `json:"duplicates"`
	// OutOfOrder is -1 where this destination promises no order.
	OutOfOrder int `json:"out_of_order"`
	Lost       int `json:"lost"`
}

// rows judges every ticket. Whether the tickets and the diary promise order is told.
func (l *ledger) rows(ticketsOrdered, diaryOrdered bool) []Row {
	l.mu.Lock()
	defer l.mu.Unlock()
	tickets := Row{Shape: "queue", Name: "tickets", Retried: l.retried}
	dead := Row{Shape: "queue", Name: "tickets.dlq", OutOfOrder: -1}
	billing := Row{Shape: "topic", Name: "pizzas → billing", OutOfOrder: -1}
	screen := Row{Shape: "topic", Name: "pizzas → screen", OutOfOrder: -1}
	diary := Row{Shape: "stream", Name: "diary (replayed)", OutOfOrder: l.diaryOOO}
	if !diaryOrdered {
		diary.OutOfOrder = -1
	}
	for _, table := range l.tables {
		for i := range table {
			r := &table[i]
			r.judgeTicket(&tickets)
			follow(&dead, r.rejected, r.deadLetter)
			follow(&billing, r.done > 0, r.billing)
			follow(&screen, r.done > 0, r.screen)
			follow(&diary, r.done > 0, r.diary)
		}
	}
	if !ticketsOrdered {
		tickets.OutOfOrder = -1
	}
	return []Row{tickets, dead, billing, screen, diary}
}

func (r *record) judgeTicket(row *Row) {
	if !r.published {
		return
	}
	row.Published++
	if r.done > 0 {
		row.Handled++
		row.Duplicates += r.done - 1
	}
	if r.deadLetter > 0 {
		row.DeadLettered++
	}
	if r.overtaken {
		row.OutOfOrder++
	}
	if r.done == 0 && r.deadLetter == 0 {
		row.Lost++
	}
}

// follow judges what had to arrive because a ticket ended.
func follow(row *Row, due bool, arrived int) {
	if due {
		row.Published++
		if arrived == 0 {
			row.Lost++
		}
	}
	if arrived > 0 {
		row.Handled++
		row.Duplicates += arrived - 1
	}
}
