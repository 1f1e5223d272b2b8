// Package rabbitmq is the RabbitMQ adapter, over AMQP 0-9-1. Tested on 3.10.
//
// # What a destination is
//
//	queue             durable quorum queue (Config.Classic: classic), default exchange
//	keyed queue       K quorum queues name.0 … name.K-1, one owner each; K is fixed
//	topic             durable topic exchange, routing key = Message.Type (else the
//	                  topic's name); one quorum queue "topic:group" for each group
//	temporary group   exclusive classic queue; ends with the connection
//	stream            stream queue, with Partitions K of them
//
// Queues that serve the adapter start with "varal.": owner queues (one for each shard, or
// stream partition and group) and members queues.
//
// # What settling does
//
//	           queue, keyed queue, topic            stream with a group
//	Ack        basic.ack, the contiguous prefix     the position is stored: a confirmed
//	           of the channel as one                record in the group's owner queue
//	Nack       basic.reject with requeue            nothing; core retries in place
//	Return     basic.nack with requeue              nothing
//	Reject     basic.ack: core holds a copy         as Ack
//	Extend     nothing: held as long as the         nothing
//	           channel lives (consumer_timeout,
//	           30 min, ends it)
//
// Nack without Delay only; no Delay on publish. A queue made here has no delivery limit
// (the broker's default of 20 from 4.0 on drops the message); Resource option
// "delivery-limit" sets one.
//
// # Order, ownership, reconnects
//
// A plain queue promises no order. A keyed queue and a stream keep it per partition. A
// member owns a partition as long as it holds the owner record unacked; records carry the
// Fence. Members count each other and hand over what is above their share. An owner that
// is frozen keeps its partitions until the heartbeat ends its connection (1.5 intervals),
// and the broker gives the next owner nothing before that.
//
// A lost connection or channel ends every receipt of it: Revoke with an ended ctx, then
// Assigned with a new Epoch. A receipt of an earlier epoch is LeaseLost and causes no
// traffic, for delivery tags start again with each channel.
//
// A claim, a renewal and a commit are publishes. While the broker takes none (memory or
// disk alarm) owners keep what they own, take-over waits, and a stream's commit fails
// Transient.
//
// # Publishing
//
// Always confirmed, always mandatory, pipelined over one channel for each exchange that
// all callers share. basic.return = NotFound; basic.nack = Transient, on a topic Ambiguous
// (one group's queue refused it, others may have it); connection or channel gone before
// the confirm = Ambiguous. While the broker has blocked the connection a publish waits
// for ctx without calling the client.
//
// # Messages
//
// ID, Type, Time (seconds) and TTL are AMQP properties; Key, the exact Time and what is
// too long for a property are varal- headers. Headers are table entries of type string.
// The field varal-headers keeps their order where it is not alphabetical, repeated keys,
// and the keys x-…, CC and BCC, which RabbitMQ would interpret or strip. The broker's own
// x- headers (x-death …) can be read and are never published again. What other programs
// send in other types becomes text (times RFC 3339, tables and arrays JSON). A foreign
// message without an id gets a new one with each hand-out; on a stream it is name-offset.
//
// DeliveryCount on quorum queues counts hand-outs by the queue: a changed limit or a
// rebalance can add one for messages that were on their way.
//
// # Positions of a stream
//
// AMQP cannot be asked what a stream holds: the adapter reads its last chunk and its
// oldest message. Start Latest is the end when the first owner comes, and is kept from
// then on; the end as of now for Seek. A position that is gone, or beyond the end for a
// second (the stream was made anew), is OutOfRange when its partition opens. Of a stream
// that retention has emptied nothing can be read: OutOfRange then comes with the next
// message. Offsets are not dense: the broker takes one for itself at the start of a
// segment. A stream that was made anew and has outgrown the position looks like the old one.
//
// # Known gaps
//
// No delay ladder, no native dead letter (Capabilities.DeadLetter is false), no super
// streams. Stats tell Ready only. Subscribe's check of the right to read, and every look
// for a queue that is missing, leave a line in the broker's log.
package rabbitmq
