package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/varal-go/varal/adapters/kafka"
	"github.com/varal-go/varal/core/driver"
)

// widen gives a topic more partitions.
func widen(t *testing.T, b broker, topic string, partitions int) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.conf.Brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	resp, err := kadm.NewClient(cl).UpdatePartitions(t.Context(), partitions, topic)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// collectAll receives n messages of partitions that the client may not know yet.
func (k *desk) collectAll(t *testing.T, n int) (out []driver.Received) {
	t.Helper()
	end := time.Now().Add(patience)
	for len(out) < n {
		if time.Now().After(end) {
			t.Fatalf("%d of %d messages came", len(out), n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		batch, err := k.Receive(ctx, driver.Demand{Records: n - len(out), Bytes: 1 << 30, Limit: 1 << 20})
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			kafka.Refresh(k.Consumer)
		} else if err != nil {
			t.Fatal(err)
		}
		out = append(out, batch...)
	}
	return out
}

// A reader without group sees partitions that its topic gets later, and all that is in
// them: also what came before it looked, also where it began at the end.
func TestPartitionsAddedLater(t *testing.T) {
	either(t, func(t *testing.T, b broker) {
		for _, start := range []driver.PositionKind{driver.Latest, driver.Earliest} {
			t.Run(fmt.Sprint(start), func(t *testing.T) {
				d := b.open(t)
				to := topic(t, d, driver.Stream, 1)
				publish(t, d, to, messages(2, 2))
				k := consume(t, d, to, "", startAt(driver.Position{Kind: start}))
				if start == driver.Earliest {
					k.collect(t, 2)
				}
				widen(t, b, to.Name, 3)
				publish(t, b.open(t), to, messages(30, 30)) // by a client that knows all three
				got := make(map[string]int)
				for _, m := range k.collectAll(t, 30) {
					if got[m.Receipt.Partition]++; !k.admits(m) {
						t.Errorf("%s of %s came with an epoch that is not open", m.ID, m.Receipt.Partition)
					}
				}
				if len(got) != 3 {
					t.Errorf("messages by partition: %v, want some of each of 3", got)
				}
				k.quiet(t, 2*kafka.LookEvery)
				shut(t, k)
				k.mu.Lock()
				defer k.mu.Unlock()
				if len(k.history) != 3 || len(k.open) > 0 {
					t.Errorf("%d partitions were assigned, %d not taken away at the end", len(k.history), len(k.open))
				}
			})
		}
	})
}

// Close does not wait for a broker that is asked about new partitions and is silent, and
// nothing is opened after it.
func TestCloseWhileLooking(t *testing.T) {
	t.Parallel()
	b := fake(t)
	d := b.open(t)
	to := topic(t, d, driver.Stream, 1)
	k := consume(t, d, to, "")
	asked, answer := make(chan struct{}), make(chan struct{})
	ask := sync.OnceFunc(func() { close(asked) })
	b.fake.ControlKey(int16(kmsg.ListOffsets), func(kmsg.Request) (kmsg.Response, error, bool) {
		b.fake.KeepControl()
		b.fake.SleepControl(func() { ask(); <-answer })
		return nil, nil, false
	})
	t.Cleanup(func() { close(answer) })
	widen(t, b, to.Name, 3)
	ended := make(chan error, 1)
	go func() {
		_, err := k.Receive(t.Context(), driver.Demand{Records: 1, Bytes: 1 << 20, Limit: 1})
		ended <- err
	}()
	kafka.Refresh(k.Consumer)
	<-asked
	began := time.Now()
	shut(t, k)
	wantClass(t, <-ended, driver.Closed)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("Close and Receive took %v", took)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.history) != 1 || len(k.open) > 0 {
		t.Errorf("%d partitions were assigned, %d are open after Close", len(k.history), len(k.open))
	}
}
