package adapters_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/adapters/internal/adaptertest"
	"github.com/varal-go/varal/core"
)

// badCase is an Open against something that is there and wrong.
type badCase struct {
	name   string
	config adapters.Config
	class  error // what the caller can branch on
}

func TestBadBrokers(t *testing.T) {
	t.Parallel()
	sasl := fakeKafka(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "varal", "right"), kfake.Superuser("SCRAM-SHA-512", "varal", "right"))
	silent := listen(t, nil)
	other, _ := authority(t)
	_, wrongCA := serverCert(t, time.Now().Add(time.Hour), "127.0.0.1")
	expiredCA, expired := serverCert(t, time.Now().Add(-time.Hour), "127.0.0.1")
	nameCA, wrongName := serverCert(t, time.Now().Add(time.Hour), "broker.example.com")
	tlsWrongCA, tlsExpired, tlsWrongName := listen(t, &wrongCA), listen(t, &expired), listen(t, &wrongName)
	pw := "varal:" + canary + "@"
	cases := []badCase{
		{"kafka: nobody listens", adapters.Config{URL: "kafka://" + closedPort(t)}, core.ErrTransient},
		{"kafka: nobody answers", adapters.Config{URL: "kafka://" + silent}, core.ErrTransient},
		{"kafka: wrong password", adapters.Config{URL: "kafka://" + pw + sasl}, core.ErrDenied},
		{"kafka: wrong password, SCRAM", adapters.Config{URL: "kafka://" + pw + sasl + "?sasl=SCRAM-SHA-512"}, core.ErrDenied},
		{"kafka: no credentials", adapters.Config{URL: "kafka://" + sasl}, core.ErrDenied},
		{"kafka: expired certificate", adapters.Config{URL: "kafkas://" + pw + tlsExpired, TLS: &adapters.TLS{CA: expiredCA}}, core.ErrDenied},
		{"kafka: unknown authority", adapters.Config{URL: "kafkas://" + pw + tlsWrongCA, TLS: &adapters.TLS{CA: other}}, core.ErrDenied},
		{"kafka: certificate of another host", adapters.Config{URL: "kafkas://" + pw + tlsWrongName, TLS: &adapters.TLS{CA: nameCA}}, core.ErrDenied},
		{"kafka: TLS where none is spoken", adapters.Config{URL: "kafkas://" + strangerKafka(t)}, nil},
		{"amqp: nobody listens", adapters.Config{URL: "amqp://" + pw + closedPort(t) + "/"}, core.ErrTransient},
		{"amqp: nobody answers", adapters.Config{URL: "amqp://" + pw + silent + "/"}, core.ErrTransient},
		{"amqp: not a RabbitMQ", adapters.Config{URL: "amqp://" + pw + strangerKafka(t) + "/"}, nil},
		{"amqp: expired certificate", adapters.Config{URL: "amqps://" + pw + tlsExpired + "/", TLS: &adapters.TLS{CA: expiredCA}}, core.ErrDenied},
		{"amqp: unknown authority", adapters.Config{URL: "amqps://" + pw + tlsWrongCA + "/", TLS: &adapters.TLS{CA: other}}, core.ErrDenied},
		{"amqp: certificate of another host", adapters.Config{URL: "amqps://" + pw + tlsWrongName + "/", TLS: &adapters.TLS{CA: nameCA}}, core.ErrDenied},
		{"redis: nobody listens", adapters.Config{URL: "redis://" + pw + closedPort(t)}, core.ErrTransient},
		{"redis: no Sentinel listens", adapters.Config{URL: "redis://" + pw + closedPort(t) + "," + closedPort(t) + "?sentinel=kitchen&sentinel_password=" + canary}, core.ErrTransient},
		{"redis: no Sentinel answers", adapters.Config{URL: "redis://" + pw + silent + "?sentinel=kitchen&sentinel_password=" + canary}, core.ErrTransient},
		{"redis: no node listens", adapters.Config{URL: "redis://" + pw + closedPort(t) + "," + closedPort(t) + "?cluster=true"}, core.ErrTransient},
		{"redis: no node answers", adapters.Config{URL: "redis://" + pw + silent + "?cluster=true"}, core.ErrTransient},
		{"redis: nobody answers", adapters.Config{URL: "redis://" + pw + silent}, core.ErrTransient},
		{"redis: not a Redis", adapters.Config{URL: "redis://" + pw + strangerKafka(t)}, nil},
		{"redis: a web server", adapters.Config{URL: "redis://" + pw + greeter(t, "HTTP/1.1 400 Bad Request\r\n\r\n")}, nil},
		{"redis: expired certificate", adapters.Config{URL: "rediss://" + pw + tlsExpired, TLS: &adapters.TLS{CA: expiredCA}}, core.ErrDenied},
		{"redis: unknown authority", adapters.Config{URL: "rediss://" + pw + tlsWrongCA, TLS: &adapters.TLS{CA: other}}, core.ErrDenied},
		{"redis: certificate of another host", adapters.Config{URL: "rediss://" + pw + tlsWrongName, TLS: &adapters.TLS{CA: nameCA}}, core.ErrDenied},
		{"redis: TLS where none is spoken", adapters.Config{URL: "rediss://" + pw + fakeRedis(t, nil)}, nil},
		{"dial fails", adapters.Config{URL: "kafka://localhost:9092", Dial: func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("no route")
		}}, core.ErrTransient},
	}
	out := make([]string, len(cases))
	var wg sync.WaitGroup
	for i, c := range cases {
		wg.Go(func() { out[i] = c.name + "\n    " + c.open(t) })
	}
	wg.Wait()
	golden(t, "bad_broker.golden", out)
}

