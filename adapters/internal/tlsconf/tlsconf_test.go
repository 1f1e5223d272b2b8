package tlsconf_test

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/internal/adaptertest"
	"github.com/varal-go/varal/adapters/internal/tlsconf"
)

// handshake lets a client with conf talk to a server with the named certificate, and
// returns what the client saw.
func handshake(t *testing.T, a *adaptertest.Authority, server string, mtls bool, conf tlsconf.TLS) error {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(a.Path(server+".pem"), a.Path(server+".key"))
	if err != nil {
		t.Fatal(err)
	}
	sc := &tls.Config{Certificates: []tls.Certificate{pair}}
	if mtls {
		sc.ClientAuth = tls.RequireAndVerifyClientCert
		sc.ClientCAs = x509.NewCertPool()
		sc.ClientCAs.AddCert(a.Cert)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", sc)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		_, _ = c.Write([]byte("x")) // runs the handshake
	}()
	defer func() { _ = l.Close(); <-done }()
	cfg, err := conf.Config("localhost")
	if err != nil {
		t.Fatal(err)
	}
	d := net.Dialer{Timeout: 5 * time.Second}
	c, err := tls.DialWithDialer(&d, "tcp", l.Addr().String(), cfg)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_, err = c.Read(make([]byte, 1)) // a refusal of our certificate comes with the first read (TLS 1.3)
	return err
}

func TestWhatACertificateErrorIs(t *testing.T) {
	t.Parallel()
	a, other := adaptertest.NewAuthority(t), adaptertest.NewAuthority(t)
	a.Issue(t, "server", time.Now().Add(time.Hour))
	a.Issue(t, "expired", time.Now().Add(-time.Minute))
	a.Issue(t, "client", time.Now().Add(time.Hour))
	ca := a.Path("ca.pem")
	for name, tc := range map[string]struct {
		server string
		mtls   bool
		conf   tlsconf.TLS
		bad    bool
	}{
		"good":                     {"server", false, tlsconf.TLS{CA: ca}, false},
		"good mTLS":                {"server", true, tlsconf.TLS{CA: ca, Cert: a.Path("client.pem"), Key: a.Path("client.key")}, false},
		"wrong CA":                 {"server", false, tlsconf.TLS{CA: other.Path("ca.pem")}, true},
		"expired":                  {"expired", false, tlsconf.TLS{CA: ca}, true},
		"wrong name":               {"server", false, tlsconf.TLS{CA: ca, ServerName: "elsewhere"}, true},
		"no client certificate":    {"server", true, tlsconf.TLS{CA: ca}, true},
		"skip verification":        {"expired", false, tlsconf.TLS{InsecureSkipVerify: true}, false},
		"system roots do not help": {"server", false, tlsconf.TLS{}, true},
	} {
		err := handshake(t, a, tc.server, tc.mtls, tc.conf)
		if (err != nil) != tc.bad || tlsconf.IsCertificateError(err) != tc.bad {
			t.Errorf("%s: %v, certificate error %v, want %v", name, err, tlsconf.IsCertificateError(err), tc.bad)
		}
	}
}

func TestCheckNamesTheField(t *testing.T) {
	t.Parallel()
	a := adaptertest.NewAuthority(t)
	junk := a.Path("junk")
	if err := os.WriteFile(junk, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, conf := range map[string]tlsconf.TLS{
		"tls.ca":                 {CA: a.Path("missing.pem")},
		"holds no PEM":           {CA: junk},
		"tls.cert and tls.key":   {Cert: junk, Key: junk},
		"tls.cert and tls.key g": {Cert: a.Path("ca.pem")},
	} {
		if err := conf.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", conf, err, want)
		}
	}
	if err := (tlsconf.TLS{CA: a.Path("ca.pem"), Cert: a.Path("ca.pem"), Key: a.Path("ca.key")}).Check(); err != nil {
		t.Error(err)
	}
}
