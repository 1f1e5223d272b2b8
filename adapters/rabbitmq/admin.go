package rabbitmq

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/varal-go/varal/core/driver"
)

// Admin works over the consume connection.
func (b *broker) Admin() driver.Admin { return admin{b} }

type admin struct{ b *broker }

// object is one queue or exchange of a Resource.
type object struct {
	exchange bool
	name     string
	args     amqp.Table
	bind     []string // patterns
	bindTo   string
}

func (o object) subject() string {
	if o.exchange {
		return "exchange " + o.name
	}
	return "queue " + o.name
}

// options are the words of Resource.Options. The value is the x-argument they set; ""
// = not an argument.
var options = map[string]struct {
	arg     string
	number  bool
	streams bool // for streams; else for queues and groups
	both    bool
}{
	"bind":                    {},
	"max-length":              {arg: "x-max-length", number: true},
	"max-length-bytes":        {arg: "x-max-length-bytes", number: true, both: true},
	"overflow":                {arg: "x-overflow"},
	"message-ttl":             {arg: "x-message-ttl", number: true},
	"delivery-limit":          {arg: "x-delivery-limit", number: true},
	"dead-letter-exchange":    {arg: "x-dead-letter-exchange"},
	"dead-letter-routing-key": {arg: "x-dead-letter-routing-key"},
	"dead-letter-strategy":    {arg: "x-dead-letter-strategy"},
	"max-age":                 {arg: "x-max-age", streams: true},
	"stream-max-segment-size": {arg: "x-stream-max-segment-size-bytes", number: true, streams: true},
}

// objects lists what a resource is made of, in the order to create it.
func (b *broker) objects(op string, r driver.Resource) ([]object, error) {
	if err := validate(op, r.Destination, r.Group); err != nil {
		return nil, err
	}
	extra, bind, err := parseOptions(op, r)
	if err != nil {
		return nil, err
	}
	with := func(args amqp.Table) amqp.Table {
		for k, v := range extra {
			args[k] = v
		}
		return args
	}
	switch {
	case r.Shape == driver.Topic && r.Group == "":
		return []object{{exchange: true, name: r.Name}}, nil
	case r.Shape == driver.Topic:
		return []object{{name: groupQueue(r.Name, r.Group), args: with(b.queueArgs(false)), bind: bind, bindTo: r.Name}}, nil
	}
	var out []object
	for i := range max(1, r.Partitions) {
		name := shardName(r.Name, r.Partitions, i)
		switch {
		case r.Shape == driver.Stream && r.Group == "":
			out = append(out, object{name: name, args: with(amqp.Table{"x-queue-type": "stream"})})
		case r.Shape == driver.Stream:
			out = append(out, object{name: ownerQueue(name, r.Group), args: ownerArgs()})
		default:
			out = append(out, object{name: name, args: with(b.queueArgs(r.Partitions > 0))})
			if r.Partitions > 0 {
				out = append(out, object{name: ownerQueue(name, ""), args: ownerArgs()})
			}
		}
	}
	if r.Shape == driver.Stream && r.Group != "" || r.Partitions > 0 && r.Shape == driver.Queue {
		out = append(out, object{name: membersOf(r.Destination, r.Group), args: membersArgs()})
	}
	return out, nil
}

func parseOptions(op string, r driver.Resource) (args amqp.Table, bind []string, err error) {
	args, bind = amqp.Table{}, []string{"#"}
	stream := r.Shape == driver.Stream && r.Group == ""
	for k, v := range r.Options {
		o, ok := options[k]
		fits := ok && (o.both || o.streams == stream) && (r.Shape != driver.Topic || r.Group != "")
		if k == "bind" {
			fits = r.Shape == driver.Topic && r.Group != ""
		}
		switch {
		case !fits:
			return nil, nil, driver.Errorf(op, driver.Unsupported, "option %q is unknown for this resource", k)
		case k == "bind":
			bind = strings.Split(v, ",")
		case o.number:
			n, err := strconv.ParseInt(v, 10, 64)
			if err != nil || n < 0 {
				return nil, nil, driver.Errorf(op, driver.Permanent, "option %q: want a whole number ≥ 0", k)
			}
			args[o.arg] = n
		default:
			args[o.arg] = v
		}
	}
	return args, bind, nil
}