// patience is what a case is given. Who has an answer gives it at once; a busy machine may
// take a second or two to have it.
const patience = 4 * time.Second

// inTime fails where a call did not end by its deadline.
func inTime(t *testing.T, name string, began time.Time, of time.Duration) {
	t.Helper()
	if took := time.Since(began); took > of+time.Second {
		t.Errorf("%s: took %v of %v", name, took, of)
	}
}

func (c *badCase) open(t *testing.T) string {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	start := time.Now()
	client, err := adapters.Open(ctx, c.config)
	inTime(t, c.name, start, patience)
	if err == nil {
		t.Errorf("%s: no error", c.name)
		_ = client.Close(context.WithoutCancel(ctx))
		return "no error"
	}
	if c.class != nil && !errors.Is(err, c.class) {
		t.Errorf("%s: want class %v: %v", c.name, c.class, err)
	}
	return stable(describe(t, err))
}

// stable cuts what the operating system and crypto/x509 word differently from run to
// run.
func stable(text string) string {
	for _, cut := range []string{": current time ", " (possibly because of "} {
		if i := strings.Index(text, cut); i >= 0 {
			text = text[:i] + "…"
		}
	}
	// Which of two things a client sees first at the end of its time is a race.
	return strings.NewReplacer("context deadline exceeded; EOF", "EOF", "; unable to dial: context deadline exceeded", "").Replace(text)
}

func TestMissingDestinations(t *testing.T) {
	t.Parallel()
	out := []string{}
	for _, b := range []struct {
		name, url string
		stream    error
	}{
		{"kafka", "kafka://" + fakeKafka(t), core.ErrNotFound},
		{"redis", "redis://" + fakeRedis(t, map[string]string{"HMGET": nothing}), core.ErrNotFound},
		{"sqs", sqsAt(fakeAWS(t, map[string]string{"GetQueueUrl": missingQueue})), core.ErrUnsupported}, // it has none, missing or not
		{"memory", "memory:", core.ErrNotFound},
	} {
		c, err := adapters.Open(t.Context(), adapters.Config{URL: b.url, Provision: core.ProvisionVerify})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
		for _, d := range []core.Destination{core.Queue("missing"), core.Topic("missing"), core.Stream("missing")} {
			want := core.ErrNotFound
			if d.Shape == core.ShapeStream {
				want = b.stream
			}
			err := c.Publish(t.Context(), d, &core.Message{})
			if !errors.Is(err, want) {
				t.Errorf("%s, publish to %s: %v", b.name, d, err)
			}
			out = append(out, b.name+": publish to a missing "+d.Shape.String(), "    "+describe(t, err))
			_, err = c.Start(t.Context(), core.Subscription{From: d, Group: "g"}, func(context.Context, *core.Delivery) error { return nil })
			if !errors.Is(err, want) {
				t.Errorf("%s, subscribe to %s: %v", b.name, d, err)
			}
			out = append(out, b.name+": subscribe to a missing "+d.Shape.String(), "    "+describe(t, err))
		}
	}
	golden(t, "missing.golden", out)
}

// names that some broker chokes on; see the rules of each adapter.
var names = []string{"", strings.Repeat("n", 10<<10), "..", "a/b", "a*", "a#", "a>", "a b", `a"b`, `"; DROP TABLE x`, "a\x00b", "a\nb", "\u202eabc", "🍕", strings.Repeat("n", 63), strings.Repeat("n", 64), "a.fifo", "{a}", "__consumer_offsets"}

