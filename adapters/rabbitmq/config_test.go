package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/rabbitmq"
	"github.com/varal-go/varal/core/driver"
)

func TestParseURL(t *testing.T) {
	t.Parallel()
	const base = "amqp://user:s3cr%2Fet@host:5673/my%2Fvhost"
	for _, tc := range []struct {
		in   string
		want rabbitmq.Config
		err  string // part of the text
	}{
		{in: base, want: rabbitmq.Config{URLs: []string{base}}},
		{in: "amqps://[::1]", want: rabbitmq.Config{URLs: []string{"amqps://[::1]"}}},
		{
			in: base + "?heartbeat=5s&connect_timeout=3s&publish_timeout=1m&window=10&max_bytes=1000&classic=true&priorities=3&connection_name=shop&renew=1m&balance=1s&allow_insecure=true",
			want: rabbitmq.Config{
				URLs: []string{base}, Heartbeat: 5 * time.Second, ConnectTimeout: 3 * time.Second, PublishTimeout: time.Minute, Window: 10,
				MaxBytes: 1000, Classic: true, Priorities: 3, ConnectionName: "shop", Renew: time.Minute, Balance: time.Second, AllowInsecure: true,
			},
		},
		{
			in:   "amqps://h/?ca=/ca.pem&cert=/c.pem&key=/k.pem&server_name=rabbit&insecure_skip_verify=true",
			want: rabbitmq.Config{URLs: []string{"amqps://h/"}, TLS: &rabbitmq.TLS{CA: "/ca.pem", Cert: "/c.pem", Key: "/k.pem", ServerName: "rabbit", InsecureSkipVerify: true}},
		},
		{in: base + "?windows=1", err: `unknown parameter "windows"`},
		{in: base + "?window=x", err: `parameter "window"`},
		{in: base + "?window=-1", err: `parameter "window"`},
		{in: base + "?heartbeat=5", err: `parameter "heartbeat"`},
		{in: base + "?classic=perhaps", err: `parameter "classic"`},
		{in: base + "?window=1&window=2", err: `"window" is given 2 times`},
		{in: base + "?a=%zz", err: "percent-encoding"},
		{in: "amqp://user:s3cr%2Fet@host:99999", err: "port"},
		{in: "amqp://user:s3cr%zzet@host", err: "cannot be read"},
		{in: "amqp://user:s3cr/et@host", err: "cannot be read"},
		{in: "amqp://user:s3cr%2Fet@host/a/b", err: "virtual host"},
		{in: "http://user:s3cr%2Fet@host", err: "amqp://"},
		{in: "amqp://user:s3cr%2Fet@", err: "host"},
		{in: "", err: "amqp://"},
	} {
		got, err := rabbitmq.ParseURL(tc.in)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) || strings.Contains(err.Error(), "s3cr") || !errors.Is(err, driver.Permanent) {
				t.Errorf("%s: %v, want %q and no password", tc.in, err, tc.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tc.in, err)
			continue
		}
		if g, w := show(got), show(tc.want); g != w {
			t.Errorf("%s:\n got %s\nwant %s", tc.in, g, w)
		}
	}
}

func show(c rabbitmq.Config) string {
	tls := fmt.Sprintf("%+v", c.TLS)
	c.TLS = nil
	return fmt.Sprintf("%+v %s", c, tls)
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		c   rabbitmq.Config
		err string
	}{
		{rabbitmq.Config{}, "Config.URLs"},
		{rabbitmq.Config{URLs: []string{"amqp://u:s3cret@broker.example"}}, "allow_insecure"},
		{rabbitmq.Config{URLs: []string{"amqp://u:s3cret@localhost?window=1"}}, "ParseURL"},
		{rabbitmq.Config{URLs: []string{"amqp://localhost"}, Priorities: 3}, "Config.Priorities"},
		{rabbitmq.Config{URLs: []string{"amqps://localhost"}, TLS: &rabbitmq.TLS{Cert: "x"}}, "tls.cert"},
		{rabbitmq.Config{URLs: []string{"amqp://localhost"}, Heartbeat: time.Millisecond}, "Config.Heartbeat"},
		{rabbitmq.Config{URLs: []string{"amqp://localhost"}, Window: -1}, "Config.Window"},
		{rabbitmq.Config{URLs: []string{"amqp://localhost"}, Balance: -time.Second}, "Config.Balance"},
	} {
		_, err := rabbitmq.Open(within(t, time.Second), tc.c)
		if err == nil || !errors.Is(err, driver.Permanent) || !strings.Contains(err.Error(), tc.err) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%v, want %q", err, tc.err)
		}
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent := l.Addr().String() // accepts, says nothing
	defer l.Close()
	for _, tc := range []struct {
		url   string
		class driver.Class
	}{
		{"amqp://u:s3cret@127.0.0.1:1", driver.Transient},
		{"amqp://u:s3cret@" + silent, driver.Transient},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		began := time.Now()
		_, err := rabbitmq.Open(ctx, rabbitmq.Config{URLs: []string{tc.url}})
		cancel()
		if !errors.Is(err, tc.class) || time.Since(began) > time.Second || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v after %v", tc.url, err, time.Since(began))
		}
	}
	nohost := func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.DNSError{Err: "no such host", Name: "nowhere", IsNotFound: true}
	}
	if _, err := rabbitmq.Open(within(t, time.Second), rabbitmq.Config{URLs: []string{"amqps://nowhere"}, Dial: nohost}); !errors.Is(err, driver.NotFound) {
		t.Errorf("no such host: %v", err)
	}
}

func TestDenied(t *testing.T) {
	t.Parallel()
	u := strings.TrimSuffix(brokerURL(t), "/")
	host := u[strings.LastIndex(u, "@")+1:]
	for _, raw := range []string{"amqp://guest:s3cret@" + host, "amqp://nobody:s3cret@" + host, u + "/no-such-vhost"} {
		c := config(t)
		c.URLs = []string{raw}
		_, err := rabbitmq.Open(within(t, 20*time.Second), c)
		if !errors.Is(err, driver.Denied) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

// Several URLs are tried in turn, and one that is dead, or silent, must not use up the
// time that the next one needs.
func TestSeveralURLs(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	silent := "amqp://guest:guest@" + l.Addr().String()
	const dead = "amqp://guest:guest@127.0.0.1:1"
	for _, first := range []string{dead, silent} {
		cut := &cutter{}
		c := config(t)
		c.URLs, c.Dial = []string{first, c.URLs[0]}, cut.Dial
		d, err := rabbitmq.Open(within(t, 4*time.Second), c)
		if err != nil {
			t.Fatalf("%s first: %v", first, err)
		}
		q := fresh(t, open(t), driver.Queue, 0)
		publish(t, d, q, 0, 1, nil)
		sub := subscribe(t, d, driver.Subscription{From: q})
		settle(t, sub, driver.Ack, receive(t, sub, 1, 10)...)
		cut.Cut() // and again
		eventually(t, "publishing again", 20*time.Second, func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
			defer cancel()
			return d.Publish(ctx, q, []*driver.Message{message(1, "")}) == nil
		})
		settle(t, sub, driver.Ack, receive(t, sub, 1, 10)...)
		if err := d.Close(within(t, 10*time.Second)); err != nil {
			t.Error(err)
		}
	}
	c := config(t)
	c.URLs = []string{dead, silent}
	_, err = rabbitmq.Open(within(t, time.Second), c)
	if !errors.Is(err, driver.Transient) || !strings.Contains(err.Error(), "127.0.0.1:1:") {
		t.Errorf("none is there: %v", err)
	}
}
