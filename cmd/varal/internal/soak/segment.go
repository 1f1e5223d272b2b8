package soak

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/cmd/varal/internal/ticket"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/middleware"
)

// segment is a part of a run with a queue, a group and a judge of its own.
type segment struct {
	o      *Options
	before Totals
	c      memberConfig
	j      *judge
	rng    *mathrand.Rand
	base   time.Time
	share  int // messages

	client    *core.Client // publishes, and reads dead letters
	members   []member     // at work
	leaving   []member
	killed    []member
	sent      []uint32 // by session; its feeder's own until it ends
	published atomic.Int64

	kills, leaves int64
	failed        int // members that did not leave in good order
}

// member is one of the group, here or in a process of its own.
type member interface {
	// kill ends it at once. wait must still be called.
	kill() error
	// leave has it drain and end.
	leave()
	// done is closed when it has ended.
	done() <-chan struct{}
	// wait has it leave if nobody has, and returns how it ended: nil for one that was killed.
	wait() error
}

func newSegment(o *Options, before Totals) *segment {
	share := int(min(int64(o.Segment), int64(o.Messages)-before.Messages))
	seed := o.Seed + uint64(before.Segments) //nolint:gosec // a small count
	s := &segment{
		o: o, before: before, j: newJudge(o.Sessions), base: time.Now(), share: share, sent: make([]uint32, o.Sessions),
		rng: mathrand.New(mathrand.NewPCG(seed, 1)), //nolint:gosec // a schedule, not a secret
		c: memberConfig{
			URL: o.URL, Prefix: "soak-" + strings.ToLower(rand.Text()[:8]) + "-", Payload: o.Payload,
			Partitions: o.Partitions, Workers: o.Workers, Prefetch: max(4*o.Workers, 256),
			Service: o.Service, Seed: seed, Transient: o.Transient, Dead: o.Dead,
		},
	}
	s.c.Run = ticket.Mix(uint64(time.Now().UnixNano())) //nolint:gosec // any number will do
	return s
}

// run sends the messages, has them worked off amid trouble, and judges.
func (s *segment) run(ctx context.Context) (Totals, error) {
	var err error
	if s.client, err = s.c.open(ctx, s.o.Wrap); err != nil {
		return Totals{}, err
	}
	err = s.play(ctx)
	if err == nil {
		err = s.graves(ctx)
	}
	err = errors.Join(err, s.close())
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // whatever else came of it
	}
	if err != nil {
		return Totals{}, err
	}
	return s.totals(), nil
}

// play returns when all has ended, or nothing more does.
func (s *segment) play(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var feeding sync.WaitGroup
	fed := make(chan error, feeders)
	for f := range feeders {
		feeding.Go(func() { fed <- s.feed(ctx, f) })
	}
	defer feeding.Wait()
	defer cancel()
	for range s.o.Members {
		if err := s.join(); err != nil {
			return errors.Join(err, s.disband())
		}
	}
	err := s.watch(ctx, fed)
	cancel()
	return errors.Join(err, s.disband())
}

func (s *segment) join() error {
	if s.o.InProcess {
		s.members = append(s.members, startLocal(s.j, s.c, s.base, s.o.Wrap))
		return nil
	}
	p, err := startProcess(s.j, s.c, s.base, s.o.Program)
	if err != nil {
		return err
	}
	s.members = append(s.members, p)
	return nil
}

// watch makes trouble until all has ended.
func (s *segment) watch(ctx context.Context, fed <-chan error) error {
	look := time.NewTicker(25 * time.Millisecond)
	defer look.Stop()
	p := newPace(s)
	next := s.calm()
	for {
		select {
		case err := <-fed:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		case now := <-look.C:
			ended := s.j.first.Load()
			s.j.sweep(time.Since(s.base), false)
			if p.stalled(ended, now) || min(ended, s.published.Load()) >= int64(s.share) {
				return nil
			}
			if now.After(next) {
				if err := s.trouble(); err != nil {
					return err
				}
				next = s.calm()
			}
		}
		if err := s.faithful(); err != nil {
			return err
		}
	}
}

