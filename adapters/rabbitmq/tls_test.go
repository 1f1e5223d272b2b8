package rabbitmq_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/internal/adaptertest"
	"github.com/varal-go/varal/adapters/rabbitmq"
	"github.com/varal-go/varal/core/driver"
)

// tlsFront terminates TLS in front of the real broker.
func tlsFront(t *testing.T, a *adaptertest.Authority, until time.Time, clients bool) string {
	t.Helper()
	u, err := url.Parse(brokerURL(t))
	if err != nil {
		t.Fatal(err)
	}
	cert, key := a.Issue(t, "server", until)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	conf := &tls.Config{Certificates: []tls.Certificate{pair}}
	if clients {
		conf.ClientAuth, conf.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		conf.ClientCAs.AddCert(a.Cert)
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
	good, other := adaptertest.NewAuthority(t), adaptertest.NewAuthority(t)
	cert, key := good.Issue(t, "client", time.Now().Add(time.Hour))
	oldCert, oldKey := good.Issue(t, "old", time.Now().Add(-time.Hour))
	alien, alienKey := other.Issue(t, "alien", time.Now().Add(time.Hour))
	later := time.Now().Add(time.Hour)
	plain, expired, mutual := tlsFront(t, good, later, false), tlsFront(t, good, time.Now().Add(-time.Hour), false), tlsFront(t, good, later, true)
	for _, tc := range []struct {
		name, url string
		tls       rabbitmq.TLS
		ok        bool
	}{
		{"trusted", plain, rabbitmq.TLS{CA: good.Path("ca.pem")}, true},
		{"system roots", plain, rabbitmq.TLS{}, false},
		{"wrong CA", plain, rabbitmq.TLS{CA: other.Path("ca.pem")}, false},
		{"wrong name", plain, rabbitmq.TLS{CA: good.Path("ca.pem"), ServerName: "else.example"}, false},
		{"expired server", expired, rabbitmq.TLS{CA: good.Path("ca.pem")}, false},
		{"mTLS", mutual, rabbitmq.TLS{CA: good.Path("ca.pem"), Cert: cert, Key: key}, true},
		{"mTLS, none", mutual, rabbitmq.TLS{CA: good.Path("ca.pem")}, false},
		{"mTLS, expired", mutual, rabbitmq.TLS{CA: good.Path("ca.pem"), Cert: oldCert, Key: oldKey}, false},
		{"mTLS, wrong CA", mutual, rabbitmq.TLS{CA: good.Path("ca.pem"), Cert: alien, Key: alienKey}, false},
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

// tlsListener is the amqps listener of test/brokers without its user.
func tlsListener(t *testing.T) string {
	t.Helper()
	u, err := url.Parse(adaptertest.GuardedURL(t, "rabbitmq", "TLS"))
	if err != nil {
		t.Fatal(err)
	}
	u.User = nil
	return u.String()
}

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
	good := rabbitmq.TLS{CA: adaptertest.Material("ca.pem"), Cert: adaptertest.Material("client.pem"), Key: adaptertest.Material("client.key")}
	if err := open(good); err != nil {
		t.Fatal(err)
	}
	wrongCA, alien, stranger := good, good, good
	wrongCA.CA = adaptertest.Material("wrong-ca.pem")
	alien.Cert, alien.Key = adaptertest.Material("wrong-client.pem"), adaptertest.Material("wrong-client.key")
	stranger.Cert, stranger.Key = adaptertest.Material("server.pem"), adaptertest.Material("server.key") // trusted, and no user of that name
	for name, conf := range map[string]rabbitmq.TLS{"wrong CA": wrongCA, "certificate of another CA": alien, "no such user": stranger} {
		if err := open(conf); !errors.Is(err, driver.Denied) {
			t.Errorf("%s: %v, want denied", name, err)
		}
	}
}
