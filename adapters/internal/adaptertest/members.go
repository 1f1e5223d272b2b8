package adaptertest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/varal-go/varal/core/driver"
)

// Owners judges what the members of one group are told of their partitions: none is given
// to a member while another has it, and fences grow. Safe for concurrent use.
type Owners struct {
	mu      sync.Mutex
	lax     bool
	owner   map[string]string // by partition; "" = nobody
	fence   map[string]uint64 // by partition: the last
	held    map[string]int    // by member: partitions
	changes int
	faults  []string
}

// NewOwners have seen nobody yet.
func NewOwners() *Owners {
	return &Owners{owner: map[string]string{}, fence: map[string]uint64{}, held: map[string]int{}}
}

// Loosen lets a partition be given to another from now on before its owner has let go: one
// that was killed or frozen does not know yet.
func (o *Owners) Loosen() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lax = true
}

// Lax reports whether Loosen was called.
func (o *Owners) Lax() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lax
}

// Fault notes what Check fails the test for.
func (o *Owners) Fault(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.faultLocked(format, args...)
}

func (o *Owners) faultLocked(format string, args ...any) {
	o.faults = append(o.faults, fmt.Sprintf(format, args...))
}

// Check fails the test for each fault so far, for twenty at the most.
func (o *Owners) Check(t testing.TB) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range o.faults[:min(len(o.faults), 20)] {
		t.Error(f)
	}
}

// Changes is how often a partition was given to somebody.
func (o *Owners) Changes() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changes
}

// Held is how many partitions the members have together.
func (o *Owners) Held(names ...string) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, name := range names {
		n += o.held[name]
	}
	return n
}

// Balanced reports whether the members have all the partitions, none of them two more than
// another.
func (o *Owners) Balanced(partitions int, names ...string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	total, least, most := 0, partitions, 0
	for _, name := range names {
		total += o.held[name]
		least, most = min(least, o.held[name]), max(most, o.held[name])
	}
	return total == partitions && most-least <= 1
}

// Member is one consumer of the group with core's part played by the test: admission by
// epoch, one message at a time, a Revoke that waits for what runs. A Config dials by its
// Net.
type Member struct {
	Name string
	Net  Cutter

	owners *Owners
	d      driver.Driver
	c      driver.Consumer
	cancel context.CancelFunc
	done   chan struct{}

	running sync.Mutex // held while a message is handled
	// Guarded by owners.mu.
	open map[string]uint64 // epochs by partition
	errs []error
}

// Member is one that does nothing until Consume.
func (o *Owners) Member(name string) *Member {
	return &Member{Name: name, owners: o, open: map[string]uint64{}, done: make(chan struct{})}
}

// Consume subscribes and hands each message that it admits to handle, until an error that
// core would not try again after, Stop, or the end of the test. It closes d with the member.
func (m *Member) Consume(t testing.TB, d driver.Driver, sub driver.Subscription, want driver.Demand, handle func(context.Context, driver.Consumer, driver.Received)) {
	t.Helper()
	sub.Assigned, sub.Revoke = m.assigned, m.revoke
	c, err := d.Subscribe(Within(t, subscribeLimit), sub)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.d, m.c, m.cancel = d, c, cancel
	go m.run(ctx, want, handle)
	t.Cleanup(m.Leave)
}

// Stop lets the member receive no more. It says nothing to the broker.
func (m *Member) Stop() { m.cancel() }

// Leave ends the member in good order, and what is left of one that has ended.
func (m *Member) Leave() {
	m.cancel()
	<-m.done
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	_ = m.c.Close(ctx)
	_ = m.d.Close(ctx)
}

// Drop admits nothing more of a partition, until it is assigned again: its lease was lost.
func (m *Member) Drop(partition string) {
	m.owners.mu.Lock()
	defer m.owners.mu.Unlock()
	delete(m.open, partition)
}

// Errs are those that ended it.
func (m *Member) Errs() []error {
	m.owners.mu.Lock()
	defer m.owners.mu.Unlock()
	return m.errs
}

func (m *Member) assigned(a driver.Assignment) {
	o := m.owners
	o.mu.Lock()
	defer o.mu.Unlock()
	if other := o.owner[a.Partition]; other != "" && other != m.Name && !o.lax {
		o.faultLocked("%s given to %s while %s has it", a.Partition, m.Name, other)
	}
	if a.Fence <= o.fence[a.Partition] {
		o.faultLocked("%s: fence %d after %d", a.Partition, a.Fence, o.fence[a.Partition])
	}
	o.owner[a.Partition], o.fence[a.Partition] = m.Name, a.Fence
	o.held[m.Name]++
	o.changes++
	m.open[a.Partition] = a.Epoch
}

func (m *Member) revoke(_ context.Context, partitions []string) {
	m.running.Lock() // nothing runs
	defer m.running.Unlock()
	o := m.owners
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range partitions {
		if o.owner[p] == m.Name {
			o.owner[p] = ""
		}
		o.held[m.Name]--
		delete(m.open, p)
	}
}

func (m *Member) run(ctx context.Context, want driver.Demand, handle func(context.Context, driver.Consumer, driver.Received)) {
	defer close(m.done)
	for ctx.Err() == nil {
		got, err := m.c.Receive(ctx, want)
		if err != nil && driver.ClassOf(err) != driver.Transient && ctx.Err() == nil {
			m.owners.mu.Lock()
			m.errs = append(m.errs, err)
			m.owners.mu.Unlock()
			return
		}
		for _, r := range got {
			m.handle(ctx, r, handle)
		}
	}
}

func (m *Member) handle(ctx context.Context, r driver.Received, f func(context.Context, driver.Consumer, driver.Received)) {
	m.running.Lock()
	defer m.running.Unlock()
	m.owners.mu.Lock()
	admitted := m.open[r.Receipt.Partition] == r.Receipt.Epoch
	m.owners.mu.Unlock()
	if admitted {
		f(ctx, m.c, r)
	}
}
