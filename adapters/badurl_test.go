package adapters_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
)

// badURLs are refused before anything is dialled.
var badURLs = []string{
	"localhost:9092",
	"kafka",
	"kafka:",
	"://host",
	"KAFKA://host:9092",
	"http://host:80",
	"nats://u:" + canary + "@host:4222",
	"kafka://u:" + canary,
	"kafka://u:" + canary + "/x@host:9092",
	"kafka://u:" + canary + "@x@host:9092",
	"kafka://u:" + canary + "#x@host:9092",
	"kafka://u:" + canary + "?x@host:9092",
	"kafka://u:" + canary + "%zz@host:9092",
	"kafka://u:" + canary + " x@host:9092",
	"kafka://u:" + canary + "\n@host:9092",
	"kafka://host:0",
	"kafka://host:65536",
	"kafka://host:99999999999999999999",
	"kafka://host:port",
	"kafka://",
	"kafka://,",
	"kafka://host:9092/path",
	"kafka://host:9092?nope=1",
	"kafka://host:9092?client_id=a&client_id=b",
	"kafka://host:9092?session_timeout=1d",
	"kafka://host:9092?session_timeout=-1s",
	"kafka://host:9092?compression=rar",
	"kafka://host:9092?assignor=fair",
	"kafka://host:9092?assignor=",
	"kafka://host:9092?assignor=range&rebalance_timeout=6s",
	"kafka://host:9092?assignor=server&instance_id=a",
	"kafka://host:9092?assignor=server&session_timeout=1m",
	"kafka://host:9092?instance_id=",
	"kafka://host:9092?instance_id=a%2Fb",
	"kafka://u:" + canary + "@host:9092",
	"kafka://u:" + canary + "@host:9092?sasl=KERBEROS",
	"kafka://[::1:9092",
	"kafkas://host:9093?tls_ca=/does/not/exist.pem",
	"kafkas://host:9093?tls_cert=/does/not/exist.pem",
	"amqp://",
	"amqp:///",
	"amqp://u:" + canary + "@host:0/",
	"amqp://u:" + canary + "@host:65536/",
	"amqp://u:" + canary + "@host:5672/",
	"amqp://u:" + canary + "@localhost:5672/a/b",
	"amqp://u:" + canary + "@localhost:5672/?nope=1",
	"amqp://u:" + canary + "@localhost:5672/?heartbeat=1d",
	"amqp://u:" + canary + "@localhost:5672/?heartbeat=1s&heartbeat=2s",
	"amqp://u:12?" + canary + "@localhost:5672/",
	"amqp://u:" + canary + "@local%host/",
	"amqp://" + strings.Repeat("%25", 1000) + "@host:5672/",
	"amqps://u:" + canary + "@localhost:5671/?ca=/does/not/exist.pem",
	"amqp:unix:/var/run/rabbit.sock",
	"redis:",
	"redis://",
	"redis://:" + canary + "@host:0",
	"redis://:" + canary + "@host:65536",
	"redis://u:" + canary,
	"redis://u:" + canary + "@host:6379",
	"redis://:" + canary + "@host:6379/?allow_insecure=false",
	"redis://u@localhost:6379",
	"redis://u:" + canary + "@x@localhost:6379",
	"redis://u:" + canary + "@localhost:6379/first",
	"redis://u:" + canary + "@localhost:6379/-1",
	"redis://u:" + canary + "@localhost:6379/1/2",
	"redis://u:" + canary + "@localhost:6379,localhost:6380",
	"redis://u:" + canary + "@localhost:6379,localhost:6380?sentinel=",
	"redis://u:" + canary + "@localhost:26379,local host?sentinel=kitchen",
	"redis://u:" + canary + "@localhost:26379,?sentinel=kitchen",
	"redis://u:" + canary + "@localhost:26379,localhost:0?sentinel=kitchen",
	"redis://localhost:6379?sentinel_password=" + canary,
	"redis://localhost:26379?sentinel=kitchen&sentinel_user=u",
	"redis://localhost:26379,s2.example.com?sentinel=kitchen&sentinel_password=" + canary,
	"redis://localhost:6379,localhost:6380/1?cluster=true",
	"redis://localhost:6379?cluster=perhaps",
	"redis://localhost:6379?cluster=true&sentinel=kitchen",
	"redis://u:" + canary + "@localhost:6379,n2.example.com?cluster=true",
	"redis://u:" + canary + "@localhost:6379?replicas=many",
	"redis://u:" + canary + "@localhost:6379?replicas=1000",
	"redis://u:" + canary + "@localhost:6379?nope=1",
	"redis://u:" + canary + "@localhost:6379?lease=1d",
	"redis://u:" + canary + "@localhost:6379?lease=-1s",
	"redis://u:" + canary + "@localhost:6379?lease=1ms",
	"redis://u:" + canary + "@localhost:6379?lease=1s&lease=2s",
	"redis://u:" + canary + "@localhost:6379?max_bytes=1GiB",
	"redis://u:" + canary + "@localhost:6379?max_bytes=999999999999",
	"redis://u:" + canary + "@localhost:6379?namespace={a}",
	"redis://u:" + canary + "@localhost:6379?namespace=%7Ba%7D",
	"redis://u:" + canary + "@localhost:6379?client_name=a%20b",
	"redis://u:" + canary + "@localhost:6379?ca=/does/not/exist.pem",
	"redis://u:" + canary + "@localhost:6379?require_durable=often",
	"redis://u:12?" + canary + "@localhost:6379/",
	"redis+unix:///var/run/redis.sock",
	"rediss://u:" + canary + "@localhost:6380/?ca=/does/not/exist.pem",
	"rediss://u:" + canary + "@localhost:6380/?cert=/does/not/exist.pem",
	"rediss://u:" + canary + "@localhost:6380/?insecure_skip_verify=perhaps",
	"sqs:",
	"sqs://",
	"sqs://us-east-1",
	"sqs://u:" + canary,
	"sqs://u@us-east-1",
	"sqs://:" + canary + "@us-east-1",
	"sqs://u:" + canary + "@x@us-east-1",
	"sqs://u:12/" + canary + "@us-east-1",
	"sqs://u:12?" + canary + "@us-east-1",
	"sqs://u:" + canary + "@us-east-1/tickets",
	"sqs://u:" + canary + "@sqs.us-east-1.amazonaws.com",
	"sqs://u:" + canary + "@127.0.0.1:4566",
	"sqs+http://u:" + canary + "@us-east-1",
	"sqs://u:" + canary + "@us-east-1?nope=1",
	"sqs://u:" + canary + "@us-east-1?region=us-east-1",
	"sqs://u:" + canary + "@us-east-1?endpoint=127.0.0.1:4566",
	"sqs://u:" + canary + "@us-east-1?endpoint=ftp://localhost",
	"sqs://u:" + canary + "@us-east-1?endpoint=http://emulator.example.com:4566",
	"sqs://u:" + canary + "@us-east-1?endpoint=http://u:" + canary + "@localhost:4566",
	"sqs://u:" + canary + "@us-east-1?endpoint=http://u:" + canary + "%40localhost:4566",
	"sqs://u:" + canary + "@us-east-1?sns_endpoint=http://emulator.example.com:4566",
	"sqs://u:" + canary + "@us-east-1?endpoint=http://localhost:4566&ca=/does/not/exist.pem",
	"sqs://u:" + canary + "@us-east-1?lease=1d",
	"sqs://u:" + canary + "@us-east-1?lease=1500ms",
	"sqs://u:" + canary + "@us-east-1?lease=13h",
	"sqs://u:" + canary + "@us-east-1?lease=1s&lease=2s",
	"sqs://u:" + canary + "@us-east-1?wait=30s",
	"sqs://u:" + canary + "@us-east-1?lease=5s&wait=10s",
	"sqs://u:" + canary + "@us-east-1?linger=-1s",
	"sqs://u:" + canary + "@us-east-1?linger=1h",
	"sqs://u:" + canary + "@us-east-1?polls=0",
	"sqs://u:" + canary + "@us-east-1?polls=1000",
	"sqs://u:" + canary + "@us-east-1?max_bytes=1MiB",
	"sqs://u:" + canary + "@us-east-1?max_bytes=2000000",
	"sqs://u:" + canary + "@us-east-1?topic_max_bytes=1",
	"sqs://u:" + canary + "@us-east-1?attributes=a,b,c,d",
	"sqs://u:" + canary + "@us-east-1?attributes=varal-id",
	"sqs://u:" + canary + "@us-east-1?account_id=12",
	"sqs://u:" + canary + "@us-east-1?role_arn=waiter",
	"sqs://u:" + canary + "@us-east-1?external_id=x",
	"sqs://u:" + canary + "@us-east-1?prefix=a.b",
	"sqs://u:" + canary + "@us-east-1?profile=nope",
	"sqs://u:" + canary + "@us-east-1?timeout=0s",
	"sqs://u:" + canary + "@us-east-1?allow_insecure=perhaps",
	"sqs://u:" + canary + "@us-east-1?ca=/does/not/exist.pem",
	"sqs://u:" + canary + "@us-east-1?cert=/does/not/exist.pem",
	"sqs://u:" + canary + "@us-east-1?insecure_skip_verify=perhaps",
	"sqs://us-east-1?session_token=" + canary,
	"memory:?lease=1d",
	"memory:?lease=-1s",
	"memory:?lease=9999999h",
	"memory:?nope=1",
	"memory:?lease=1s&lease=2s",
	"memory://u:" + canary + "@x",
	"memory:#x",
}

