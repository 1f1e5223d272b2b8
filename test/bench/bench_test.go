package main

import (
	"bytes"
	"compress/flate"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if arg := os.Getenv(backlogEnv); arg != "" {
		os.Exit(backlogMain(arg))
	}
	goleak.VerifyTestMain(m)
}

func TestRowNamesAreStable(t *testing.T) {
	t.Parallel()
	want := map[string][]string{
		"engine":   {"engine-unordered", "engine-unordered-single", "engine-by-key"},
		"kafka":    {"kafka-publish", "kafka-consume", "kafka-consume-by-key", "kafka-watermill-publish", "kafka-watermill-1ms"},
		"rabbitmq": {"rabbitmq-publish", "rabbitmq-publish-64", "rabbitmq-consume", "rabbitmq-watermill-publish", "rabbitmq-watermill-1ms"},
		"redis": {
			"redis-publish", "redis-publish-64", "redis-consume", "redis-watermill-consume", "redis-asynq-publish", "redis-asynq-consume",
			"redis-bullmq-publish", "redis-bullmq-consume",
		},
		"sqs": nil, // it has rows of another kind
	}
	for group, names := range want {
		var got []string
		for _, r := range groups[group]() {
			got = append(got, r.name)
		}
		if !slices.Equal(got, names) {
			t.Errorf("%s: rows %v, want %v", group, got, names)
		}
	}
}

