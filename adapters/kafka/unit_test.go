package kafka_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/varal-go/varal/adapters/kafka"
	"github.com/varal-go/varal/core/driver"
)

func TestArmour(t *testing.T) {
	t.Parallel()
	for n := range 200 {
		for range 20 {
			b := random(n)
			got, ok := kafka.Unarmour(kafka.Armour(b))
			if ok != (n > 0) || !bytes.Equal(got, b) {
				t.Fatalf("%x became %x, %v", b, got, ok)
			}
		}
	}
	full := utf16.Encode([]rune(kafka.Armour(random(kafka.StateBytes))))
	if len(full) != 4096 {
		t.Errorf("%d bytes of state are %d UTF-16 units, want 4096", kafka.StateBytes, len(full))
	}
	for _, s := range []string{"", "a member id", "一", "一a", "⠀", "⠀一", strings.Repeat("一", 5000), "\xff"} {
		if b, ok := kafka.Unarmour(s); ok {
			t.Errorf("%.20q was read as %x", s, b)
		}
	}
}

func FuzzUnarmour(f *testing.F) {
	f.Add("一⠀")
	f.Add(kafka.Armour([]byte("state")))
	f.Fuzz(func(t *testing.T, s string) {
		if b, ok := kafka.Unarmour(s); ok && kafka.Armour(b) != s {
			t.Fatalf("%q has a second reading", s)
		}
	})
}

// FuzzDecode builds a record of any headers from the input: it must become a message.
func FuzzDecode(f *testing.F) {
	f.Add([]byte("k"), []byte("v"), "varal-id\x00x\x00varal-ttl\x00-1\x00\x00\x00varal-id\x00y", int64(1))
	f.Add([]byte(nil), []byte(nil), "", int64(-1))
	f.Fuzz(func(t *testing.T, key, value []byte, headers string, ms int64) {
		r := &kgo.Record{Key: key, Value: value, Topic: "t", Offset: 5, Timestamp: time.UnixMilli(ms)}
		parts := strings.Split(headers, "\x00")
		for i := 0; i+1 < len(parts); i += 2 {
			h := kgo.RecordHeader{Key: parts[i], Value: []byte(parts[i+1])}
			if parts[i+1] == "null" {
				h.Value = nil
			}
			r.Headers = append(r.Headers, h)
		}
		m := kafka.Decode(r)
		if m.ID == "" || m.Key != string(key) || !bytes.Equal(m.Body, value) || (m.Body == nil) != (value == nil) || m.TTL < 0 || m.Priority < 0 {
			t.Fatalf("%+v became %+v", r, m)
		}
		again := kafka.Decode(kafka.Encode("t", &m))
		if again.ID != m.ID || again.Key != m.Key || again.TTL != m.TTL || fmt.Sprint(again.Headers) != fmt.Sprint(m.Headers) {
			t.Fatalf("%+v became %+v", m, again)
		}
	})
}

func TestDecodeManyHeaders(t *testing.T) {
	t.Parallel()
	r := &kgo.Record{Headers: make([]kgo.RecordHeader, 100_000)}
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: "big", Value: make([]byte, 1<<20)})
	if m := kafka.Decode(r); len(m.Headers) != 100_001 {
		t.Fatalf("%d headers", len(m.Headers))
	}
}

// A body must not share room with its neighbour: handlers append.
func TestDecodeCapsBody(t *testing.T) {
	t.Parallel()
	buf := []byte("onetwo")
	m := kafka.Decode(&kgo.Record{Value: buf[:3]})
	_ = append(m.Body, 'X')
	if string(buf) != "onetwo" {
		t.Fatalf("appending to a body wrote into its neighbour: %s", buf)
	}
}

