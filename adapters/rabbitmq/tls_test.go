package rabbitmq_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/rabbitmq"
	"github.com/varal-go/varal/core/driver"
)

// authority is a test CA that writes PEM files.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	ca   string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, _ = x509.ParseCertificate(der)
	a.ca = a.write(t, "ca.pem", "CERTIFICATE", der)
	return a
}

func (a *authority) write(t *testing.T, name, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// issue makes a certificate that ends at until.
func (a *authority) issue(t *testing.T, name string, until time.Time) (cert, key string) {
	t.Helper()
	k, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &k.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := x509.MarshalECPrivateKey(k)
	return a.write(t, name+".pem", "CERTIFICATE", der), a.write(t, name+".key", "EC PRIVATE KEY", raw)
}

// tlsFront terminates TLS in front of the real broker.
func tlsFront(t *testing.T, a *authority, until time.Time, clients bool) string {
	t.Helper()
	u, err := url.Parse(brokerURL(t))
	if err != nil {
		t.Fatal(err)
	}
	cert, key := a.issue(t, "server", until)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	conf := &tls.Config{Certificates: []tls.Certificate{pair}}
	if clients {
		conf.ClientAuth, conf.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		conf.ClientCAs.AddCert(a.cert)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", conf)
	if err != nil {
		t.Fatal(err)
	}
	target := u.Host
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer in.Close()
				out, err := net.Dial("tcp", target)
				if err != nil {
					return
				}
				defer out.Close()
				wg.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
				_, _ = io.Copy(in, out)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	u.Scheme, u.Host = "amqps", l.Addr().String()
	return u.String()
}

func TestTLS(t *testing.T) {
	t.Parallel()
	good, other := newAuthority(t), newAuthority(t)
	cert, key := good.issue(t, "client", time.Now().Add(time.Hour))
	oldCert, oldKey := good.issue(t, "old", time.Now().Add(-time.Hour))
	alien, alienKey := other.issue(t, "alien", time.Now().Add(time.Hour))
	later := time.Now().Add(time.Hour)
	plain, expired, mutual := tlsFront(t, good, later, false), tlsFront(t, good, time.Now().Add(-time.Hour), false), tlsFront(t, good, later, true)
	for _, tc := range []struct {
		name, url string
		tls       rabbitmq.TLS
		ok        bool
	}{
		{"trusted", plain, rabbitmq.TLS{CA: good.ca}, true},
		{"system roots", plain, rabbitmq.TLS{}, false},
		{"wrong CA", plain, rabbitmq.TLS{CA: other.ca}, false},
		{"wrong name", plain, rabbitmq.TLS{CA: good.ca, ServerName: "else.example"}, false},
		{"expired server", expired, rabbitmq.TLS{CA: good.ca}, false},
		{"mTLS", mutual, rabbitmq.TLS{CA: good.ca, Cert: cert, Key: key}, true},
		{"mTLS, none", mutual, rabbitmq.TLS{CA: good.ca}, false},
		{"mTLS, expired", mutual, rabbitmq.TLS{CA: good.ca, Cert: oldCert, Key: oldKey}, false},
		{"mTLS, wrong CA", mutual, rabbitmq.TLS{CA: good.ca, Cert: alien, Key: alienKey}, false},
	} {
		d, err := rabbitmq.Open(within(t, 10*time.Second), rabbitmq.Config{URLs: []string{tc.url}, TLS: &tc.tls})
		if tc.ok {
			if err != nil {
				t.Errorf("%s: %v", tc.name, err)
				continue
			}
			if err := d.Publish(within(t, 5*time.Second), driver.Destination{Shape: driver.Queue, Name: "test.none"}, []*driver.Message{{ID: "x"}}); !errors.Is(err, driver.NotFound) {
				t.Errorf("%s: publish: %v", tc.name, err)
			}
			if err := d.Close(within(t, 5*time.Second)); err != nil {
				t.Error(err)
			}
			continue
		}
		if !errors.Is(err, driver.Denied) {
			t.Errorf("%s: %v, want denied", tc.name, err)
		}
	}
}

// tlsListener is the amqps listener of test/brokers without its user. It is there where
// the servers run as plain processes, as VARAL_TLS_DIR tells; docker-compose.yml has none.
func tlsListener(t *testing.T) string {
	t.Helper()
	brokerURL(t) // skips, or fails where a broker is required
	raw := os.Getenv("VARAL_RABBITMQ_TLS_URL")
	if raw == "" {
		if os.Getenv("VARAL_TLS_DIR") != "" {
			t.Fatal("VARAL_RABBITMQ_TLS_URL is not set although test/brokers started the servers")
		}
		t.Skip("VARAL_RABBITMQ_TLS_URL is not set: this RabbitMQ has no such listener (test/brokers without docker starts one)")
	}
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	u.User = nil
	return u.String()
}

// material is a file of the listener's test authority.
func material(name string) string { return filepath.Join(os.Getenv("VARAL_TLS_DIR"), name) }

// TestExternalLogin logs in by certificate (SASL EXTERNAL) at the real broker.
func TestExternalLogin(t *testing.T) {
	t.Parallel()
	u := tlsListener(t)
	ctl(t, "eval", `catch rabbit_auth_backend_internal:add_user(<<"varal-client">>, <<"">>, <<"tests">>), `+ // may be there from another run
		`rabbit_auth_backend_internal:set_permissions(<<"varal-client">>, <<"/">>, <<"">>, <<".*">>, <<".*">>, <<"tests">>).`)
	open := func(conf rabbitmq.TLS) error {
		d, err := rabbitmq.Open(within(t, 10*time.Second), rabbitmq.Config{URLs: []string{u}, TLS: &conf})
		if err != nil {
			return err
		}
		return d.Close(within(t, 5*time.Second))
	}
	good := rabbitmq.TLS{CA: material("ca.pem"), Cert: material("client.pem"), Key: material("client.key")}
	if err := open(good); err != nil {
		t.Fatal(err)
	}
	wrongCA, alien, stranger := good, good, good
	wrongCA.CA = material("wrong-ca.pem")
	alien.Cert, alien.Key = material("wrong-client.pem"), material("wrong-client.key")
	stranger.Cert, stranger.Key = material("server.pem"), material("server.key") // trusted, and no user of that name
	for name, conf := range map[string]rabbitmq.TLS{"wrong CA": wrongCA, "certificate of another CA": alien, "no such user": stranger} {
		if err := open(conf); !errors.Is(err, driver.Denied) {
			t.Errorf("%s: %v, want denied", name, err)
		}
	}
}