// Apply implements driver.Admin. Verify looks passively, then compares the arguments of what
// exists by a declare of the same thing where the user may configure it.
func (a admin) Apply(ctx context.Context, want []driver.Resource, mode driver.Mode) ([]driver.Change, error) {
	op := "apply (" + mode.String() + ")"
	if mode < driver.Create || mode > driver.Delete {
		return nil, driver.Errorf(op, driver.Permanent, "the mode is not set")
	}
	var all []object
	for _, r := range want {
		os, err := a.b.objects(op, r)
		if err != nil {
			return nil, err
		}
		all = append(all, os...)
	}
	// Exchanges first: groups bind to them. Deleted last, for the same reason.
	slices.SortStableFunc(all, func(x, y object) int {
		if x.exchange == y.exchange {
			return 0
		}
		if x.exchange == (mode != driver.Delete) {
			return -1
		}
		return 1
	})
	s, err := a.session(ctx, op)
	if err != nil {
		return nil, err
	}
	var changes []driver.Change
	err = a.b.bounded(ctx, func() error {
		var done []driver.Change
		for _, o := range all {
			cs, err := apply(s, o, mode)
			if err != nil && !errors.Is(err, errUnread) {
				return classify(op+" "+o.subject(), err)
			}
			done = append(done, cs...)
		}
		changes = done
		return nil
	})
	if err != nil {
		return nil, classify(op, err)
	}
	return changes, nil
}

func (a admin) session(ctx context.Context, op string) (*session, error) {
	if a.b.isClosed() {
		return nil, errClosed(op)
	}
	s, err := a.b.sub.session(ctx)
	return s, classify(op, err)
}

func apply(s *session, o object, mode driver.Mode) ([]driver.Change, error) {
	exists, err := o.exists(s)
	if err != nil {
		return nil, err
	}
	missing := driver.Change{Subject: o.subject(), Field: "exists", Have: "no", Want: "yes"}
	switch {
	case mode == driver.Delete && !exists:
		return nil, nil
	case mode == driver.Delete:
		return []driver.Change{{Subject: o.subject(), Field: "exists", Have: "yes", Want: "no", Done: true}}, o.delete(s)
	case exists:
		return o.compare(s, mode)
	case mode != driver.Create:
		return []driver.Change{missing}, nil
	}
	if err := o.declare(s); err != nil {
		return nil, err
	}
	missing.Done = true
	return []driver.Change{missing}, nil
}

func (o object) exists(s *session) (bool, error) {
	var err error
	if o.exchange {
		err = s.scratch(func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(o.name, amqp.ExchangeTopic, true, false, false, false, nil)
		})
	} else {
		_, err = passive(s, o.name)
	}
	if e, ok := errors.AsType[*amqp.Error](err); ok && classOfReply(e) == driver.NotFound {
		return false, nil
	}
	return err == nil, err
}

