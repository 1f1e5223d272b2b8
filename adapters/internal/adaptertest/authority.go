package adaptertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
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
)

// Authority is a CA of the test's own, which ends an hour after it was made. Its files are in
// a folder that goes with the test: ca.pem and ca.key, and those of each certificate.
type Authority struct {
	Cert *x509.Certificate

	dir string
	key *ecdsa.PrivateKey
}

// NewAuthority has issued nothing yet.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{dir: t.TempDir()}
	a.Cert, a.key = a.sign(t, "ca", &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

// Path is that of a file of the folder.
func (a *Authority) Path(name string) string { return filepath.Join(a.dir, name) }

// Issue makes a certificate for localhost and 127.0.0.1, for servers and clients, that ends
// at until, and returns its files: name.pem and name.key.
func (a *Authority) Issue(t testing.TB, name string, until time.Time) (cert, key string) {
	t.Helper()
	a.sign(t, name, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	return a.Path(name + ".pem"), a.Path(name + ".key")
}

// sign signs by the authority; the first certificate, its own, by itself.
func (a *Authority) sign(t testing.TB, name string, what *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	parent, by := a.Cert, a.key
	if parent == nil {
		parent, by = what, key
	}
	der, err := x509.CreateCertificate(rand.Reader, what, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, name+".pem", "CERTIFICATE", der)
	a.write(t, name+".key", "EC PRIVATE KEY", raw)
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func (a *Authority) write(t testing.TB, name, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(a.Path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// GuardedURL is that of a listener of test/brokers with TLS or a login. They are there where
// the servers run as plain processes, as VARAL_TLS_DIR tells; docker-compose.yml has none,
// and the test is skipped.
func GuardedURL(t testing.TB, broker, listener string) string {
	t.Helper()
	URL(t, broker) // skips, or fails where a broker is required
	name := "VARAL_" + strings.ToUpper(broker) + "_" + listener + "_URL"
	u := os.Getenv(name)
	if u == "" {
		if os.Getenv("VARAL_TLS_DIR") != "" {
			t.Fatalf("%s is not set although test/brokers started the servers", name)
		}
		t.Skipf("%s is not set: this broker has no such listener (test/brokers without docker starts one)", name)
	}
	return u
}

// Material is a file of the authority of the guarded listeners.
func Material(name string) string { return filepath.Join(os.Getenv("VARAL_TLS_DIR"), name) }
