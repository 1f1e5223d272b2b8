package redis_test

import (
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core/driver"
)

func TestParseURL(t *testing.T) {
	t.Parallel()
	c, err := redis.ParseURL("rediss://cook:p%40ss@redis.example/3?lease=10s&timeout=2s&connect_timeout=4s&max_bytes=1000&namespace=shop&client_name=oven&ca=ca.pem&server_name=r&allow_insecure=true&require_durable=true")
	if err != nil {
		t.Fatal(err)
	}
	want := redis.Config{
		Addr: "redis.example:6379", User: "cook", Password: "p@ss", DB: 3, TLS: &redis.TLS{CA: "ca.pem", ServerName: "r"},
		Lease: 10 * time.Second, Timeout: 2 * time.Second, ConnectTimeout: 4 * time.Second, MaxBytes: 1000,
		Namespace: "shop", ClientName: "oven", AllowInsecure: true, RequireDurable: true,
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got %v with TLS %+v, want %v", c, c.TLS, want)
	}
	if c, err = redis.ParseURL("redis://[::1]:7000"); err != nil || c.Addr != "[::1]:7000" || c.TLS != nil {
		t.Errorf("%v %v", c, err)
	}
	if c, err = redis.ParseURL("redis://:only@localhost"); err != nil || c.User != "" || c.Password != "only" {
		t.Errorf("%v %v", c, err)
	}
}

func TestParseURLWithSentinels(t *testing.T) {
	t.Parallel()
	c, err := redis.ParseURL("redis://cook:p%40ss@s1,s2:1234,[::1]/2?sentinel=kitchen&sentinel_user=guard&sentinel_password=x%2By&replicas=2")
	want := redis.Config{
		Addrs: []string{"s1:26379", "s2:1234", "[::1]:26379"}, Sentinel: "kitchen", SentinelUser: "guard", SentinelPassword: "x+y",
		User: "cook", Password: "p@ss", DB: 2, Replicas: 2,
	}
	if err != nil || !reflect.DeepEqual(c, want) {
		t.Errorf("got %v, %v; want %v", c, err, want)
	}
}

func TestParseURLOfACluster(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string][]string{
		"redis://n1:7000,n2,n3:7002?cluster=true": {"n1:7000", "n2:6379", "n3:7002"},
		"redis://n1?cluster=true":                 {"n1:6379"},
	} {
		if c, err := redis.ParseURL(raw); err != nil || !c.Cluster || !reflect.DeepEqual(c.Addrs, want) || c.Addr != "" {
			t.Errorf("%s: %v %v", raw, c, err)
		}
	}
}

