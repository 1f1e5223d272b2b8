package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
)

// fact is one line about where and how was measured.
type fact struct{ name, value string }

// describe collects what a figure means nothing without.
func describe(_ context.Context, o options) []fact {
	facts := []fact{
		{"go", runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH},
		{"cpu", cpuModel()},
		{"cores", fmt.Sprintf("%d, GOMAXPROCS %d, shared with the brokers and whatever else runs", runtime.NumCPU(), runtime.GOMAXPROCS(0))},
		{"load", loadAverage() + " (1, 5, 15 minutes) at the start"},
		{"modules", modules()},
		{"gc", fmt.Sprintf("GOGC %s, %d MiB kept alive, for both sides", envOr("GOGC", "100"), o.ballast)},
		{"payload", fmt.Sprintf("engine and kafka %d bytes, rabbitmq %d bytes, incompressible; %d keys", kafkaPayload, rabbitPayload, benchKeys)},
		{"samples", fmt.Sprintf("%d alternating pairs of %g s, after %d messages of warm-up; figures are messages per second, QUOTIENT is the median of the pairs", o.pairs, o.seconds, warmUp)},
	}
	if slices.Contains(o.groups, "kafka") {
		facts = append(facts, fact{"kafka", envOr("VARAL_KAFKA_VERSION", "version unknown") + fmt.Sprintf(", %d partitions, replication 1, acks all, idempotent, snappy", kafkaPartitions)})
	}
	if slices.Contains(o.groups, "rabbitmq") {
		facts = append(facts, fact{"rabbitmq", envOr("VARAL_RABBITMQ_VERSION", "version unknown") + fmt.Sprintf(", quorum queue of one node, persistent, confirmed, prefetch %d", rabbitPrefetch)})
	}
	if slices.Contains(o.groups, "redis") {
		facts = append(facts, fact{"redis", envOr("VARAL_REDIS_VERSION", "version unknown") + fmt.Sprintf(", append-only file, %d bytes a message, prefetch %d", redisPayload, redisPrefetch)})
	}
	if slices.Contains(o.groups, "sqs") {
		facts = append(facts, fact{"sqs", "an emulator, version " + envOr("VARAL_SQS_VERSION", "unknown") + fmt.Sprintf(", %d bytes a message, long polls of %s, lease %s", sqsPayload, sqsWait, sqsLease)})
	}
	return facts
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(b)) {
		if name, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}

func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if f := strings.Fields(string(b)); err == nil && len(f) >= 3 {
		return strings.Join(f[:3], " ")
	}
	return "unknown"
}

// modules names the versions that were linked in.
func modules() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	want := []string{
		"github.com/ThreeDotsLabs/watermill", "github.com/ThreeDotsLabs/watermill-kafka/v3", "github.com/IBM/sarama",
		"github.com/ThreeDotsLabs/watermill-amqp/v3", "github.com/twmb/franz-go", "github.com/rabbitmq/amqp091-go",
		"github.com/redis/go-redis/v9", "github.com/ThreeDotsLabs/watermill-redisstream", "github.com/hibiken/asynq",
		"github.com/ThreeDotsLabs/watermill-aws", "github.com/aws/aws-sdk-go-v2/service/sqs",
	}
	var out []string
	for _, d := range info.Deps {
		if slices.Contains(want, d.Path) {
			out = append(out, d.Path+" "+d.Version)
		}
	}
	return strings.Join(out, ", ")
}
