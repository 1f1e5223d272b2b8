package kafka_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/varal-go/varal/adapters/kafka"
	"github.com/varal-go/varal/core/driver"
)

// The benchmarks put the adapter beside the raw client: same broker, topic,
// partitions, incompressible payload of 100 B, same call. Alternate them
// (-count) and compare pairs: one run alone says little.

const benchBatch = 10_000

func benchBroker(b *testing.B) broker {
	b.Helper()
	if os.Getenv("VARAL_KAFKA_URL") == "" {
		return fake(b)
	}
	return live(b)
}

func benchMessages() ([]*driver.Message, []*kgo.Record) {
	ms, rs := make([]*driver.Message, benchBatch), make([]*kgo.Record, benchBatch)
	for i := range ms {
		ms[i] = &driver.Message{ID: fmt.Sprintf("%026d", i), Key: fmt.Sprint("key", i%1000), Body: random(100), Time: time.Now()}
		rs[i] = &kgo.Record{Key: []byte(ms[i].Key), Value: ms[i].Body, Headers: []kgo.RecordHeader{{Key: driver.HeaderID, Value: []byte(ms[i].ID)}}}
	}
	return ms, rs
}

func BenchmarkPublish(b *testing.B) {
	br := benchBroker(b)
	d := br.open(b, func(c *kafka.Config) { c.Compression = "none" })
	to := topic(b, d, driver.Queue, 12)
	ms, rs := benchMessages()
	cl, err := kgo.NewClient(kgo.SeedBrokers(br.conf.Brokers...), kgo.DefaultProduceTopic(to.Name), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerLinger(0), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), kgo.MetadataMinAge(250*time.Millisecond))
	if err != nil {
		b.Fatal(err)
	}
	defer cl.Close()
	if err := cl.ProduceSync(b.Context(), rs[:1]...).FirstErr(); err != nil {
		b.Fatal(err)
	}
	publish(b, d, to, ms[:1])
	b.Run("raw", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			fresh := make([]*kgo.Record, len(rs))
			slab := make([]kgo.Record, len(rs))
			for i, r := range rs {
				slab[i] = kgo.Record{Key: r.Key, Value: r.Value, Headers: r.Headers}
				fresh[i] = &slab[i]
			}
			if err := cl.ProduceSync(b.Context(), fresh...).FirstErr(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N)*benchBatch/b.Elapsed().Seconds(), "msg/s")
	})
	b.Run("varal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := d.Publish(b.Context(), to, ms); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N)*benchBatch/b.Elapsed().Seconds(), "msg/s")
	})
}

func BenchmarkConsume(b *testing.B) {
	br := benchBroker(b)
	d := br.open(b)
	to := topic(b, d, driver.Topic, 12)
	ms, _ := benchMessages()
	const total = 100 * benchBatch
	for range total / benchBatch {
		publish(b, d, to, ms)
	}
	round := 0
	b.Run("raw", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			round++
			rawDrain(b, br, to.Name, fmt.Sprint(to.Name, "-", round), total)
		}
		b.ReportMetric(float64(b.N)*total/b.Elapsed().Seconds(), "msg/s")
	})
	b.Run("varal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			round++
			drain(b, d, to, fmt.Sprint(to.Name, "-", round), total)
		}
		b.ReportMetric(float64(b.N)*total/b.Elapsed().Seconds(), "msg/s")
	})
}

func rawDrain(b *testing.B, br broker, topic, group string, total int) {
	b.StopTimer()
	defer b.StartTimer()
	cl, err := kgo.NewClient(kgo.SeedBrokers(br.conf.Brokers...), kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group),
		kgo.DisableAutoCommit(), kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		b.Fatal(err)
	}
	defer cl.Close()
	last := time.Now()
	for n := 0; n < total; {
		f := cl.PollRecords(b.Context(), 10_000)
		if n == 0 {
			b.StartTimer() // joining is not what is measured
		}
		n += f.NumRecords()
		if time.Since(last) > 200*time.Millisecond {
			last = time.Now()
			if err := cl.CommitUncommittedOffsets(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.StopTimer()
}

func drain(b *testing.B, d driver.Driver, from driver.Destination, group string, total int) {
	b.StopTimer()
	defer b.StartTimer()
	k := consume(b, d, from, group, startAt(driver.Position{Kind: driver.Earliest}))
	last := time.Now()
	ends := make(map[string]driver.Receipt)
	for n := 0; n < total; {
		got, err := k.Receive(b.Context(), driver.Demand{Records: 10_000, Bytes: 16 << 20, Limit: 1 << 20})
		if err != nil {
			b.Fatal(err)
		}
		if n == 0 {
			b.StartTimer()
		}
		for i := range got {
			if got[i].Body == nil {
				b.Fatal("no body")
			}
		}
		n += len(got)
		for i := len(got) - 1; i >= max(0, len(got)-1); i-- {
			ends[got[i].Receipt.Partition] = got[i].Receipt
		}
		if time.Since(last) > 200*time.Millisecond {
			last = time.Now()
			batch := make([]driver.Settlement, 0, len(ends))
			for _, r := range ends {
				batch = append(batch, driver.Settlement{Receipt: r, Disposition: driver.Ack})
			}
			if err := k.Settle(b.Context(), batch); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.StopTimer()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = k.Close(ctx)
}