func TestParseURL(t *testing.T) {
	t.Parallel()
	c, err := kafka.ParseURL("kafka://us%40er:p%3A%2F%40s@a.example,b:1,[::1]:9,[::2]/?session_timeout=7s&sasl=SCRAM-SHA-512&compression=zstd&max_bytes=5&partitions=3&client_id=x")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(c.Brokers, " "); got != "a.example:9092 b:1 [::1]:9 [::2]:9092" {
		t.Errorf("brokers %s", got)
	}
	if c.SASL.User != "us@er" || c.SASL.Password != "p:/@s" || c.SASL.Mechanism != "SCRAM-SHA-512" {
		t.Errorf("%q %q %q", c.SASL.User, c.SASL.Password, c.SASL.Mechanism)
	}
	if c.SessionTimeout != 7*time.Second || c.Compression != "zstd" || c.MaxBytes != 5 || c.Partitions != 3 || c.ClientID != "x" || c.TLS != nil {
		t.Errorf("%+v", c)
	}
	if c, err = kafka.ParseURL("kafkas://h?tls_server_name=x"); err != nil || c.TLS == nil || c.TLS.ServerName != "x" {
		t.Errorf("%+v, %v", c, err)
	}
	for raw, want := range map[string]string{
		"":                              "kafka://",
		"amqp://h":                      "kafka://",
		"kafka://":                      "host 1",
		"kafka://a,,b":                  "host 2",
		"kafka://a:0":                   "host 1",
		"kafka://a:65536":               "port",
		"kafka://h/x":                   "path",
		"kafka://h?pizza=1":             `"pizza"`,
		"kafka://h?session_timeout=1d":  `"session_timeout"`,
		"kafka://h?session_timeout=-1s": `"session_timeout"`,
		"kafka://h?session_timeout=1s&session_timeout=2s": "twice",
		"kafka://h?session_timeout=9999999h":              "session_timeout",
		"kafka://h?compression=pizza":                     "compression",
		"kafka://h?sasl=PLAIN":                            `"sasl"`,
		"kafka://h?tls_ca=x":                              "kafkas://",
		"kafkas://h?tls_ca=/no/such/file":                 "tls.ca",
		"kafka://u:p@example.com":                         "allow_insecure",
		"kafka://u@h":                                     "user:password",
		"kafka://u:p@h?sasl=KERBEROS":                     "sasl.mechanism",
	} {
		if _, err := kafka.ParseURL(raw); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want something about %s", raw, err, want)
		}
	}
}

// No error and no print of a configuration shows the password, however the URL is
// broken.
func TestSecretStaysSecret(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3tC0de"
	for _, raw := range []string{
		"kafka://u:%s@h:pizza", "kafka://u:%s@", "kafka://u:%s", "kafka://u:a?%s@h", "kafka://u:a/%s@h", "kafka://u:a#%s@h",
		"kafka://u:%%zz%s@h", "%s://h", "kafka://u:%s@h?sasl=%s", "kafka://u:a&b=%s@h", "kafka://u:x%s@example.com", "kafkas://u:%s@h?tls_ca=/nope",
	} {
		raw = strings.ReplaceAll(raw, "%s", secret)
		if c, err := kafka.ParseURL(raw); err == nil {
			t.Errorf("%s was accepted: %+v", raw, c)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("the error shows the password: %v", err)
		}
	}
	c := kafka.Config{SASL: &kafka.SASL{User: "u", Password: secret}}
	for _, s := range []string{fmt.Sprintf("%v %+v %#v %s %q %x", c, c, c, c.SASL, c.SASL, *c.SASL), fmt.Sprint(*c.SASL), fmt.Sprintf("%#v", *c.SASL)} {
		if strings.Contains(s, secret) || strings.Contains(s, fmt.Sprintf("%x", secret)) {
			t.Errorf("the password is printed: %s", s)
		}
	}
	if b, _ := c.SASL.MarshalText(); bytes.Contains(b, []byte(secret)) {
		t.Errorf("the password is marshalled: %s", b)
	}
}

func FuzzParseURL(f *testing.F) {
	f.Add("kafka://u:p@h:1,[::1]:2?session_timeout=6s")
	f.Add("kafkas://h?tls_server_name=x&sasl=PLAIN")
	f.Fuzz(func(t *testing.T, raw string) {
		c, err := kafka.ParseURL(raw)
		if err == nil && len(c.Brokers) == 0 {
			t.Fatal("no brokers")
		}
		// A password planted into whatever this is must not come back.
		const secret = "q7Zp0secret"
		if _, err := kafka.ParseURL("kafka://u:" + secret + raw); err != nil && strings.Contains(err.Error(), secret) {
			t.Fatalf("shown: %v", err)
		}
	})
}

func TestCapabilities(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		d := b.open(t)
		caps := d.Capabilities(driver.Destination{Shape: driver.Topic, Name: "x", Partitions: 3})
		for _, n := range []driver.Need{driver.NeedDurable, driver.NeedReplay, driver.NeedOrdered} {
			if !caps.Has(n) {
				t.Errorf("%s is missing", n)
			}
		}
		for _, n := range []driver.Need{driver.NeedSchedule, driver.NeedDelayNack, driver.NeedLease, driver.NeedCounts, driver.NeedTTL} {
			if caps.Has(n) {
				t.Errorf("%s is claimed", n)
			}
		}
		if caps.MaxBytes != 1<<20 || caps.StateBytes != 7680 || caps.Settle != driver.UpTo {
			t.Errorf("%+v", caps)
		}
	})
}