func TestPayloadsDoNotCompress(t *testing.T) {
	t.Parallel()
	var raw, small bytes.Buffer
	src := newSource(kafkaPayload, 0)
	for range 1000 {
		body, _ := src.next()
		raw.Write(body)
	}
	w, err := flate.NewWriter(&small, flate.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(raw.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if small.Len() < raw.Len()*95/100 {
		t.Errorf("%d bytes of payload compress to %d", raw.Len(), small.Len())
	}
}

func TestSourceUsesEveryKey(t *testing.T) {
	t.Parallel()
	src, seen := newSource(8, benchKeys), map[string]int{}
	for range 3 * benchKeys {
		_, key := src.next()
		seen[key]++
	}
	for key, n := range seen {
		if n != 3 {
			t.Errorf("%s was used %d times, want 3", key, n)
		}
	}
	if len(seen) != benchKeys {
		t.Errorf("%d keys, want %d", len(seen), benchKeys)
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   []float64
		want float64
	}{{nil, 0}, {[]float64{3, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := median(c.in); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.in, got, c.want)
		}
	}
}

// fixed is a side that always measures n messages a second, and notes its turn.
func fixed(name string, n int64, turns *[]string) sampler {
	return func(context.Context, time.Duration) (measure, error) {
		*turns = append(*turns, name)
		return measure{messages: n, elapsed: time.Second}, nil
	}
}

func TestPlayAlternates(t *testing.T) {
	t.Parallel()
	var turns []string
	between, ended := 0, false
	bar, met := atLeast(2)
	res, err := play(t.Context(), row{name: "x", bar: bar, met: met, prepare: func(context.Context, time.Duration) (*match, error) {
		return &match{
			ours: fixed("ours", 300, &turns), peer: fixed("peer", 100, &turns),
			between: func(context.Context) error { between++; return nil }, end: func(context.Context) { ended = true },
		}, nil
	}}, 3, time.Second, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"ours", "peer", "peer", "ours", "ours", "peer"}; !slices.Equal(turns, want) {
		t.Errorf("turns %v, want %v", turns, want)
	}
	if between != 6 || !ended {
		t.Errorf("prepared %d times (want 6), ended %v", between, ended)
	}
	if res.Quotient != 3 || res.Min != 3 || res.Max != 3 || !res.Met || res.Ours != 300 || res.PeerRate != 100 {
		t.Errorf("%+v", res)
	}
}

func TestPlayFailsOnASilentSide(t *testing.T) {
	t.Parallel()
	var turns []string
	bar, met := atLeast(1)
	_, err := play(t.Context(), row{name: "x", bar: bar, met: met, prepare: func(context.Context, time.Duration) (*match, error) {
		return &match{ours: fixed("ours", 0, &turns), peer: fixed("peer", 100, &turns)}, nil
	}}, 1, time.Second, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "nothing went through") {
		t.Errorf("got %v", err)
	}
}

func TestPublishingStopsAtTheFirstError(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	calls := 0
	_, err := publishing(t.Context(), time.Hour, func() error { return nil }, func() (int, error) {
		if calls++; calls == 3 {
			return 0, broken
		}
		return 10, nil
	})
	if !errors.Is(err, broken) || calls != 3 {
		t.Errorf("%v after %d calls", err, calls)
	}
}

func TestMeterSkipsTheWarmUpAndEndsWithTheLast(t *testing.T) {
	t.Parallel()
	m := newMeter(1000)
	m.hits(warmUp)
	go func() { m.hits(900) }()
	got, err := m.watch(t.Context(), time.Minute)
	if err != nil || got.messages > 900 {
		t.Errorf("%+v, %v", got, err)
	}
	select {
	case <-m.all:
	default:
		t.Error("the watch ended before the last message")
	}
}

// TestPrintsARatio plays real rows for a moment: of the engine always, of a broker
// where there is one.
func TestPrintsARatio(t *testing.T) {
	for group, row := range map[string]string{"engine": "engine-by-key", "kafka": "kafka-publish", "rabbitmq": "rabbitmq-publish-64", "redis": "redis-consume"} {
		t.Run(group, func(t *testing.T) {
			needBroker(t, group)
			var out bytes.Buffer
			if err := run(t.Context(), []string{"-pairs", "1", "-seconds", "0.1", "-run", row, group}, &out, io.Discard); err != nil {
				t.Fatal(err)
			}
			var ours, peer, quotient float64
			for line := range strings.Lines(out.String()) {
				if n, _ := fmt.Sscanf(line, "ratio "+row+" %f %f %f", &ours, &peer, &quotient); n == 3 {
					if ours <= 0 || peer <= 0 || quotient <= 0 {
						t.Errorf("printed %q", line)
					}
					return
				}
			}
			t.Errorf("no ratio in\n%s", out.String())
		})
	}
}

func needBroker(t *testing.T, name string) {
	t.Helper()
	if name == "engine" || os.Getenv("VARAL_"+strings.ToUpper(name)+"_URL") != "" {
		return
	}
	if slices.Contains(strings.FieldsFunc(os.Getenv("VARAL_REQUIRE"), func(r rune) bool { return r == ',' || r == ' ' }), name) {
		t.Fatalf("VARAL_REQUIRE asks for %s and its URL is not set", name)
	}
	t.Skipf("no %s: its URL is not set", name)
}

func TestRefusesAnUnknownGroup(t *testing.T) {
	t.Parallel()
	if _, err := parse([]string{"cassandra"}, io.Discard); err == nil || !strings.Contains(err.Error(), "cassandra") {
		t.Errorf("got %v", err)
	}
}

// BenchmarkInProcess is the whole path of one message: publish, broker, handler, ack.
func BenchmarkInProcess(b *testing.B) {
	for _, side := range []struct {
		name string
		open inProcess
	}{{"varal", varalMemory}, {"watermill", goChannel}} {
		for _, c := range []struct {
			name        string
			keys, batch int
		}{{"unordered", 0, engineBatch}, {"single", 0, 1}, {"by-key", benchKeys, engineBatch}} {
			b.Run(side.name+"/"+c.name, func(b *testing.B) {
				m := newMeter(int64(b.N))
				publish, stop, err := side.open(b.Context(), newSource(kafkaPayload, c.keys), m)
				if err != nil {
					b.Fatal(err)
				}
				defer stop()
				b.ReportAllocs()
				b.ResetTimer()
				if err := flow(b.Context(), m, c.batch, publish); err != nil {
					b.Fatal(err)
				}
				m.await(b)
			})
		}
	}
}

// await waits for the last message.
func (m *meter) await(b *testing.B) {
	b.Helper()
	for end := time.Now().Add(time.Minute); m.n.Load() < m.total; time.Sleep(50 * time.Microsecond) {
		if time.Now().After(end) {
			b.Fatalf("%d of %d messages came", m.n.Load(), m.total)
		}
	}
}

// BenchmarkConsume is the consuming side alone, over a source that costs nothing.
func BenchmarkConsume(b *testing.B) {
	for _, cc := range consumeCases {
		b.Run(cc.name, func(b *testing.B) {
			m := newMeter(int64(b.N))
			stop, err := cc.start(b.Context(), m)
			if err != nil {
				b.Fatal(err)
			}
			defer stop()
			b.ReportAllocs()
			b.ResetTimer()
			m.await(b)
		})
	}
}