// calm returns when the next thing happens: between half and one and a half times Trouble
// from now.
func (s *segment) calm() time.Time {
	if s.o.Trouble <= 0 {
		return time.Now().Add(24 * 365 * time.Hour)
	}
	return time.Now().Add(time.Duration((0.5 + s.rng.Float64()) * float64(s.o.Trouble)))
}

// trouble kills one member, or has it leave, and lets another one come. Whoever leaves
// drains meanwhile, so the group is at times larger.
func (s *segment) trouble() error {
	i := s.rng.IntN(len(s.members))
	m := s.members[i]
	s.members = append(s.members[:i], s.members[i+1:]...)
	if s.rng.Float64() < s.o.Kills {
		s.kills++
		s.killed = append(s.killed, m)
		if err := m.kill(); err != nil {
			return fmt.Errorf("kill a member: %w", err)
		}
	} else {
		s.leaves++
		s.leaving = append(s.leaving, m)
		m.leave()
	}
	return s.join()
}

// faithful returns the error of a member that has ended by itself.
func (s *segment) faithful() error {
	for _, m := range s.members {
		select {
		case <-m.done():
			if err := m.wait(); err != nil {
				return err
			}
			return errors.New("a member ended, and nobody had told it to")
		default:
		}
	}
	return nil
}

// disband waits for all members.
func (s *segment) disband() (err error) {
	for _, m := range s.members {
		m.leave()
	}
	for _, list := range [][]member{s.members, s.leaving, s.killed} {
		for _, m := range list {
			if lerr := m.wait(); lerr != nil {
				s.failed++
				err = lerr
			}
		}
	}
	s.j.sweep(0, true)
	if s.failed > s.forgiven() {
		return fmt.Errorf("%d of %d members did not leave in good order, such as: %w", s.failed, len(s.members)+len(s.leaving), err)
	}
	return nil
}

// forgiven is how many members may fail to leave: a group that is always in the middle of
// a change may keep one waiting for longer than it has, and then its session runs out.
func (s *segment) forgiven() int { return (len(s.members) + len(s.leaving)) / 5 }

const (
	feeders   = 4
	feedBatch = 512
)

// feed publishes the messages of every feeders-th session, in turns, and not further ahead
// of what has ended than Ahead.
func (s *segment) feed(ctx context.Context, f int) error {
	mine := (s.o.Sessions - f + feeders - 1) / feeders
	count := 0
	for i := f; i < s.o.Sessions; i += feeders {
		count += s.of(i)
	}
	for sent := 0; sent < count; {
		if s.published.Load()-s.j.first.Load() > int64(s.o.Ahead) {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Millisecond):
			}
			continue
		}
		batch := s.batch(f, mine, sent, min(feedBatch, count-sent))
		if err := s.client.Publish(ctx, source(s.o.Partitions), batch...); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("publish: %w", err)
		}
		sent += len(batch)
		s.published.Add(int64(len(batch)))
	}
	return nil
}

// of is how many messages session i gets: the rest of the division goes to the first ones,
// so that a feeder can go round its sessions in turns.
func (s *segment) of(i int) int {
	n := s.share / s.o.Sessions
	if i < s.share%s.o.Sessions {
		n++
	}
	return n
}

// batch is the messages from up to from+n of feeder f, which has so many sessions.
func (s *segment) batch(f, mine, from, n int) []*core.Message {
	size := s.o.Payload
	bodies := make([]byte, 0, n*size)
	slab, out := make([]core.Message, n), make([]*core.Message, n)
	for i := range n {
		session := f + feeders*((from+i)%mine)
		s.sent[session]++
		at := len(bodies)
		bodies = ticket.Ticket{Session: uint32(session), N: s.sent[session]}.Append(bodies, s.c.Run, size) //nolint:gosec // validated
		slab[i].Key, slab[i].Body = "session-"+strconv.Itoa(session), bodies[at:len(bodies):len(bodies)]
		out[i] = &slab[i]
	}
	return out
}

