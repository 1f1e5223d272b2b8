// Package history is the record of a run: what every process of a test said it
// did, on one clock. The lab, the chaos tests, the session oracle and the soak
// write it; package check judges it.
//
// A process writes one JSON line per [Event] with a [Writer]: an intent (pub,
// start, call) before the act, a result (pubd, end, settled, ret) after it, so
// that a SIGKILL between the two leaves "may have happened" and never a false
// "did not". [Read] reads the lines back, [Merge] puts the logs of several
// processes on one clock, and [Before] orders two events only where that clock
// is good enough to.
//
// The package imports the standard library only and starts no goroutine.
package history

import "math"

// Op says what an Event reports. Readers keep an Op they do not know.
type Op string

// The operations. "Needs" names the fields beside Proc, Gen, Seq, T and Op that a
// check relies on.
const (
	OpHello Op = "hello" // a process is up; from here on its log must end in bye or in a recorded kill
	OpBye   Op = "bye"   // the last line of a process that ended by itself

	OpPub  Op = "pub"  // about to publish. Needs ID, Dest; ordered: Key, N
	OpPubd Op = "pubd" // publish ended. Needs ID, Outcome (OK, Rejected, Unknown)

	OpRecv    Op = "recv"    // a message reached the client. Needs ID, Group; log: Partition, Position. Outcome Corrupt: not as it was sent
	OpStart   Op = "start"   // a handler starts. Needs ID, Group, Attempt; ordered: Dest, Key, N
	OpEnd     Op = "end"     // it returned. Needs ID, Group, Outcome (OK, Fail, Cancelled); Class Permanent: no further attempt
	OpSettled Op = "settled" // the broker answered. Needs ID, Group, Outcome (Ack, Nack, Return, Reject, Extend); Class "" = accepted
	OpSkip    Op = "skip"    // passed over with a record, on purpose. Needs ID, Group
	OpDead    Op = "dead"    // a copy was read from a dead-letter destination. Needs ID; Group it failed in; Dest

	OpAssign Op = "assign" // a partition is ours. Needs Group, Partition; Fence
	OpRevoke Op = "revoke" // given up in good order, the last settle is done. Needs Group, Partition
	OpLost   Op = "lost"   // taken away: no settle can follow. Needs Group, Partition, or ID for one lease
	OpCommit Op = "commit" // the broker holds a new position. Needs Group, Partition, Position: next to read, decimal

	OpCall Op = "call" // a public call begins. Needs ID (of the call), N: allowed time in ns, 0 = none
	OpRet  Op = "ret"  // it returned. Needs ID

	OpFault    Op = "fault"    // the lab did something. Outcome: a Fault…; Dest: the victim's Proc ("" = everyone), N: its Gen
	OpHeal     Op = "heal"     // a lasting fault ended. Outcome and Dest as in its fault
	OpDrained  Op = "drained"  // nothing more can come. Outcome OK, or Unknown when the wait ran out first
	OpWriteoff Op = "writeoff" // ID was destroyed by the lab on purpose (purge); it is not owed
	OpStat     Op = "stat"     // a count. Outcome: what (StatReady, StatInFlight, a resource); N; Class Resource: judged by V7
	OpTick     Op = "tick"     // every 10 ms; a gap shows a stalled process
	OpPong     Op = "pong"     // answer to a ping. Needs ID
	OpRefused  Op = "refused"  // a command this worker does not know. Needs ID
	OpLog      Op = "log"      // free text in Class
)

// Outcomes, by the Op they belong to.
const (
	OK        = "ok"        // pubd, end, drained
	Rejected  = "rejected"  // pubd: provably not stored
	Unknown   = "unknown"   // pubd: may be stored. drained: the deadline came first
	Fail      = "fail"      // end
	Cancelled = "cancelled" // end: neither success nor failure
	Corrupt   = "corrupt"   // recv: body or header differ from what was sent

	Ack    = "ack" // settled
	Nack   = "nack"
	Return = "return"
	Reject = "reject"
	Extend = "extend"

	StatReady    = "ready"    // stat: messages at the broker nobody has
	StatInFlight = "inflight" // stat: messages the broker counts as out
)

// Classes that checks read; others are carried and not judged.
const (
	Permanent = "permanent"  // end: will fail again, dead-letter at once
	LeaseLost = "lease lost" // settled: the delivery was no longer ours
	Resource  = "resource"   // stat: goroutines, timers, map entries …
)

// Faults, the Outcome of OpFault. Any other name counts as a network fault of the
// victim.
const (
	FaultKill      = "kill"      // SIGKILL
	FaultMissed    = "missed"    // a kill that found nobody: no fault happened
	FaultTerm      = "term"      // SIGTERM: a graceful leave
	FaultFreeze    = "freeze"    // SIGSTOP; ends with OpHeal
	FaultCut       = "cut"       // RST
	FaultBlackHole = "blackhole" // ends with OpHeal
	FaultBroker    = "broker"    // restart, fail-over: what was settled may come back
	FaultReplay    = "replay"    // a seek or a redrive: everything may come again
)

// Event is one line. Zero fields are left out of the line. N is the number within
// (Dest, Key) of a message, and otherwise what its Op says; N counts from 1 and
// states the order in which the messages of a key were meant to be published.
type Event struct {
	Seq       int    `json:"seq,omitempty"` // within (Proc, Gen), from 1 without a gap; 0 = not numbered
	Proc      string `json:"proc,omitempty"`
	Gen       int    `json:"gen,omitempty"` // incarnation of Proc, from 1
	T         int64  `json:"t"`             // ns; the process's own clock in a log, the lab's after Merge
	Eps       int64  `json:"eps,omitempty"` // T is right within ± Eps
	Op        Op     `json:"op"`
	ID        string `json:"id,omitempty"` // publisher.counter
	Key       string `json:"key,omitempty"`
	N         int    `json:"n,omitempty"`
	Attempt   int    `json:"attempt,omitempty"`
	Dest      string `json:"dest,omitempty"`
	Group     string `json:"group,omitempty"`
	Outcome   string `json:"outcome,omitempty"`
	Class     string `json:"class,omitempty"`
	Partition string `json:"partition,omitempty"`
	Position  string `json:"position,omitempty"`
	Fence     uint64 `json:"fence,omitempty"`
}

// Before reports whether a certainly happened before b: by the order in which one
// process wrote them, or because their clock intervals do not touch. Anything else
// is concurrent and accuses nobody.
func Before(a, b *Event) bool {
	if a.Proc == b.Proc && a.Proc != "" {
		switch {
		case a.Gen != b.Gen:
			return a.Gen < b.Gen
		case a.Seq != 0 && b.Seq != 0:
			return a.Seq < b.Seq
		default:
			return a.T < b.T
		}
	}
	return add(a.T, max(a.Eps, 0)) < sub(b.T, max(b.Eps, 0))
}

// add and sub saturate: a history read from a file may hold any number, and a
// wrapped sum would order events that nobody ordered.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func sub(a, b int64) int64 {
	if a < math.MinInt64+b {
		return math.MinInt64
	}
	return a - b
}
