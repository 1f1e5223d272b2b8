// Package redis is the Redis adapter, on Redis Streams and consumer groups. It needs
// Redis 6.2 and is tested on 7.0.
//
// # What a destination is
//
// All keys of a destination carry one hash tag, {name}, after Config.Namespace:
//
//	varal:{name}:s           stream, the log
//	varal:{name}:meta        hash: shape and layout version
//	varal:{name}:z           sorted set: published with a Delay
//	varal:{name}:r:<group>   stream: what the group failed and gets again
//	varal:{name}:z:<group>   sorted set: what the group gets again later
//
// A queue has one group, "queue". A topic and a stream have one for each subscription's
// Group, on the same stream: nothing is copied. A failed message is never appended to the
// log again, where every other group would see it once more.
//
// # What settling does
//
//	Ack      XACK; the log is trimmed now and then below what every group has done with.
//	         A stream keeps what it has
//	Nack     a copy to the group's retry stream (with Delay: to its sorted set), then XACK,
//	         in one script
//	Return   pending with nobody, idle for a lease, hand-out not counted: whoever looks
//	         next takes it, the consumer itself at once, others within a second
//	Reject   as Ack: core holds a copy
//	Extend   the idle time starts again, at most one Config.Lease from now
//
// # Leases
//
// A delivery is ours for Config.Lease: the time it may be idle in the group's pending list.
// Then whoever looks (each consumer once a second) takes it over with XAUTOCLAIM, and the
// server counts one more delivery. All consumers of a group must have the same lease.
// XACK and XCLAIM do not ask who owns a message, so everything that is not certainly within
// its lease goes through a script that compares the consumer's name and the number of the
// delivery. What was fetched and has not reached core is renewed, or given back, too.
//
// # Publishing
//
// XADD with NOMKSTREAM, confirmed; concurrent calls share pipelines. A server without
// memory (OOM), read-only or loading: Transient, nothing was stored. A connection that broke
// before the answer: Ambiguous. A batch is not atomic. Where a key comes twice in one, its
// pipeline is a transaction, so that nothing of a key passes an earlier message that failed.
//
// # Durability
//
// Capabilities.Durable is true where Open found appendonly on and maxmemory-policy
// noeviction. With appendfsync everysec a crash of the machine may take the last second
// with it. Replicas are not waited for.
//
// # What comes after a flush
//
// A stream or group that vanished is made anew by its consumer, at the start that the
// subscription asks for; event Gone, a new epoch, and earlier receipts are LeaseLost. After
// Apply(Delete) the consumers end with NotFound instead.
//
// # Known gaps
//
//   - No keyed destinations and so no order per key: Partitions > 0 is refused.
//   - No Cluster (the keys are ready for it) and no Sentinel: Open refuses both by name.
//   - No retention of streams, and nothing is trimmed of a topic without groups or beside a
//     group that nobody consumes any more: both grow.
//   - The name of a consumer whose process was killed stays in its group.
//   - A Temporary group whose process was killed stays until it is deleted.
//   - A delayed message may come up to 100 ms late, the first in a minute up to 1 s.
//   - A position that retention or a trim took away reads on from what is left, without
//     OutOfRange.
//   - go-redis writes a line to its own log for every connection that cannot be opened.
//   - With room for one message the retry stream is looked at ten times a second.
//   - Offset is an entry's id as a number; it is not dense.
package redis
