// Package memory is the reference adapter: a broker inside the process. Examples,
// tests, the conformance suite and the benchmarks run on it, and what it does is
// what the contract of package driver means. It keeps nothing when the process ends.
//
// Destinations are made by Admin.Apply (Create); publishing to one that is missing
// is NotFound. Groups of topics and streams are made by Subscribe or Apply.
//
//	                 queue, topic          queue, topic with Partitions   stream
//	settle           each                  each                           up to (Ack, Reject)
//	order            none promised         per partition                  per partition
//	partitions       "" for everyone       "0" … "K-1", one owner each    "0" … "K-1", one owner each
//	ack, reject      gone for this group   same                           commits offset and State
//	nack             again after Delay     again at once; a Delay is      Unsupported
//	                 (≤ 7 days)            Unsupported
//	return           again at once, the    same                           nothing: it is not committed
//	                 count is given back
//	lease            Config.Lease, extend  same; when one ends its owner  none
//	                 up to 12 h in all     loses all its partitions
//	publish Delay    ≤ 7 days              same; takes its place in the   Unsupported
//	                                       partition when it is due
//	TTL              yes, until handed out same                           Unsupported
//	priority         0 … 9                 Unsupported                    Unsupported
//	delivery count   yes                   yes                            no
//	dead letter      none of its own       same                           same
//	replay, Seek     Unsupported           same                           yes, of a group without members
//	full             publish is Transient  same                           the oldest go (OutOfRange for
//	                                                                      a group that needed them)
//
// Nothing is emulated, and nothing is durable: Capabilities say Durable false
// although content outlives [Broker.Restart], because it does not outlive the process.
//
// # Groups
//
// A topic keeps what was published within its limits, and once it has a group the last
// 65,536 of it. A group that is made later
// starts at its Start: Default and Earliest mean everything the topic still keeps,
// so publishing before the first Subscribe loses nothing; Latest means from now on.
// From then on the group has a backlog of its own, also while nobody is attached.
// A group of a stream with Start Default begins at the earliest message; a stream
// read without a group begins at the latest. A group made with Temporary ends with its
// consumer. A queue has one group; the name is a label.
//
// # Partitions
//
// Destination.Partitions 0 means "whatever the destination has"; another number
// than the destination was made with is Conflict. A key goes to
// driver.PartitionOf(key, K), messages without a key go round. Partitions are spread
// evenly over the consumers of a group; one moves only after the old owner's Revoke
// returned. What comes back to a partition is handed out before what is later in it.
// Whoever lets a lease end there is taken for dead: its partitions go to the others at
// once (Revoke with an ended context), and it is a member again with its next Receive.
//
// # Faults
//
// Tests break a Broker with SetDown (every call fails at once), SetSilent (no call is
// answered), Restart and Evict (a client was killed or frozen).
//
// # Gaps
//
// A consumer that is abandoned without Close keeps its partitions: there is no
// session timeout, since a process that waits for itself has none. Broker.Evict does
// what the timeout would. Demand.Limit does not bound a stream, where the broker counts
// nothing as out. A batch shares one allocation, so one message left of it keeps the
// memory of all.
package memory