func TestBadURLs(t *testing.T) {
	t.Parallel()
	var out []string
	for _, u := range badURLs {
		got := open(t, adapters.Config{URL: u})
		shown := u
		if len(shown) > 70 {
			shown = shown[:70] + "…"
		}
		shown = strings.ReplaceAll(strings.ReplaceAll(shown, canary, "SECRET"), "\n", `\n`)
		out = append(out, shown, "    "+got)
	}
	golden(t, "bad_url.golden", out)
}

// open returns the text of the error that Open must return, in time and with a class.
func open(t *testing.T, c adapters.Config) string {
	t.Helper()
	const within = 2 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	start := time.Now()
	client, err := adapters.Open(ctx, c)
	if took := time.Since(start); took > within+500*time.Millisecond {
		t.Errorf("%v: Open took %v", c, took)
	}
	if err == nil {
		t.Errorf("%v: Open succeeded", c)
		_ = client.Close(context.WithoutCancel(ctx))
		return "no error"
	}
	return describe(t, err)
}

// describe checks what every error owes its reader.
func describe(t *testing.T, err error) string {
	t.Helper()
	if _, ok := errors.AsType[*core.Error](err); !ok {
		t.Errorf("no class: %v", err)
	}
	text := err.Error()
	if strings.ContainsAny(text, "\n\r") {
		t.Errorf("more than one line: %q", text)
	}
	return text
}

