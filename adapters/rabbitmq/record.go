package rabbitmq

import (
	"encoding/json"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/varal-go/varal/core/driver"
)

// record is the body of an owner queue's message. Whoever holds the newest one owns the
// partition; it carries all that must outlive an owner.
type record struct {
	Fence uint64 `json:"fence"`           // + 1 with each owner
	Seq   uint64 `json:"seq"`             // + 1 with each record of one owner
	Nonce string `json:"nonce,omitempty"` // of the owner's claim; "" = a seed
	// Of the record that set the position and state below: a claim copies them, perhaps
	// before it has seen the last commit, and must not outrank it.
	PosFence uint64 `json:"pf,omitempty"`
	PosSeq   uint64 `json:"ps,omitempty"`

	Kind   string     `json:"at,omitempty"`     // of the position: at, earliest, latest, since; "" = none yet
	Offset int64      `json:"offset,omitempty"` // next to read
	Since  *time.Time `json:"since,omitempty"`
	State  []byte     `json:"state,omitempty"`
}

// later compares who set the position.
func (r record) later(than record) bool {
	if r.PosFence != than.PosFence {
		return r.PosFence > than.PosFence
	}
	return r.PosSeq > than.PosSeq
}

// sight is what the records seen so far say together: the highest fence and the latest
// position, and the one or two records that say so. These stay unacked until a successor
// holds both; whatever they outrank is of no use to anybody.
type sight struct {
	best           record
	fenced, placed uint64 // tags; 0 = none
}

// see adds a record and returns the tags that are of no use any more. Without that a
// queue with more records than the prefetch (an owner commits while its partition is
// revoked and nobody reads them back) would never show the one that is waited for.
func (s *sight) see(rec record, tag uint64) (spent []uint64) {
	was := []uint64{s.fenced, s.placed, tag}
	if s.fenced == 0 || rec.Fence > s.best.Fence {
		s.best.Fence, s.fenced = rec.Fence, tag
	}
	if rec.later(s.best) {
		s.best.takePosition(rec)
		s.placed = tag
	}
	for i, t := range was {
		if t != 0 && t != s.fenced && t != s.placed && (i == 0 || t != was[i-1]) {
			spent = append(spent, t)
		}
	}
	return spent
}

// takePosition copies position and state with their origin.
func (r *record) takePosition(from record) {
	r.PosFence, r.PosSeq = from.PosFence, from.PosSeq
	r.Kind, r.Offset, r.Since, r.State = from.Kind, from.Offset, from.Since, from.State
}

// moved stamps a new position as set by this very record.
func (r *record) moved() { r.PosFence, r.PosSeq = r.Fence, r.Seq }

func (r record) publishing() amqp.Publishing {
	body, _ := json.Marshal(r) // plain data: cannot fail
	return amqp.Publishing{DeliveryMode: amqp.Persistent, ContentType: "application/json", Type: "varal.owner", MessageId: nameless("", 0), Body: body}
}

var errRecord = errors.New("not an owner record")

// parseRecord is total: the queue may hold what somebody else put there.
func parseRecord(body []byte) (record, error) {
	var r record
	if err := json.Unmarshal(body, &r); err != nil || r.Offset < 0 || r.Fence > 1<<62 || r.Seq > 1<<62 {
		return record{}, errRecord
	}
	return r, nil
}

func (r record) position(label string) driver.Position {
	p := driver.Position{Partition: label}
	switch r.Kind {
	case "at":
		p.Kind, p.Offset = driver.At, r.Offset
	case "earliest":
		p.Kind = driver.Earliest
	case "latest":
		p.Kind = driver.Latest
	case "since":
		if r.Since != nil {
			p.Kind, p.Time = driver.Since, *r.Since
		}
	}
	return p
}

func (r *record) setPosition(p driver.Position) {
	r.Kind, r.Offset, r.Since = p.Kind.String(), 0, nil
	switch p.Kind {
	case driver.At:
		r.Offset = p.Offset
	case driver.Since:
		r.Since = &p.Time
	case driver.Default:
		r.Kind = ""
	}
}

// streamArgs is where a stream consumer starts; offsets below next are not wanted. Latest
// has become an offset before. Unseen: an offset that may be beyond the end, where the
// broker would give nothing until it is written; the first message of all tells.
func streamArgs(p driver.Position, unseen bool) (args amqp.Table, next int64) {
	switch {
	case p.Kind == driver.At && !unseen:
		return amqp.Table{"x-stream-offset": p.Offset}, p.Offset
	case p.Kind == driver.Since:
		return amqp.Table{"x-stream-offset": p.Time}, 0
	}
	return amqp.Table{"x-stream-offset": "first"}, 0
}