func TestNames(t *testing.T) {
	t.Parallel()
	var out []string
	for _, url := range []string{"kafka://" + fakeKafka(t), "redis://" + fakeRedis(t, nil), sqsAt(fakeAWS(t, nil)), "memory:"} {
		provision := core.ProvisionCreate
		if strings.HasPrefix(url, "redis") || strings.HasPrefix(url, "sqs") { // the fakes have every queue
			provision = core.ProvisionNone
		}
		c, err := adapters.Open(t.Context(), adapters.Config{URL: url, Provision: provision})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
		scheme, _, _ := strings.Cut(url, ":")
		for _, n := range names {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			err := c.Publish(ctx, core.Queue(n), &core.Message{Body: []byte("x")})
			cancel()
			text := "fine"
			if err != nil {
				text = err.Error()
			}
			if len(text) > 600 {
				t.Errorf("%s, name %.20q: the error has %d bytes", url, n, len(text))
			}
			if strings.ContainsAny(text, "\x00\n\u202e") {
				t.Errorf("%s: the error carries control characters: %q", url, text)
			}
			out = append(out, scheme+" "+shortName(n), "    "+text)
		}
	}
	golden(t, "names.golden", out)
}

// TestRealBrokers asks what only a real broker answers.
func TestRealBrokers(t *testing.T) {
	for _, b := range []struct {
		broker, env string
		wrong       func(addr string) string
	}{
		{"kafka", "VARAL_KAFKA_SASL_URL", func(a string) string { return "kafka://varal:" + canary + "@" + a }},
		{"rabbitmq", "VARAL_RABBITMQ_URL", func(a string) string { return "amqp://guest:" + canary + "@" + a }},
		{"redis", "VARAL_REDIS_URL", func(a string) string { return "redis://nobody:" + canary + "@" + a }},
	} {
		t.Run(b.broker, func(t *testing.T) {
			addr := realBroker(t, b.broker, b.env)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := adapters.Open(ctx, adapters.Config{URL: b.wrong(addr)})
			if !errors.Is(err, core.ErrDenied) {
				t.Errorf("wrong password: want class denied, got %v", err)
			}
			if err != nil && strings.Contains(describe(t, err), canary) {
				t.Errorf("the password is in the error: %v", err)
			}
		})
	}
}

// realBroker returns host:port and what follows, without credentials.
func realBroker(t *testing.T, broker, env string) string {
	t.Helper()
	url := os.Getenv(env)
	if url == "" {
		if strings.Contains(os.Getenv("VARAL_REQUIRE"), broker) {
			t.Fatalf("VARAL_REQUIRE names %s and %s is not set", broker, env)
		}
		t.Skipf("%s is not set: no %s to ask", env, broker)
	}
	_, addr, _ := strings.Cut(url, "://")
	if _, after, ok := strings.Cut(addr, "@"); ok {
		addr = after
	}
	return addr
}

func shortName(n string) string {
	if len(n) > 20 {
		n = n[:20] + "…"
	}
	return strconv.QuoteToASCII(n)
}

// strangerKafka is a Kafka that is spoken to in another language: it takes the first bytes
// for the size of a request, too large for it, and closes the connection. kfake would wait
// for as many bytes, with room for all of them: 1.1 GB where the first are "AMQP".
func strangerKafka(t *testing.T) string {
	t.Helper()
	return serve(t, func(conn net.Conn) { _, _ = conn.Read(make([]byte, 16<<10)) })
}

// fakeKafka is a broker in this process.
func fakeKafka(t *testing.T, opts ...kfake.Opt) string {
	t.Helper()
	c, err := kfake.NewCluster(append(opts, kfake.NumBrokers(1), kfake.DefaultNumPartitions(1))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c.ListenAddrs()[0]
}

// closedPort is an address where nobody listens.
var closedPort = adaptertest.FreeAddr

// listen accepts connections and answers nothing, behind TLS if there is a certificate.
func listen(t *testing.T, cert *tls.Certificate) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if cert != nil {
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS12})
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = conn.Close() }()
				_, _ = conn.Read(make([]byte, 1)) // drives the handshake
				stop := context.AfterFunc(t.Context(), func() { _ = conn.Close() })
				defer stop()
				for {
					if _, err := conn.Read(make([]byte, 512)); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// authority makes a root and returns its PEM file.
func authority(t *testing.T) (file string, sign func(*x509.Certificate) tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test root"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, func(leaf *x509.Certificate) tls.Certificate {
		leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.CreateCertificate(rand.Reader, leaf, root, &leafKey.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: leafKey}
	}
}

func serverCert(t *testing.T, until time.Time, host string) (ca string, cert tls.Certificate) {
	t.Helper()
	ca, sign := authority(t)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: host}, NotBefore: time.Now().Add(-12 * time.Hour), NotAfter: until,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if ip := net.ParseIP(host); ip != nil {
		leaf.IPAddresses = []net.IP{ip}
	} else {
		leaf.DNSNames = []string{host}
	}
	return ca, sign(leaf)
}
