package brokers_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// need is the variable of a real broker, or the test is skipped; fatal where the
// broker is required.
func need(t *testing.T, broker, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		if os.Getenv("VARAL_"+strings.ToUpper(broker)+"_URL") == "" && strings.Contains(os.Getenv("VARAL_REQUIRE"), broker) {
			t.Fatalf("%s is unset, and VARAL_REQUIRE asks for %s", name, broker)
		}
		t.Skipf("%s is unset (go run ./test/brokers up %s)", name, broker)
	}
	return v
}

// trust builds a client side from the test certificates: who it trusts, and what it shows.
func trust(t *testing.T, ca, cert string) *tls.Config {
	t.Helper()
	dir := need(t, "kafka", "VARAL_TLS_DIR")
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool(), ServerName: "127.0.0.1"}
	pem, err := os.ReadFile(filepath.Join(dir, ca+".pem"))
	if err != nil {
		t.Fatal(err)
	}
	if !c.RootCAs.AppendCertsFromPEM(pem) {
		t.Fatalf("%s holds no certificate", ca)
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, cert+".pem"), filepath.Join(dir, cert+".key"))
		if err != nil {
			t.Fatal(err)
		}
		// Certificates would not do: the client shows none that the server's authorities
		// did not sign, and a wrong one would pass for no certificate.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return c
}

// Each listener does what its variable promises, and refuses what it should.
func TestKafkaListeners(t *testing.T) {
	t.Parallel()
	var (
		p     = plain.Auth{User: os.Getenv("VARAL_KAFKA_USER"), Pass: os.Getenv("VARAL_KAFKA_PASSWORD")}
		s     = scram.Auth{User: p.User, Pass: p.Pass}
		bad   = scram.Auth{User: p.User, Pass: "pineapple"}
		other = scram.Auth{User: os.Getenv("VARAL_KAFKA_USER2"), Pass: os.Getenv("VARAL_KAFKA_PASSWORD2")}
	)
	for _, c := range []struct {
		name, at string
		opts     []kgo.Opt
		want     string // part of the error; "" = served
	}{
		{"plain", "URL", nil, ""},
		{"sasl plain", "SASL_URL", []kgo.Opt{kgo.SASL(p.AsMechanism())}, ""},
		{"sasl scram", "SASL_URL", []kgo.Opt{kgo.SASL(s.AsSha512Mechanism())}, ""},
		{"second user", "SASL_URL", []kgo.Opt{kgo.SASL(other.AsSha256Mechanism())}, ""},
		{"wrong password", "SASL_URL", []kgo.Opt{kgo.SASL(bad.AsSha256Mechanism())}, "SASL_AUTHENTICATION_FAILED"},
		{"tls", "TLS_URL", []kgo.Opt{kgo.DialTLSConfig(trust(t, "ca", ""))}, ""},
		{"tls, wrong authority", "TLS_URL", []kgo.Opt{kgo.DialTLSConfig(trust(t, "wrong-ca", ""))}, "unknown authority"},
		{"tls, expired", "EXPIRED_URL", []kgo.Opt{kgo.DialTLSConfig(trust(t, "ca", ""))}, "expired"},
		{"mutual tls", "MTLS_URL", []kgo.Opt{kgo.DialTLSConfig(trust(t, "ca", "client"))}, ""},
		{"mutual tls, no certificate", "MTLS_URL", []kgo.Opt{kgo.DialTLSConfig(trust(t, "ca", ""))}, "certificate"},
		{"mutual tls, wrong certificate", "MTLS_URL", []kgo.Opt{kgo.DialTLSConfig(trust(t, "ca", "wrong-client"))}, "certificate"},
		{"scram over tls", "SASL_TLS_URL", []kgo.Opt{kgo.DialTLSConfig(trust(t, "ca", "")), kgo.SASL(s.AsSha512Mechanism())}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := metadata(t, need(t, "kafka", "VARAL_KAFKA_"+c.at), c.opts...)
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

func metadata(t *testing.T, at string, opts ...kgo.Opt) error {
	t.Helper()
	cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(strings.TrimPrefix(at, "kafka://")), kgo.RequestRetries(0))...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err = kadm.NewClient(cl).BrokerMetadata(ctx)
	return err
}

func TestRabbitMQOverTLS(t *testing.T) {
	t.Parallel()
	at := need(t, "rabbitmq", "VARAL_RABBITMQ_TLS_URL")
	if u, err := url.Parse(at); err != nil || u.Scheme != "amqps" {
		t.Fatalf("%q is not amqps (%v)", at, err)
	}
	for _, c := range []struct {
		name, ca, cert string
		ok             bool
	}{
		{"trusted", "ca", "", true},
		{"with a client certificate", "ca", "client", true},
		{"wrong authority", "wrong-ca", "", false},
		{"wrong client certificate", "ca", "wrong-client", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conn, err := amqp.DialTLS(at, trust(t, c.ca, c.cert))
			if err == nil {
				_ = conn.Close()
			}
			if (err == nil) != c.ok {
				t.Errorf("dial: %v, want served = %v", err, c.ok)
			}
		})
	}
}
