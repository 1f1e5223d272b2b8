package tlsconf_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/internal/tlsconf"
)

// authority is a test CA in a folder of its own.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.key = a.newKey()
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert = a.sign("ca", tmpl, tmpl, a.key, a.key)
	return a
}

func (a *authority) newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return key
}

func (a *authority) sign(name string, tmpl, parent *x509.Certificate, key, by *ecdsa.PrivateKey) *x509.Certificate {
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".pem", "CERTIFICATE", der)
	a.write(name+".key", "EC PRIVATE KEY", raw)
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert
}

func (a *authority) write(name, kind string, der []byte) {
	if err := os.WriteFile(a.path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// issue makes a certificate for localhost that ends at notAfter.
func (a *authority) issue(name string, notAfter time.Time) {
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: notAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	a.sign(name, tmpl, a.cert, a.newKey(), a.key)
}

// handshake lets a client with conf talk to a server with the named certificate, and
// returns what the client saw.
func handshake(t *testing.T, a *authority, server string, mtls bool, conf tlsconf.TLS) error {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(a.path(server+".pem"), a.path(server+".key"))
	if err != nil {
		t.Fatal(err)
	}
	sc := &tls.Config{Certificates: []tls.Certificate{pair}}
	if mtls {
		sc.ClientAuth = tls.RequireAndVerifyClientCert
		sc.ClientCAs = x509.NewCertPool()
		sc.ClientCAs.AddCert(a.cert)
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
	a, other := newAuthority(t), newAuthority(t)
	a.issue("server", time.Now().Add(time.Hour))
	a.issue("expired", time.Now().Add(-time.Minute))
	a.issue("client", time.Now().Add(time.Hour))
	ca := a.path("ca.pem")
	for name, tc := range map[string]struct {
		server string
		mtls   bool
		conf   tlsconf.TLS
		bad    bool
	}{
		"good":                     {"server", false, tlsconf.TLS{CA: ca}, false},
		"good mTLS":                {"server", true, tlsconf.TLS{CA: ca, Cert: a.path("client.pem"), Key: a.path("client.key")}, false},
		"wrong CA":                 {"server", false, tlsconf.TLS{CA: other.path("ca.pem")}, true},
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
	a := newAuthority(t)
	junk := filepath.Join(a.dir, "junk")
	if err := os.WriteFile(junk, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, conf := range map[string]tlsconf.TLS{
		"tls.ca":                 {CA: a.path("missing.pem")},
		"holds no PEM":           {CA: junk},
		"tls.cert and tls.key":   {Cert: junk, Key: junk},
		"tls.cert and tls.key g": {Cert: a.path("ca.pem")},
	} {
		if err := conf.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", conf, err, want)
		}
	}
	if err := (tlsconf.TLS{CA: a.path("ca.pem"), Cert: a.path("ca.pem"), Key: a.path("ca.key")}).Check(); err != nil {
		t.Error(err)
	}
}