func TestURLFromEnvironment(t *testing.T) {
	t.Setenv(adapters.EnvURL, "")
	got := open(t, adapters.Config{})
	if !strings.Contains(got, "Config.URL") || !strings.Contains(got, adapters.EnvURL) {
		t.Errorf("the error does not name both places: %s", got)
	}
	t.Setenv(adapters.EnvURL, "memory:")
	c, err := adapters.Open(t.Context(), adapters.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"memory:", "memory:"},
		{"memory:shared?lease=2s", "memory:shared"},
		{"kafka://a:1,b:2?client_id=x", "kafka://a:1,b:2"},
		{"kafkas://u:p@[::1]:9093", "kafkas://[::1]:9093"},
		{"amqp://u:p%40q@h/v", "amqp://h/v"},
		{"amqp://u:p@q@h/v", "<unparseable url>"},
		{"redis://:p@h:6379/2?lease=1s", "redis://h:6379/2"},
		{"rediss://u:p@q@h", "<unparseable url>"},
		{"sqs://key:a%2Fb@eu-central-1?endpoint=http://h:1&session_token=t", "sqs://eu-central-1"},
		{"sqs://?session_token=t", "sqs://"},
		{"sqs://key:a/b@eu-central-1", "<unparseable url>"},
		{"amqp://u:p/q@h/v", "<unparseable url>"},
		{"amqp://u:p", "<unparseable url>"},
		{"u:p@h", "<unparseable url>"},
	} {
		if got := adapters.Redact(c.in); got != c.want {
			t.Errorf("Redact(%q) = %q, want %q", c.in, got, c.want)
		}
	}
}

func FuzzRedact(f *testing.F) {
	for _, u := range badURLs {
		f.Add(u)
	}
	f.Fuzz(func(t *testing.T, rest string) {
		// Whatever stands around a password, it must not come through.
		for _, u := range []string{"kafka://user:" + canary + rest, "amqp://user:" + canary + "@" + rest, "amqp://user:" + rest + canary + "@host/", "redis://:" + canary + rest, "sqs://key:" + canary + rest} {
			if strings.Contains(rest, canary) || strings.Contains(rest, "@") && strings.Contains(u, "@"+canary) {
				continue // the canary is no password any more
			}
			if got := adapters.Redact(u); strings.Contains(got, canary) {
				t.Errorf("Redact(%q) = %q", u, got)
			}
		}
	})
}
