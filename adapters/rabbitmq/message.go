package rabbitmq

import (
	"crypto/rand"
	"fmt"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/varal-go/varal/core/driver"
)

// frameRoom is what a header frame may hold: all properties and headers of a message
// travel in one frame of at most 128 KiB (RabbitMQ's frame_max), and a larger one ends
// the connection.
const frameRoom = 120 << 10

// encode makes the AMQP message. Every refusal is here, before anything is sent.
func (b *broker) encode(op string, to driver.Destination, m *driver.Message) (amqp.Publishing, error) {
	p := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: m.Body, Headers: make(amqp.Table, len(m.Headers)+2)}
	if n := m.Size(); n > b.maxBytes {
		return p, driver.Errorf(op, driver.TooLarge, "message %.80q has %d bytes, the limit is %d (Config.MaxBytes and the broker's max_message_size)", m.ID, n, b.maxBytes)
	}
	if err := b.refuse(op, to, m); err != nil {
		return p, err
	}
	size, err := encodeHeaders(p.Headers, m.Headers)
	if err != nil {
		return p, driver.Errorf(op, driver.Permanent, "message %.80q: %w", m.ID, err)
	}
	put := func(key, v string) { p.Headers[key] = v; size += len(key) + len(v) + 6 }
	if p.MessageId = m.ID; len(m.ID) > shortMax {
		p.MessageId = ""
		put(driver.HeaderID, m.ID)
	}
	if p.Type = m.Type; len(m.Type) > shortMax {
		p.Type = ""
		put(driver.HeaderType, m.Type)
	}
	if m.Key != "" {
		put(driver.HeaderKey, m.Key)
	}
	if !m.Time.IsZero() {
		p.Timestamp = m.Time
		if m.Time.Nanosecond() != 0 {
			put(driver.HeaderTime, m.Time.UTC().Format(time.RFC3339Nano))
		}
	}
	if m.TTL > 0 {
		ms := max(1, (m.TTL+time.Millisecond-1)/time.Millisecond)
		p.Expiration = strconv.FormatInt(int64(ms), 10)
	}
	p.Priority = uint8(m.Priority)
	if size > frameRoom {
		return p, driver.Errorf(op, driver.TooLarge, "message %.80q has %d bytes of headers, the limit is %d: they travel in one AMQP frame", m.ID, size, frameRoom)
	}
	return p, nil
}

func (b *broker) refuse(op string, to driver.Destination, m *driver.Message) error {
	caps := b.Capabilities(to)
	switch {
	case m.Delay > 0:
		return driver.Errorf(op, driver.Unsupported, "Message.Delay: RabbitMQ has no delayed publish (need: %v)", driver.NeedSchedule)
	case m.TTL > 0 && !caps.TTL:
		return driver.Errorf(op, driver.Unsupported, "Message.TTL: a stream keeps messages by its own retention (need: %v)", driver.NeedTTL)
	case m.Priority != 0 && (m.Priority < 0 || m.Priority > caps.Priorities):
		return driver.Errorf(op, driver.Unsupported, "Message.Priority %d: this destination has %d levels; Config.Classic with Priorities makes some (need: %v)", m.Priority, caps.Priorities, driver.NeedPriority)
	case to.Shape == driver.Topic && to.Group == "" && len(m.Type) > shortMax:
		return driver.Errorf(op, driver.Permanent, "Message.Type is the routing key of a topic: at most %d bytes", shortMax)
	}
	return nil
}

// decode reads a delivery. It is total: foreign messages come as they are.
func decode(d *amqp.Delivery) driver.Message {
	m := driver.Message{
		ID: d.MessageId, Type: d.Type, Body: d.Body, Time: d.Timestamp,
		Headers: decodeHeaders(d.Headers), Priority: int(d.Priority),
	}
	if v, ok := d.Headers[driver.HeaderID].(string); ok && m.ID == "" {
		m.ID = v
	}
	if v, ok := d.Headers[driver.HeaderType].(string); ok && m.Type == "" {
		m.Type = v
	}
	if v, ok := d.Headers[driver.HeaderKey].(string); ok {
		m.Key = v
	}
	if v, ok := d.Headers[driver.HeaderTime].(string); ok {
		if t, err := time.Parse(time.RFC3339Nano, v); err == nil && t.Unix() == d.Timestamp.Unix() {
			m.Time = t
		}
	}
	if d.Expiration != "" {
		if ms, err := strconv.ParseInt(d.Expiration, 10, 64); err == nil && ms >= 0 && ms < 1<<43 {
			m.TTL = time.Duration(ms) * time.Millisecond
		}
	}
	foreign(d, &m)
	return m
}

// foreign adds what other programs put into properties that Message has no field for.
func foreign(d *amqp.Delivery, m *driver.Message) {
	for _, p := range [...]driver.Header{
		{Key: "content-type", Value: d.ContentType},
		{Key: "content-encoding", Value: d.ContentEncoding},
		{Key: "correlation-id", Value: d.CorrelationId},
		{Key: "reply-to", Value: d.ReplyTo},
	} {
		if p.Value == "" {
			continue
		}
		if _, ok := d.Headers[p.Key]; !ok {
			m.Headers = append(m.Headers, p)
		}
	}
}

// nameless gives a message without an id one. On a queue nothing identifies a foreign
// message from hand-out to hand-out, and a hash of its content would make two equal
// orders one: the id is new each time. On a stream the offset is the id.
func nameless(stream string, offset int64) string {
	if stream != "" {
		return fmt.Sprintf("%s-%d", stream, offset)
	}
	return rand.Text()
}

// deliveries counts hand-outs on a quorum queue. Up to 4.2 x-delivery-count counts
// every return; from 4.3 on it counts failures and x-acquired-count the hand-outs.
func deliveries(t amqp.Table) int {
	n := int64(1)
	if v, ok := number(t["x-delivery-count"]); ok {
		n = max(n, v+1)
	}
	if v, ok := number(t["x-acquired-count"]); ok {
		n = max(n, v)
	}
	return int(min(n, 1<<31-1))
}

// number reads a count: a wild one is capped, so that adding to it is safe.
func number(v any) (int64, bool) {
	n, ok := number64(v)
	return min(n, 1<<40), ok
}

func number64(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case int32:
		return int64(v), true
	case int16:
		return int64(v), true
	case int8:
		return int64(v), true
	case uint8:
		return int64(v), true
	case uint16:
		return int64(v), true
	case uint32:
		return int64(v), true
	case int:
		return int64(v), true
	}
	return 0, false
}
