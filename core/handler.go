package core

import (
	"context"
	"encoding/json"
	"fmt"
)

// Handler handles one delivery. nil acknowledges it; an error is handled by its
// class. ctx ends when the attempt times out, when the delivery is no longer ours,
// or at the drain deadline; its cause tells which. It runs on one of the
// subscription's worker goroutines, several at once.
type Handler func(ctx context.Context, d *Delivery) error

// Codec turns values into bodies and back.
type Codec[T any] interface {
	// Marshal returns the body of v; its error fails the publish before anything is sent.
	Marshal(v T) ([]byte, error)
	// Unmarshal fills v; its error is that of a body that no further attempt makes readable.
	Unmarshal(body []byte, v *T) error
}

// JSON is the codec of encoding/json. Fields that T does not have are ignored.
type JSON[T any] struct{}

// Marshal returns v as JSON.
func (JSON[T]) Marshal(v T) ([]byte, error) { return json.Marshal(v) }

// Unmarshal reads JSON into v.
func (JSON[T]) Unmarshal(body []byte, v *T) error { return json.Unmarshal(body, v) }

// Typed makes a Handler from a function that takes a decoded body. A body that does
// not decode is Permanent: it goes to the dead letter raw, at the first attempt.
func Typed[T any](c Codec[T], fn func(ctx context.Context, v T, d *Delivery) error) Handler {
	return func(ctx context.Context, d *Delivery) error {
		var v T
		if err := c.Unmarshal(d.Body, &v); err != nil {
			return Permanent(fmt.Errorf("decode body: %w", err))
		}
		return fn(ctx, v, d)
	}
}

// NewMessage encodes v as the body of a message with this key.
func NewMessage[T any](c Codec[T], key string, v T) (*Message, error) {
	body, err := c.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode body: %w", err)
	}
	return &Message{Key: key, Body: body}, nil
}

// Mux dispatches deliveries by Message.Type. Fill it before use; it is then safe
// for concurrent use. The zero Mux refuses every type as Permanent.
type Mux struct {
	byType   map[string]Handler
	fallback Handler
}

// Handle registers h for a message type. A second handler of one type panics: it is
// a programming error that would otherwise show as missing effects.
func (m *Mux) Handle(messageType string, h Handler) {
	if m.byType == nil {
		m.byType = map[string]Handler{}
	}
	if _, ok := m.byType[messageType]; ok {
		panic(fmt.Sprintf("varal: two handlers for message type %q", messageType))
	}
	m.byType[messageType] = h
}

// Otherwise registers h for all other types.
func (m *Mux) Otherwise(h Handler) { m.fallback = h }

// Serve is the Handler to give to Consume.
func (m *Mux) Serve(ctx context.Context, d *Delivery) error {
	if h, ok := m.byType[d.Type]; ok {
		return h(ctx, d)
	}
	if m.fallback != nil {
		return m.fallback(ctx, d)
	}
	return Permanent(fmt.Errorf("no handler for message type %q", d.Type))
}
