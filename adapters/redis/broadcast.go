package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/core/driver"
)

// broadcast is the Driver of Config.Broadcast: its topics are channels of PUBLISH and
// SUBSCRIBE, which store nothing.
type broadcast struct{ *broker }

// Capabilities implements driver.Driver: there are topics, and they settle nothing.
func (b broadcast) Capabilities(of driver.Destination) driver.Capabilities {
	if of.Shape != driver.Topic || of.Partitions > 0 {
		return driver.Capabilities{}
	}
	return driver.Capabilities{Settle: driver.None, MaxBytes: b.cfg.MaxBytes}
}

// channel is the name of a topic's.
func (c *Config) channel(of driver.Destination) string {
	return c.Namespace + ":{" + of.Name + "}:channel"
}

// check refuses what a channel is not.
func (b broadcast) check(op string, of driver.Destination, group string) error {
	switch err := validate(op, of, group); {
	case b.isClosed():
		return errClosed(op)
	case err != nil:
		return err
	case of.Shape != driver.Topic:
		return driver.Errorf(op, driver.Unsupported, "a broadcast client has topics only: open another one without broadcast=true (Config.Broadcast) for a %s", of.Shape)
	case of.Partitions > 0:
		return driver.Errorf(op, driver.Unsupported, "ordered: a broadcast topic has no partitions")
	case of.Group != "" || group != "":
		return driver.Errorf(op, driver.Unsupported, "a broadcast topic has no groups that share the messages, every subscription gets every one: say Temporary, and the name of the group counts for nothing")
	}
	return nil
}

// Publish implements driver.Driver. nil means that the server has passed the message on to
// whoever was subscribed, perhaps nobody.
func (b broadcast) Publish(ctx context.Context, to driver.Destination, batch []*driver.Message) error {
	op := "publish " + to.String()
	if err := b.check(op, to, ""); err != nil {
		return err
	}
	errs, packed := make([]error, len(batch)), make([][]byte, len(batch))
	for i, m := range batch {
		if errs[i] = b.refuse(op, to, m); errs[i] == nil && (m.Delay > 0 || m.TTL > 0) {
			errs[i] = driver.Errorf(op, driver.Unsupported, "message %s: schedule, ttl: a broadcast message is there at once or never", m.ID)
		}
		if errs[i] == nil {
			packed[i] = packMessage(m)
		}
	}
	var cmds []*goredis.IntCmd // read only after the call has succeeded: it may outlive ctx
	err := b.bounded(ctx, func(ctx context.Context) error {
		mine := make([]*goredis.IntCmd, len(packed))
		pipe := b.pub.Pipeline()
		for i, payload := range packed {
			if payload != nil {
				mine[i] = pipe.Publish(ctx, b.cfg.channel(to), payload)
			}
		}
		if _, err := pipe.Exec(ctx); err != nil && offline(err) {
			return err
		}
		cmds = mine
		return nil
	})
	for i := range errs {
		switch {
		case errs[i] != nil:
		case err != nil:
			errs[i] = classify(op, err)
		case cmds[i] != nil:
			errs[i] = classify(op, cmds[i].Err())
		}
	}
	return driver.Batch(errs)
}

// packMagic begins a message, so that what others publish is told from it.
const packMagic = "varal\x01"

// packMessage packs the fields of an entry, each with its length.
func packMessage(m *driver.Message) []byte {
	b := []byte(packMagic)
	for _, v := range entryOf(m) {
		switch v := v.(type) {
		case string:
			b = appendText(b, v)
		case []byte:
			b = append(binary.AppendUvarint(b, uint64(len(v))), v...)
		}
	}
	return b
}

// unpackMessage is total, as unpackHead.
func unpackMessage(s string) record {
	rest, ours := strings.CutPrefix(s, packMagic)
	var fields []any
	for r := (headReader{s: rest}); ours && r.s != ""; {
		fields = append(fields, r.text())
		ours = !r.bad
	}
	rec := readRecord("", fields)
	if !ours || rec.err != nil {
		rec.msg.Body = []byte(s)
		rec.err = errors.New("what came over the channel is not one of our messages")
	}
	return rec
}

// Admin implements driver.Driver.
func (b broadcast) Admin() driver.Admin { return channels{b} }

// channels is the Admin of broadcast. A channel is there while somebody listens: there is
// nothing to make, to find missing or to delete.
type channels struct{ b broadcast }

// Apply implements driver.Admin.
func (a channels) Apply(_ context.Context, wanted []driver.Resource, _ driver.Mode) ([]driver.Change, error) {
	for _, r := range wanted {
		op := "apply " + r.Destination.String()
		if err := a.b.check(op, r.Destination, ""); err != nil {
			return nil, err
		}
		if len(r.Options) > 0 {
			return nil, driver.Errorf(op, driver.Unsupported, "a broadcast topic has no options")
		}
	}
	return nil, nil
}

// Inspect implements driver.Admin.
func (a channels) Inspect(_ context.Context, need driver.Resource) ([]driver.Finding, error) {
	return nil, a.b.check("inspect "+need.Destination.String(), need.Destination, "")
}

// Stats implements driver.Admin: nothing waits anywhere but in the subscribers.
func (a channels) Stats(_ context.Context, of driver.Resource) (driver.Stats, error) {
	return driver.Stats{InFlight: -1, Lag: -1, Oldest: -1}, a.b.check("stats "+of.Destination.String(), of.Destination, "")
}

// Seek implements driver.Admin.
func (a channels) Seek(_ context.Context, of driver.Resource, _ driver.Position) error {
	return driver.Errorf("seek "+of.Destination.String(), driver.Unsupported, "replay: a broadcast topic keeps nothing")
}