// graves reads the dead letters until all that are owed have come, or no more do.
func (s *segment) graves(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.j.due() == 0 {
		return nil
	}
	sub, err := s.client.Start(ctx, core.Subscription{From: graves(), Group: "graves", Start: core.Position{Kind: driver.Earliest}},
		func(_ context.Context, d *core.Delivery) error {
			if t, ok := ticket.Decode(d.Body, s.c.Run, s.c.Payload); ok {
				s.j.letter(t)
			} else {
				s.j.violation("a dead letter of %d bytes that is not of this run", len(d.Body))
			}
			return nil
		}, middleware.Concurrency(8), middleware.Prefetch(1024))
	if err != nil {
		return err
	}
	last, since := int64(-1), time.Now()
	for s.j.due() > 0 && ctx.Err() == nil && time.Since(since) < s.o.Patience {
		if n := s.j.letters.Load(); n != last {
			last, since = n, time.Now()
		}
		time.Sleep(20 * time.Millisecond)
	}
	draining, done := context.WithTimeout(context.WithoutCancel(ctx), closeIn)
	defer done()
	return errors.Join(ctx.Err(), sub.Drain(draining))
}

// close deletes what the segment has made.
func (s *segment) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*closeIn)
	defer cancel()
	if admin := s.client.Admin(); admin != nil {
		for to, reader := range map[core.Destination]string{source(s.o.Partitions): group, graves(): "graves"} {
			to.Name = s.c.Prefix + to.Name
			// A group of a log is deleted by itself; elsewhere it goes with the queue.
			_, _ = admin.Apply(ctx, []driver.Resource{{Destination: to.ForGroup(s.c.Prefix + reader)}}, driver.Delete)
			_, _ = admin.Apply(ctx, []driver.Resource{{Destination: to}}, driver.Delete)
		}
	}
	return s.client.Close(ctx)
}

func (s *segment) totals() Totals {
	t := Totals{
		Messages: s.published.Load(), Duplicates: s.j.duplicates.Load(), Attempts: s.j.attempts.Load(), Faults: s.j.faults.Load(),
		Missing: s.j.due(), DeadLetters: int64(len(s.j.owed)), Overlaps: s.j.overlaps.Load(),
		Kills: s.kills, Leaves: s.leaves, Losses: s.j.losses.Load(), Lost: s.j.lost(s.sent), Seconds: time.Since(s.base).Seconds(),
	}
	t.Violations, t.Notes = s.j.verdict()
	return t
}

// pace tells how fast it goes, and when it goes no more.
type pace struct {
	s     *segment
	ended int64
	moved time.Time
	marks []mark // of the last seconds
}

type mark struct {
	at    time.Time
	ended int64
}

func newPace(s *segment) *pace { return &pace{s: s, moved: time.Now()} }

// stalled looks at how many messages have ended, tells Watch, and reports that nothing has
// moved for as long as Patience.
func (p *pace) stalled(ended int64, now time.Time) bool {
	if ended > p.ended {
		p.ended, p.moved = ended, now
	}
	p.marks = append(p.marks, mark{now, ended})
	if len(p.marks) > 400 { // ten seconds
		p.marks = p.marks[1:]
	}
	if w := p.s.o.Watch; w != nil {
		w(p.progress(ended))
	}
	return now.Sub(p.moved) > p.s.o.Patience
}

func (p *pace) progress(ended int64) Progress {
	s := p.s
	v, _ := s.j.verdict()
	out := Progress{Done: s.before.Messages + ended, Of: int64(s.o.Messages), Violations: s.before.Violations + v, Lost: s.before.Lost, Kills: s.before.Kills + s.kills}
	first, last := p.marks[0], p.marks[len(p.marks)-1]
	if took := last.at.Sub(first.at).Seconds(); took > 0.5 {
		out.Rate = float64(last.ended-first.ended) / took
	}
	if out.Rate > 0 {
		out.Left = time.Duration(float64(out.Of-out.Done) / out.Rate * float64(time.Second))
	}
	return out
}
