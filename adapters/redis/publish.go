package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// Publish implements driver.Driver. Concurrent calls share pipelines; a batch is one
// pipeline, or several of them one after the other where it is large. A batch is not
// atomic.
func (b *broker) Publish(ctx context.Context, to driver.Destination, batch []*driver.Message) error {
	op := "publish " + to.String()
	if b.isClosed() {
		return errClosed(op)
	}
	if err := validate(op, to, to.Group); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return driver.Errorf(op, driver.Transient, "nothing was sent: %w", context.Cause(ctx))
	}
	if err := b.exists(ctx, op, to); err != nil {
		if driver.ClassOf(err) == driver.Ambiguous { // only the question was asked
			return &driver.Error{Op: op, Class: driver.Transient, Err: err}
		}
		return err
	}
	p := b.pack(op, to, batch)
	if len(p.items) == 0 {
		return driver.Batch(p.errs)
	}
	if err := b.commit.send(ctx, p); err != nil {
		return err
	}
	for _, err := range p.errs {
		if driver.ClassOf(err) == driver.NotFound {
			b.forget(to)
			break
		}
	}
	return driver.Batch(p.errs)
}

// item is one message on its way.
type item struct {
	at    int // index in the batch
	key   string
	size  int
	delay int64  // ms; 0 = at once
	sched string // key, with a delay
	log   string // key
	token string // makes a scheduled message unlike every other
	keep  string // with this entry those before that id are trimmed; "" = none
	args  []any
}

// parcel is one call of Publish.
type parcel struct {
	op    string
	to    driver.Destination
	items []item
	errs  []error // by index of the batch; the committer's until done is closed
	size  int
	tied  bool // a key comes twice: what follows a failure of its key must not be stored
	clock *serverClock
	taken bool // guarded by the committer's lock
	done  chan struct{}
}

// pack turns a batch into items; what cannot be sent fails here.
func (b *broker) pack(op string, to driver.Destination, batch []*driver.Message) *parcel {
	p := &parcel{op: op, to: to, clock: &b.clock, items: make([]item, 0, len(batch)), errs: make([]error, len(batch)), done: make(chan struct{})}
	k := b.cfg.keys(to)
	log, sched := k.log, k.sched
	shards := b.cfg.shards(to)
	if to.Group != "" && to.Shape != driver.Queue {
		log, sched = k.retry(to.Group), k.later(to.Group)
	}
	oldest, trimmed := b.oldest(to), ""
	seen := make(map[string]struct{})
	for i, m := range batch {
		if err := b.refuse(op, to, m); err != nil {
			p.errs[i] = err
			continue
		}
		it := item{at: i, key: m.Key, size: m.Size(), log: log, args: entryOf(m)}
		if len(shards) > 0 {
			it.log = shards[b.partition(m.Key, len(shards))].log
		}
		if it.log != trimmed { // not with each: to look costs little, but not nothing
			it.keep, trimmed = oldest, it.log
		}
		if m.Delay > 0 {
			it.delay, it.sched = max(1, int64((m.Delay+time.Millisecond-1)/time.Millisecond)), sched
			it.token = fmt.Sprintf("%x", rand.Uint64())
		}
		if m.Key != "" && len(batch) > 1 {
			_, twice := seen[m.Key]
			p.tied = p.tied || twice
			seen[m.Key] = struct{}{}
		}
		p.size += it.size
		p.items = append(p.items, it)
	}
	return p
}

// partition chooses the shard of a key; messages without one are dealt out by turns.
func (b *broker) partition(key string, n int) int {
	if key == "" {
		return int(b.dealt.Add(1) % uint64(n))
	}
	return driver.PartitionOf(key, n)
}