func (o object) declare(s *session) error {
	return s.scratch(func(ch *amqp.Channel) error {
		if o.exchange {
			return ch.ExchangeDeclare(o.name, amqp.ExchangeTopic, true, false, false, false, nil)
		}
		if _, err := ch.QueueDeclare(o.name, true, false, false, false, o.args); err != nil {
			return err
		}
		for _, pattern := range o.bind {
			if err := ch.QueueBind(o.name, strings.TrimSpace(pattern), o.bindTo, false, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

func (o object) delete(s *session) error {
	return s.scratch(func(ch *amqp.Channel) error {
		if o.exchange {
			return ch.ExchangeDelete(o.name, false, false)
		}
		_, err := ch.QueueDelete(o.name, false, false, false)
		return err
	})
}

var errUnread = errors.New("its arguments cannot be compared without the right to configure it")

// compare declares what exists once more: equal is a no-op, different is refused with
// the reason. It needs the right to configure: errUnread without, in the modes that only
// look.
func (o object) compare(s *session, mode driver.Mode) ([]driver.Change, error) {
	bind := o.bind
	if mode != driver.Create {
		o.bind = nil // a binding cannot be asked for, only made
	}
	err := o.declare(s)
	o.bind = bind
	e, ok := errors.AsType[*amqp.Error](err)
	switch {
	case err == nil:
		return nil, nil
	case ok && e.Code == amqp.AccessRefused && mode != driver.Create:
		return nil, errUnread
	case ok && e.Code == amqp.PreconditionFailed:
		field, have, want := difference(e.Reason)
		return []driver.Change{{Subject: o.subject(), Field: field, Have: have, Want: want}}, nil
	}
	return nil, err
}

// difference reads "inequivalent arg 'x-queue-type' for queue 'q' in vhost '/':
// received the value 'quorum' of type 'longstr' but current is the value 'classic' …".
func difference(reason string) (field, have, want string) {
	parts := strings.Split(reason, "'")
	if _, after, ok := strings.Cut(reason, "inequivalent arg '"); ok {
		field, _, _ = strings.Cut(after, "'")
	}
	value := func(after string) string {
		_, tail, ok := strings.Cut(reason, after)
		if !ok {
			return ""
		}
		tail = strings.TrimLeft(strings.TrimPrefix(strings.TrimSpace(tail), "the value"), " ")
		if v, ok := strings.CutPrefix(tail, "'"); ok {
			v, _, _ = strings.Cut(v, "'")
			return v
		}
		return "none"
	}
	if field == "" || len(parts) < 3 {
		return "arguments", reason, ""
	}
	return field, value("but current is"), value("received")
}

// Stats implements driver.Admin. Ready is the broker's count; a stream and what is in flight are not told over
// AMQP 0-9-1.
func (a admin) Stats(ctx context.Context, of driver.Resource) (driver.Stats, error) {
	op := "stats of " + of.Destination.String()
	none := driver.Stats{Ready: -1, InFlight: -1, Delayed: -1, Lag: -1, Oldest: -1}
	if err := validate(op, of.Destination, of.Group); err != nil {
		return none, err
	}
	s, err := a.session(ctx, op)
	if err != nil {
		return none, err
	}
	out := none
	err = a.b.bounded(ctx, func() error {
		if of.Shape == driver.Topic && of.Group == "" {
			ok, err := object{exchange: true, name: of.Name}.exists(s)
			if err == nil && !ok {
				return driver.Errorf(op, driver.NotFound, "no exchange %q", of.Name)
			}
			return err
		}
		var err error
		out, err = statsOf(s, of, none)
		return err
	})
	if err != nil {
		return none, classify(op, err)
	}
	return out, nil
}

func statsOf(s *session, of driver.Resource, none driver.Stats) (driver.Stats, error) {
	out := none
	parts := partsOf(driver.Subscription{From: of.Destination, Group: of.Group})
	for _, p := range parts {
		q, err := passive(s, p.queue)
		if err != nil {
			return none, err
		}
		if of.Shape == driver.Stream {
			continue // the count is of the whole log, and lags
		}
		one := none
		one.Ready, one.Delayed = int64(q.Messages), 0
		if p.label != "" {
			if out.Partitions == nil {
				out.Partitions = map[string]driver.Stats{}
			}
			out.Partitions[p.label] = one
		}
		out.Ready, out.Delayed = max(out.Ready, 0)+one.Ready, 0
	}
	return out, nil
}

// Inspect reports what AMQP 0-9-1 shows about the settings: whether they are as wanted,
// and not even that without the right to configure. An unreadable setting is a finding
// that says so.
func (a admin) Inspect(ctx context.Context, need driver.Resource) ([]driver.Finding, error) {
	op := "inspect " + need.Destination.String()
	all, err := a.b.objects(op, need)
	if err != nil {
		return nil, err
	}
	s, err := a.session(ctx, op)
	if err != nil {
		return nil, err
	}
	var out []driver.Finding
	err = a.b.bounded(ctx, func() error {
		var found []driver.Finding
		for _, o := range all {
			fs, err := inspect(s, o)
			if err != nil {
				return classify(op+" "+o.subject(), err)
			}
			found = append(found, fs...)
		}
		out = found
		return nil
	})
	if err != nil {
		return nil, classify(op, err)
	}
	if a.b.cfg.Classic && need.Shape != driver.Stream {
		out = append(out, driver.Finding{
			Rule: "rabbitmq-classic", Subject: need.Destination.String(), Seen: "classic queues on one node",
			Wanted: "quorum queues, which survive the loss of a node", Fix: "set classic to false", Inspected: true,
		})
	}
	return out, nil
}

func inspect(s *session, o object) (out []driver.Finding, err error) {
	const rule = "rabbitmq-topology"
	cs, err := apply(s, o, driver.Verify)
	if errors.Is(err, errUnread) {
		return []driver.Finding{{
			Rule: rule, Subject: o.subject(), Seen: "it exists; " + err.Error(), Wanted: "the arguments that varal gives it",
			Fix: "inspect with a user that may configure it",
		}}, nil
	}
	for _, c := range cs {
		out = append(out, driver.Finding{
			Rule: rule, Subject: c.Subject, Seen: c.Field + ": " + c.Have, Wanted: c.Want,
			Fix: "declare it as wanted (arguments of a queue cannot be changed: drain, delete, declare)", Inspected: true,
		})
	}
	return out, err
}
