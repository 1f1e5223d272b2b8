// Package aws is the adapter of SQS and SNS: queues, FIFO queues, and topics with one queue
// for each group. It is tested on the emulator ministack and behind a proxy that makes the
// faults an emulator does not have. It has not been run against AWS itself.
//
// # What a destination is
//
//	core.Queue("tickets")             queue tickets
//	core.Queue("tickets").Keyed(n)    FIFO queue tickets.fifo; n counts as a yes
//	core.Topic("pizzas")              SNS topic pizzas
//	core.Topic("pizzas").Keyed(n)     FIFO topic pizzas.fifo
//	  a group of it, billing          queue pizzas-billing, or pizzas-billing.fifo
//	core.Stream(…)                    refused: nothing is kept that was acknowledged
//
// Config.Prefix goes before all of them. AWS has no dots in names: they are written as --.
// A group's queue is subscribed raw, and its policy lets the topic send; what else the
// policy says stays. Resource.Options are the attributes of AWS by their names, FilterPolicy
// and FilterPolicyScope of a subscription among them.
//
// # What settling does
//
//	Ack      DeleteMessageBatch
//	Nack     ChangeMessageVisibilityBatch, Delay rounded up to whole seconds
//	Return   the same with 0. SQS counts a hand-out all the same, so does Nack
//	Reject   as Ack: core holds a copy. A RedrivePolicy is the backstop for messages that end
//	         their process; give it a maxReceiveCount of 5 or more (Inspect says so)
//	Extend   ChangeMessageVisibilityBatch to one lease from now, 12 h in all
//
// Ten go into a request, eight requests run at once. Each entry has its own result.
//
// # Leases
//
// A delivery is ours for Config.Lease, or else the queue's own visibility timeout. Past that
// time by our own clock it is lost, without a request: a standard queue may answer that it
// deleted a message which it has given to somebody else. What a request brought and core has
// not asked for yet is renewed at half of its lease.
//
// A Deadline counts from when the answer came, and from when the request left only where
// the answer was later than Config.Wait and a second: a request that waited 20 s for its
// message would otherwise hand out leases that look used up. The service's own count may be
// ahead of ours by the time the answer was on its way.
//
// # Receiving
//
// Long polling with one request open, one more with every full answer while there is room,
// and one again at the first empty answer. A request that is open outlives a cancelled
// Receive and is waited for in Close, up to Config.Wait and the time that Close has: a
// request that is cut may be handed a message that then stays hidden for a lease. A consumer
// that shall stop within a few seconds needs a Wait below that.
//
// # Order by key
//
// The key is the message group; a message without a key is a group of its own. A request to
// send has one message of a group, and the next of that group leaves when it is confirmed:
// so what comes behind a message that failed is not stored, and a hot key goes at one message
// a round trip. The deduplication id is the message's own ID. An Extend renews all of a
// group; if one of a group is lost all of it is, and nothing of it is deleted. A Nack or
// Return gives back with a message what came behind it in its group, which is then LeaseLost.
// Close gives the rest back, each group from its last message.
//
// # Publishing
//
// Concurrent calls share requests of ten, up to the limit in bytes; one that is not full
// waits for Config.Linger. The adapter tries nothing twice: core does, and knows what may be.
//
// # The record
//
// The body is as it is where SQS takes its characters (those of XML 1.0), else base64 with
// varal-encoding b64; an empty one is "=". Attributes: varal-id, varal-time, varal-type,
// varal-key (where no message group says it), varal-headers (JSON, all headers in order),
// and as attributes of their own traceparent and Config.Attributes. A message without
// varal-id is somebody else's: its attributes are its headers, its id is the queue's.
// testdata/record.golden has the bytes.
//
// # What it costs
//
// Config.Requests counts the HTTP requests by operation; a client that adapters.Open opened
// shows them as Requests of its Describe, and so does middleware/control. Many messages cost
// 0.30 requests each (a send, a receive and a delete for ten) and an idle subscription 0.05
// a second, with the default Wait of 20 s and a lease of 30 s. More than one request a
// message, with many of them, means that batches do not fill.
//
// # Known gaps
//
//   - Nothing here was run against AWS.
//   - MaxBytes is three quarters of the wire's limit, since any body must fit as base64; a
//     text that would fit as it is, is refused above that too.
//   - A FIFO queue drops a message with an ID that was sent within five minutes, also when
//     that was acknowledged meanwhile: a redrive so soon after needs a new ID.
//   - A request for messages that is open when a consumer stops or pauses may be handed some.
//     They go back at once, counted.
//   - A Nack of a message that was held for more than an hour may come before a Delay that
//     would take it past the 12 h.
//   - An order by key that is not asked for (Keyed, and a subscription without it) still
//     gives the rest of a group back with a nack: those messages run twice.
//   - Two topics and groups can mean one queue: a-b with group c, and a with group b-c.
//   - A missing queue or denied access ends the subscription, as the contract of the
//     adapters says; nobody waits for it to come back.
//   - No unwrapping of SNS envelopes: a subscription made by somebody else must be raw.
//   - AWSTraceHeader is neither written nor read. No fair queues: a standard queue gets no
//     message group. No archive and replay of FIFO topics. No queue of another account.
//   - A Temporary group whose process was killed stays until it is deleted.
//   - A topic is found by its name through ListTopics, unless Config.AccountID is set.
//   - DelaySeconds 0, a short poll and a visibility timeout of 0 cannot be asked for where
//     the queue's default is another: the SDK leaves zeros out.
//   - At a trickle every message has a send, a receive and a delete of its own: nothing is
//     held back to fill a request except by Linger.
package aws