// refuse says what of m the destination cannot do.
func (b *broker) refuse(op string, to driver.Destination, m *driver.Message) error {
	stream := to.Shape == driver.Stream
	size := m.Size()
	switch {
	case size > b.cfg.MaxBytes:
		return driver.Errorf(op, driver.TooLarge, "message %s has %d bytes of headers, key and body, at most %d (Config.MaxBytes)", m.ID, size, b.cfg.MaxBytes)
	case m.Delay < 0 || m.TTL < 0:
		return driver.Errorf(op, driver.Permanent, "message %s: Delay and TTL cannot be negative", m.ID)
	case m.Priority != 0:
		return driver.Errorf(op, driver.Unsupported, "message %s: priority: Redis Streams have no levels", m.ID)
	case m.Delay > 0 && stream:
		return driver.Errorf(op, driver.Unsupported, "message %s: schedule: a stream takes no Delay", m.ID)
	case m.Delay > 0 && to.Partitions > 0:
		return driver.Errorf(op, driver.Unsupported, "message %s: schedule: a keyed %s takes no Delay, which would let later messages of the key pass", m.ID, to.Shape)
	case to.Group != "" && to.Partitions > 0 && to.Shape != driver.Queue:
		return driver.Errorf(op, driver.Unsupported, "message %s: a keyed %s has no messages for one group alone", m.ID, to.Shape)
	case m.Delay > maxDelay:
		return driver.Errorf(op, driver.Unsupported, "message %s: schedule: Delay is %v, at most %v", m.ID, m.Delay, maxDelay)
	case m.TTL > 0 && stream:
		return driver.Errorf(op, driver.Unsupported, "message %s: ttl: a stream keeps what it has", m.ID)
	}
	return nil
}

// exists looks once for each destination whether it is there and is what it is taken for.
func (b *broker) exists(ctx context.Context, op string, to driver.Destination) error {
	to.Group = ""
	b.mu.Lock()
	_, known := b.known[to]
	b.mu.Unlock()
	if known {
		return nil
	}
	var vals []any
	err := b.bounded(ctx, func(ctx context.Context) (err error) {
		vals, err = b.meta(ctx, to)
		return err
	})
	if err != nil {
		return classify(op, err)
	}
	if err := agree(op, to, vals); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.known[to] = readRetention(vals)
	return nil
}

func (b *broker) forget(to driver.Destination) {
	to.Group = ""
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.known, to)
}

// layout is the version of what is stored under the keys.
const layout = "1"

// meta reads what is stored about a destination: see agree and readRetention.
func (b *broker) meta(ctx context.Context, of driver.Destination) ([]any, error) {
	return b.ctl.HMGet(ctx, b.cfg.keys(of).meta, "shape", "version", "partitions", "retention").Result()
}

// agree compares what is stored about a destination, [shape, version, partitions …], with
// what is asked for.
func agree(op string, to driver.Destination, meta []any) error {
	shape, version, partitions := text(meta[0]), text(meta[1]), text(meta[2])
	fill(&partitions, "0")
	switch {
	case shape == "":
		return driver.Errorf(op, driver.NotFound, "there is no %s %q: create it (Provision create, or varal topology apply)", to.Shape, to.Name)
	case shape != to.Shape.String():
		return driver.Errorf(op, driver.Conflict, "%q is a %s and not a %s", to.Name, shape, to.Shape)
	case version != layout:
		return driver.Errorf(op, driver.Conflict, "%q was stored by another version of this adapter: its layout is %q, this one knows %s", to.Name, version, layout)
	case partitions == strconv.Itoa(to.Partitions):
		return nil
	case partitions == "0":
		return driver.Errorf(op, driver.Conflict, "%s %q is not keyed: use it without Keyed (Partitions 0), or make a keyed one of another name", to.Shape, to.Name)
	}
	return driver.Errorf(op, driver.Conflict, "%s %q has %s partitions and Partitions is %d: say Keyed(%s), or make one of another name; the number is fixed, for another one would send keys to other partitions",
		to.Shape, to.Name, partitions, to.Partitions, partitions)
}
