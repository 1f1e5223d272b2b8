// Package kafka is the adapter for Apache Kafka (and servers that speak its
// protocol), on franz-go.
//
// # What a destination is
//
//	queue    one Kafka topic and one consumer group, named as the queue
//	topic    one Kafka topic and one consumer group per Subscription.Group
//	stream   one Kafka topic; a consumer group where Subscription.Group is set,
//	         else all partitions from Subscription.Start, and nothing is committed
//
// Groups use the classic protocol, except with Config.Assignor server. Cooperative-sticky,
// the default, takes from a consumer only what goes to another; sticky, range and roundrobin
// take everything from all at every change, so that nothing is handled until the slowest has
// let go. A
// Config.InstanceID makes a consumer a static member: its partitions wait for it for a
// session after Close. When it comes back it costs one rebalance, since Delivery.Fence has
// to grow, and gets a share like any other.
//
// Config.Assignor server is the protocol of KIP-848: the broker assigns, by its uniform
// assignor, and nobody waits for anybody but the one who has the partition. It takes Kafka
// 4.0 or later with group.version=1; before 4.3 (KIP-1251) the last commits of a consumer that
// leaves while the group changes may be refused, and what they were for is done again. Session
// timeout and heartbeat interval are the broker's: consumer.session.timeout.ms and
// consumer.heartbeat.interval.ms of the group, or group.consumer.… of the brokers, 45 s and
// 5 s unless changed. They are read by Subscribe (DescribeConfigs on the group, and on the
// cluster where the group does not tell): lower them with the consumers stopped. A consumer
// that is killed is missed for that long.
//
// Group ids are used as they are: two topics read under one group name share that
// Kafka group and rebalance together. The partition count of the Kafka topic decides
// where a key goes (murmur2, the Java client's law); adding partitions moves keys.
//
// # What happens to a delivery
//
//	Ack      commits everything of the partition up to and including it, with the
//	         State as commit metadata (base32768: 7,680 bytes in the broker's default
//	         of 4,096 characters)
//	Nack     Unsupported: a log cannot hand one record out again; core keeps it in its lane
//	Return   nothing to do: what is not committed goes to the next owner
//	Reject   as Ack: the group does not see it again
//	Extend   nothing to extend
//
//	order        per partition, hence per key
//	delay, TTL, priority, dedup window, native dead letter: none. TTL and Priority
//	             travel as headers and come back as they were; Delay is refused.
//	delivery count   none: Kafka groups do not count
//	lease        none per message; ownership ends with the rebalance timeout
//
// # Where reading starts
//
// A group that has committed goes on from there. A new group starts at
// Subscription.Start; Default is earliest for queues, topics and groups of a stream,
// latest for a stream without group. The place found for Latest, At and Since is
// committed at once, so that a consumer that dies before its first commit does not
// find a later "latest". A partition that is added after Subscribe is seen within five
// minutes; a stream without group reads it from its beginning. An offset that is no longer in the log is the event
// OutOfRange and follows Subscription.Reset; nothing is skipped in silence.
//
// # What a message becomes
//
// Message.Key is the record key ("" = null), Body the value (nil = tombstone, kept
// apart from empty), Time the record's timestamp, to the millisecond. ID, Type, TTL
// and Priority travel as headers varal-id, varal-type, varal-ttl (milliseconds) and
// varal-priority. A record without varal-id gets the id topic/partition/offset,
// which is the same each time it is read. A null header value reads as "".
//
// # Known gaps
//
// Share groups (KIP-932) are not offered yet: Config.ShareGroups is refused. So are static
// members where the broker assigns: whoever takes an instance id again gets the member epoch
// of the one before it, and Delivery.Fence would not tell the two apart.
// Servers that count commit metadata in bytes take a third of the StateBytes
// declared here: such an entry of Settle ends TooLarge.
package kafka
