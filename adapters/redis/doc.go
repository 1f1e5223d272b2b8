// Package redis is the Redis adapter, on Redis Streams and consumer groups. It needs
// Redis 6.2 and is tested on 7.0: on a single server, on a primary that Sentinels name, and
// on a Cluster.
//
// # What a destination is
//
// All keys of a destination carry one hash tag, {name}, after Config.Namespace:
//
//	varal:{name}:s           stream, the log
//	varal:{name}:meta        hash: shape, layout version, retention
//	varal:{name}:z           sorted set: published with a Delay
//	varal:{name}:r:<group>   stream: what the group failed and gets again
//	varal:{name}:z:<group>   sorted set: what the group gets again later
//
// A keyed destination (Partitions > 0, at most 1000) is one stream for each partition, its
// shards; each has a hash tag of its own, {name/shard}:
//
//	varal:{name}:meta                   with the number of partitions, which is fixed
//	varal:{name}:members:<group>        sorted set: who lives, by the end of the heartbeat
//	varal:{name/0}:shard                stream, the log of shard 0
//	varal:{name/0}:lease:<group>        string that expires: who owns it, fence, round
//	varal:{name/0}:fence:<group>        string: the last fence
//
// A key's shard is driver.PartitionOf(key, Partitions): murmur2, as on Kafka, so with equal
// Partitions a key has the same number there. Messages without a key go round all shards.
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
// # Order by key
//
// A keyed destination keeps the order of each shard, and so of each key. In every group a
// shard has one owner at a time, which holds its lease for Config.Lease and renews it at
// least once a second, also while a Revoke is under way. The fence (Assignment.Fence) grows
// with every change of owner; it is not less than the server's clock in milliseconds, so
// that it grows over a flush too. Whatever an owner reads, settles, renews or gives back
// goes through a script that looks at the lease first.
//
// Members share the shards evenly by a heartbeat (at least once a second, good for a lease):
// with 3 members over 4 shards they have 2, 1 and 1. Who has more than its share gives the
// youngest back: it stops reading, Revoke returns, then the lease is freed. Nothing is taken
// from a member that lives. The shards of one that was killed or frozen are free when their
// leases have run out; by its own clock, counted from before the request, it has lost them
// before that, and what of it arrives late takes no effect.
//
// The next owner first gets what was out and not settled, in order, before anything new.
// After an end in good order that was not tried and does not count; after any other it does.
//
//	Ack, Reject  XACK, by a script; the log of a queue or topic is trimmed as above
//	Nack         again at once, in its place before everything new, counted. No Delay: what
//	             is put aside would be passed by later messages of its key. Core holds a
//	             failed message in its lane and runs it again there
//	Return       as Nack, not counted
//	Extend       nothing: a delivery is ours as long as its shard
//
// A consumer that waits blocks in one XREAD over all its shards, which takes nothing; a
// script then reads those that have something. XREADGROUP would save the second step and
// cannot look at the lease: blocked, it may take a message for an owner whose lease has
// ended meanwhile, and the next owner would hand out the one behind it. Where the answer to
// a read is lost, what it took goes back before the next read, and should that read reach
// the server only later it takes nothing.
//
// Neither Delay on publishing, nor a lease of a single message, nor messages for one Group of
// a keyed topic or stream: they are refused by name.
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
// with it.
//
// # Sentinels and replicas
//
// With Config.Sentinel every connection is opened to what the Sentinels call the primary at
// that moment, and only if it says so itself; a switch closes those to the old one. What
// the adapter believes of a server is asked of the new one again, as after any broken
// connection: a group or stream that it has not heard of is made anew (see below), a script
// is sent again, a shard's lease is looked at by every command.
//
// Replication is asynchronous. A failover loses what was confirmed just before it and had
// reached no replica, and with it the memory of what was handed out and settled: that comes
// again. With Config.Replicas a message is confirmed when so many replicas have it (WAIT, in
// the same pipeline; a batch in which a key comes twice costs one round trip more). If they
// do not say so within half of Config.Timeout the outcome is Ambiguous: the primary has the
// message. Then a failover to one of those replicas loses nothing that was confirmed. Acks,
// and what Apply makes, do not wait. Of two servers that both take themselves for the
// primary only the one with replicas confirms; without Config.Replicas set
// min-replicas-to-write.
//
// Leases and fences are kept by the server's clock. One that takes over and is behind keeps
// a lease for longer, and may hand out a lower fence if it has not heard of the last one:
// keep the clocks together.
//
// Each consumer has a connection of its own to the primary, and one to a Sentinel that
// tells of switches.
//
// # Cluster
//
// With Config.Cluster each command goes to the master of its slot, and a batch to several
// of them at once. All keys of a destination are in one slot, those of a keyed one in one
// for each shard and one for its members; so a plain destination has the throughput of one
// node. What a node refuses because the slot has moved is sent once more to the right one.
// While a slot is under way between two nodes, and while a master is missing, what concerns
// it is Transient. go-redis repeats nothing by itself, for a repeated XADD is a second
// message.
//
// Within one slot only can be waited and be atomic:
//
//   - A keyed consumer waits on a connection for each of its shards. With more than 8 it
//     looks at all of them ten times a second, in one pipeline for each node, and waits on 8
//     in turn: a message may come 100 ms late on an idle destination.
//   - A batch in which a key comes twice is one transaction for each shard.
//   - Stats of a keyed destination are not of one moment, and Apply(Delete) is not one step;
//     done again it finishes.
//
// Config.Replicas counts those of the node that has the message, and holds where a replica
// takes over. There is no database but 0.
//
// # TLS
//
// With Config.TLS (rediss://) every connection is encrypted, and by the same settings: to the
// Sentinels, to what they name, and to the nodes of a Cluster, found ones too. There is no
// mixture. So Sentinels must listen with TLS (tls-port, port 0) and reach the servers with it
// (tls-replication yes), for then they name the port that speaks it; nodes tell it by
// themselves. CA must hold the roots of all. A certificate that is not accepted makes Open
// fail with Denied; TLS on one side only is Transient, with a text that names the other
// scheme: a server that is silent, or hangs up, need not be one without TLS, or with it.
//
// # Broadcast
//
// With Config.Broadcast the topics of a client are channels of PUBLISH and SUBSCRIBE, and it
// has nothing else: no queue, no stream, no group, nothing to create. Every subscription
// (Temporary; the name of its Group counts for nothing) gets every message that is published
// while it listens, at most once; core wants middleware.AckFirst for it. Capabilities say so: Settle is None,
// nothing is Durable, replayed, delayed or in order. A publish is confirmed when the server
// has passed it on, to nobody perhaps. It is a setting of the client and not of a
// destination, so that nobody gets it by a slip in a name: a durable topic of the same name
// is another one.
//
// Messages are lost while a connection is lost (also where the server cuts off a subscriber
// that is slow, client-output-buffer-limit pubsub), and where a subscriber has 1024 messages
// or 16 MiB waiting. Either is told by an event Gone; how many were lost with a connection
// nobody knows.
//
// # Retention
//
// A stream keeps everything, and a topic what one of its groups has not done with, even if
// nobody consumes that group. The option retention of the Resource (a duration, "72h") trims
// what is older, read or not, with the publishes that come later: by the server's clock, in
// nodes of 100 entries or 4 KiB. What a group had out of it is reported as Gone when it comes
// to it; what nobody had read is passed over in silence. A flush takes the option along.
//
// # What comes after a flush
//
// A stream or group that vanished is made anew by its consumer, at the start that the
// subscription asks for; event Gone, a new epoch, and earlier receipts are LeaseLost. Of a
// keyed destination that is each shard for itself, seen within a second. After
// Apply(Delete) the consumers end with NotFound instead.
//
// # Known gaps
//
//   - A process that was stopped (SIGSTOP) past its lease may begin the handler of one more
//     message in the moment between its first step and the look at the clock. Nothing it
//     settles is accepted, and Fence tells a store that it is late.
//   - While the server has no memory left the owners go on, but no shard changes hands: a
//     member that starts then waits.
//   - The number of partitions cannot be changed.
//   - Certificates are checked for the address that is dialled, which Sentinels and nodes
//     announce: mostly an IP. TLS.ServerName is one name for all of them.
//   - While a slot is under way a consumer of what is in it waits: a script needs keys that
//     may be on either side, and redirections for one command (ASK) are not followed.
//   - Without the option retention nothing is trimmed of a stream, of a topic without groups,
//     or of one beside a group that nobody consumes any more: they grow. Delete such a group.
//   - A Temporary group whose process was killed stays until it is deleted.
//   - A message whose Return had no answer may come only when its lease has ended, counted
//     (without Partitions; a keyed one comes again before anything behind it).
//   - A delayed message may come up to 1 s late where the word that it was put aside is lost (a
//     connection breaks), or where the login may not SUBSCRIBE to the channel varal:{name}:z and
//     it is the first in a minute; otherwise it comes within milliseconds.
//   - A position that retention or a trim took away reads on from what is left, without
//     OutOfRange.
//   - go-redis writes a line to its own log for every connection that cannot be opened, and
//     for what it hears from Sentinels.
//   - With room for one message the retry stream is looked at ten times a second.
//   - Offset is an entry's id as a number; it is not dense.
package redis