func TestParseURLRefusesAndKeepsSecrets(t *testing.T) {
	t.Parallel()
	for raw, wants := range map[string]string{
		"http://u:hunter2@h":                              "redis://",
		"redis://u:hunter2@":                              "host",
		"redis://u:hunter2@h:0":                           "port",
		"redis://u:hunter2@h:x":                           "cannot be read",
		"redis://u:hunter2@h/x":                           "/db",
		"redis://u:hunter2@h,i":                           "sentinel=NAME",
		"redis://u:hunter2@h,i:x?sentinel=n":              "host:port,host:port",
		"redis://u:hunter2@h,?sentinel=n":                 "names no host",
		"redis://u:hunter2@h?replicas=0":                  "replicas",
		"redis://u:hunter2@h/-1":                          "/db",
		"redis://u:hunter2@h?nope=1":                      "nope",
		"redis://u:hunter2@h?lease=1s&lease=2s":           "lease",
		"redis://u:hunter2@h?lease=-1s":                   "lease",
		"redis://u:hunter2@h?ca=x":                        "rediss://",
		"redis://u:hun?ter2@h":                            "percent-encode",
		"redis://u:hunter2#@h":                            "",
		"redis://u:hunter2%zz@h":                          "cannot be read",
		"redis://u:hunter2@h?max_bytes=0":                 "max_bytes",
		"rediss://u:hunter2@h?insecure_skip_verify=maybe": "insecure_skip_verify",
	} {
		_, err := redis.ParseURL(raw)
		switch {
		case err == nil:
			t.Errorf("%s was taken", raw)
		case !strings.Contains(err.Error(), wants) || driver.ClassOf(err) != driver.Permanent:
			t.Errorf("%s: %v; want %q", raw, err, wants)
		case strings.Contains(err.Error(), "ter2"):
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for _, c := range []redis.Config{
		{},
		{Addr: "localhost"},
		{Addr: "h:1", User: "u"},
		{Addr: "h:1", Sentinel: "n", SentinelUser: "u"},
		{Addr: "h:1", Sentinel: "n", SentinelPassword: "hunter2"},
		{Addr: "h:1", SentinelPassword: "hunter2"},
		{Addr: "h:1", Addrs: []string{"i:1"}},
		{Addrs: []string{"localhost:1", "localhost"}, Sentinel: "n"},
		{Sentinel: "n"},
		{Cluster: true},
		{Addr: "h:1", Cluster: true, Sentinel: "n"},
		{Addr: "h:1", Cluster: true, DB: 1},
		{Addrs: []string{"h:1", "x"}, Cluster: true},
		{Addrs: []string{"localhost:1", "x:1"}, Cluster: true, Password: "hunter2"},
		{Addr: "h:1", Replicas: -1},
		{Addr: "h:1", Password: "hunter2"},
		{Addr: "h:1", DB: -1},
		{Addr: "h:1", Lease: time.Millisecond},
		{Addr: "h:1", MaxBytes: 1 << 30},
		{Addr: "h:1", Namespace: "{x}"},
		{Addr: "h:1", ClientName: "a b"},
		{Addr: "h:1", Timeout: -1},
		{Addr: "h:1", TLS: &redis.TLS{Cert: "only"}},
	} {
		_, err := redis.Open(t.Context(), c)
		if driver.ClassOf(err) != driver.Permanent {
			t.Errorf("%v gave %v", c, err)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func TestConfigPrintsNoSecret(t *testing.T) {
	t.Parallel()
	c := redis.Config{Addr: "h:1", User: "u", Password: "hunter2", Sentinel: "n", SentinelPassword: "hunter2"}
	text, _ := c.MarshalText()
	for _, s := range []string{fmt.Sprint(c), fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", c), c.LogValue().String(), string(text)} {
		if strings.Contains(s, "hunter2") || !strings.Contains(s, "h:1") {
			t.Error(s)
		}
	}
}

func TestHead(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1_700_000_000_000)
	for _, m := range []driver.Message{
		{Time: at},
		{Time: at, Type: "pizza", TTL: time.Second},
		{Time: at, Headers: []driver.Header{{Key: "a", Value: "1"}, {Key: "a"}, {Key: "b", Value: "\x00\xff\r\n"}, {Key: "l", Value: strings.Repeat("v", 5000)}}},
	} {
		got, expires, err := redis.UnpackHead(string(redis.PackHead(&m)))
		if err != nil || got.Type != m.Type || !reflect.DeepEqual(got.Headers, m.Headers) {
			t.Errorf("%+v came as %+v, %v", m, got, err)
		}
		if want := m.TTL > 0; (expires > 0) != want || want && expires != at.Add(m.TTL).UnixMilli() {
			t.Errorf("TTL %v became %d", m.TTL, expires)
		}
	}
}

func FuzzUnpackHead(f *testing.F) {
	f.Add(string(redis.PackHead(&driver.Message{Type: "x", Headers: []driver.Header{{Key: "a", Value: "b"}}})))
	f.Add("")
	f.Add("\x01\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
	f.Fuzz(func(t *testing.T, s string) {
		m, _, err := redis.UnpackHead(s)
		if err == nil && len(m.Headers) > len(s) {
			t.Errorf("%d headers out of %d bytes", len(m.Headers), len(s))
		}
	})
}

func TestARecordThatIsNotOursKeepsWhatItHolds(t *testing.T) {
	t.Parallel()
	m, err := redis.ReadRecord("1700000000000-5", "name", "margherita", "odd")
	if err == nil || string(m.Body) != "name=margherita\n" || m.ID != "1700000000000-5" || m.Time.UnixMilli() != 1_700_000_000_000 {
		t.Errorf("%+v %v", m, err)
	}
	m, err = redis.ReadRecord("1-0", "i", "x", "k", "", "h", "\x07", "d", "body", "t", "1")
	if err == nil || m.ID != "x" || !strings.Contains(string(m.Body), "d=body") {
		t.Errorf("%+v %v", m, err)
	}
}

func TestOffsets(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"0-1", "1700000000000-0", "1700000000000-1048575"} {
		if got := redis.IDOf(redis.OffsetOf(id)); got != id {
			t.Errorf("%s came back as %s", id, got)
		}
	}
	for _, id := range []string{"1700000000000-1048576", "18446744073709551615-0", "x", ""} {
		if got := redis.OffsetOf(id); got != -1 {
			t.Errorf("%q became %d", id, got)
		}
	}
	if redis.OffsetOf("1-5") >= redis.OffsetOf("1-6") || redis.OffsetOf("1-1048575") >= redis.OffsetOf("2-0") {
		t.Error("offsets do not grow with ids")
	}
	for _, c := range [][2]string{{redis.Before(5, 3), "5-2"}, {redis.Before(5, 0), "4-18446744073709551615"}, {redis.Before(0, 0), "0-0"}} {
		if c[0] != c[1] {
			t.Errorf("got %s, want %s", c[0], c[1])
		}
	}
}

func TestClasses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]driver.Class{
		"OOM command not allowed when used memory > 'maxmemory'.":                         driver.Transient,
		"ERR Error running script: @user_script: OOM command not allowed when used mem":   driver.Transient,
		"LOADING Redis is loading the dataset in memory":                                  driver.Transient,
		"READONLY You can't write against a read only replica.":                           driver.Transient,
		"WRONGPASS invalid username-password pair or user is disabled.":                   driver.Denied,
		"NOAUTH Authentication required.":                                                 driver.Denied,
		"NOPERM this user has no permissions to run the 'xadd' command":                   driver.Denied,
		"ERR AUTH <password> called without any password configured for the default user": driver.Denied,
		"WRONGTYPE Operation against a key holding the wrong kind of value":               driver.Conflict,
		"NOGROUP No such key":   driver.NotFound,
		"MOVED 1 127.0.0.1:1":   driver.Unsupported,
		"ERR syntax error":      driver.Permanent,
		"NEWSTATE it will pass": driver.Transient,
	} {
		if got := redis.ClassOf(fmt.Errorf("wrapped: %w", redis.ReplyError(text))); got != want {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
	dial := &net.OpError{Op: "dial", Err: errors.New("refused")}
	if got := redis.ClassOf(dial); got != driver.Transient {
		t.Errorf("a refused connection is %v", got)
	}
	if got := redis.ClassOf(&net.OpError{Op: "read", Err: errors.New("reset")}); got != driver.Ambiguous {
		t.Errorf("a broken connection is %v", got)
	}
	if got := redis.ClassOf(&net.DNSError{IsNotFound: true}); got != driver.NotFound {
		t.Errorf("an unknown host is %v", got)
	}
}
