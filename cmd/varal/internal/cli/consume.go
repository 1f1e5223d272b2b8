package cli

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/middleware"
)

// consumeName is the subscription of consume in logs and errors.
const consumeName = "consume"

// reading is the options of consume.
type reading struct {
	broker
	group, from string
	partitions  int
	most        int
	idle        time.Duration
	asJSON      bool
	control     string
}

func (s *session) consume() *cobra.Command {
	var r reading
	c := &cobra.Command{
		Use:   "consume DESTINATION",
		Short: "Print messages, each acknowledged once it is printed",
		Long: "DESTINATION is queue:NAME, topic:NAME or stream:NAME. " + fileNames + "\n" +
			"A topic without --group is watched from now on, by a group that ends with the command. A stream without --group\n" +
			"is read and nothing is committed. A message is acknowledged after it was written to stdout; when stdout is closed,\n" +
			"or at the first SIGINT or SIGTERM, the rest goes back to the broker.\n\n" + exitCodes,
		Example: "  varal consume --url kafka://localhost:9092 --create topic:pizzas --group kitchen-radio --from earliest --max 10 --idle 5s\n" +
			"  varal consume --url kafka://localhost:9092 --create queue:tickets --json --idle 5s",
		Args: oneDestination,
		RunE: func(c *cobra.Command, args []string) error {
			from, err := s.destination(&r.broker, args[0], r.partitions)
			if err != nil {
				return err
			}
			sub := core.Subscription{From: from, Group: r.group, Name: consumeName}
			switch {
			case r.most < 0:
				return usage("--max %d is negative: 0 means no limit", r.most)
			case r.idle < 0:
				return usage("--idle %v is negative: 0 means to wait for ever", r.idle)
			case from.Shape == core.ShapeTopic && r.group == "":
				sub.Group, sub.Temporary = "varal-consume-"+strings.ToLower(rand.Text()[:12]), true
				sub.Start.Kind = core.Latest
			}
			switch r.from {
			case "":
			case "earliest":
				sub.Start.Kind = core.Earliest
			case "latest":
				sub.Start.Kind = core.Latest
			default:
				return usage("--from %.40q is neither earliest nor latest", r.from)
			}
			return s.runConsume(c.Context(), &r, sub)
		},
	}
	f := c.Flags()
	r.flags(f)
	f.StringVar(&r.group, "group", "", "the group to read as; a topic without one is watched by a group that ends with the command")
	f.StringVar(&r.from, "from", "", "where a group that has no position yet begins: earliest or latest")
	f.IntVar(&r.partitions, "partitions", 0, "order per key over so many partitions, as the publisher says it; 0 = none asked")
	f.IntVar(&r.most, "max", 0, "end after so many messages; 0 = no limit")
	f.DurationVar(&r.idle, "idle", 0, "end when no message came for so long, from when there is something to read; 0 = never")
	f.BoolVar(&r.asJSON, "json", false, "print one JSON object per line")
	f.StringVar(&r.control, "control", "", "serve the control handler on this loopback address, for varal sessions; e.g. 127.0.0.1:7070")
	return c
}

func (s *session) runConsume(ctx context.Context, r *reading, sub core.Subscription) error {
	client, err := s.open(ctx, &r.broker)
	if err != nil {
		return err
	}
	return closeClient(client, s.print(ctx, client, r, sub))
}

// print consumes until ctx ends, --max, --idle, or stdout is closed.
func (s *session) print(parent context.Context, client *core.Client, r *reading, sub core.Subscription) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	p := &printer{s: s, r: r, enough: cancel}
	prefetch := 64
	if r.most > 0 { // what is fetched and not printed goes back; fetch little of it
		prefetch = min(prefetch, r.most)
	}
	layers := []core.Layer{middleware.Prefetch(prefetch), middleware.Concurrency(1)}
	if sub.From.Partitions > 0 {
		layers = []core.Layer{middleware.Prefetch(prefetch), middleware.SessionOrder(1)}
	}
	if client.Capabilities(sub.From).Settle == driver.None { // a broadcast topic: nothing could go back
		layers = append(layers, middleware.AckFirst())
	}
	c, err := client.Start(ctx, sub, p.handle, layers...)
	if err != nil {
		return err
	}
	if r.idle > 0 {
		w := watchIdle(r.idle, r.timeout, func() bool { return len(c.Status().Partitions) > 0 }, cancel)
		defer w.stop()
		p.watch(w)
	}
	s.noteMemory(client)
	if r.control == "" {
		return c.Wait()
	}
	stop, err := serveControl(ctx, client, r.control)
	if err != nil {
		cancel()
		return errors.Join(err, c.Wait())
	}
	defer stop()
	return c.Wait()
}

type printer struct {
	s      *session
	r      *reading
	enough context.CancelFunc

	mu      sync.Mutex
	printed int
	quiet   *idleWatch // nil = there is none, or not yet
}

func (p *printer) watch(w *idleWatch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quiet = w
}

func (p *printer) handle(_ context.Context, d *core.Delivery) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.r.most > 0 && p.printed == p.r.most {
		return core.Return(nil)
	}
	if err := p.write(d); err != nil {
		return core.Halt(err) // the message stays with the broker: nobody has seen it
	}
	if p.quiet != nil {
		p.quiet.came()
	}
	if p.printed++; p.printed == p.r.most {
		p.enough()
	}
	return nil
}

// line is a message as --json prints it.
type line struct {
	ID        string        `json:"id"`
	Key       string        `json:"key,omitempty"`
	Type      string        `json:"type,omitempty"`
	Headers   []core.Header `json:"headers,omitempty"`
	Body      *string       `json:"body,omitempty"`
	Base64    string        `json:"body_base64,omitempty"` // of a body that is no UTF-8
	Time      time.Time     `json:"time"`
	Partition string        `json:"partition,omitempty"`
	Offset    *int64        `json:"offset,omitempty"`
	Attempt   int           `json:"attempt"`
}

func (p *printer) write(d *core.Delivery) error {
	if !p.r.asJSON {
		_, err := fmt.Fprintf(p.s.out, "%s\t%s\n", p.s.plain(d.Key), p.s.plain(string(d.Body)))
		return err
	}
	l := line{ID: d.ID, Key: d.Key, Type: d.Type, Headers: d.Headers, Time: d.Time, Partition: d.Partition, Attempt: d.Attempt}
	if d.Offset >= 0 {
		l.Offset = &d.Offset
	}
	if utf8.Valid(d.Body) {
		body := string(d.Body)
		l.Body = &body
	} else {
		l.Base64 = base64.StdEncoding.EncodeToString(d.Body)
	}
	return p.s.printJSON(l)
}

// plain keeps a message from driving the terminal, or from looking like two: text with
// control characters is quoted.
func (s *session) plain(text string) string {
	for _, r := range text {
		if !strconv.IsPrint(r) {
			return strconv.Quote(text)
		}
	}
	return text
}
