package brokers

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
	"time"
)

// TLS material of the tests, made once per set of servers. Each NAME.pem is a
// certificate and NAME.key its key (PKCS #8); NAME-both.pem holds both, as Kafka wants
// them.
//
//	ca.pem, ca.key         the authority that the servers show
//	server                 for 127.0.0.1, ::1 and localhost
//	expired                the same, but it ran out yesterday
//	client                 for mutual TLS, CN varal-client
//	wrong-ca.pem           an authority that signed none of the servers
//	wrong-client           a client certificate of that authority
const tlsStamp = "complete.v1"

func (s *site) tlsDir() string { return s.data("tls") }

// ensureTLS makes the files where they are not there. The servers read them at their
// start only, so files that exist are never replaced.
func (s *site) ensureTLS() error {
	// Two servers start at once: unlocked, each would make an authority, and one would
	// show a certificate that the other's authority signed.
	s.tlsMu.Lock()
	defer s.tlsMu.Unlock()
	dir := s.tlsDir()
	if _, err := os.Stat(filepath.Join(dir, tlsStamp)); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := makeTLS(dir, time.Now()); err != nil {
		return err
	}
	return write(filepath.Join(dir, tlsStamp), "", 0o644)
}

func makeTLS(dir string, now time.Time) error {
	const years = 10
	from, to := now.Add(-time.Hour), now.AddDate(years, 0, 0)
	ca, err := newAuthority(dir, "ca", "varal test CA", from, to)
	if err != nil {
		return err
	}
	wrong, err := newAuthority(dir, "wrong-ca", "varal wrong CA", from, to)
	if err != nil {
		return err
	}
	old := now.AddDate(0, 0, -1)
	for _, c := range []struct {
		ca       *authority
		file, cn string
		from, to time.Time
	}{
		{ca, "server", "localhost", from, to},
		{ca, "expired", "localhost", old.AddDate(-1, 0, 0), old},
		{ca, "client", "varal-client", from, to},
		{wrong, "wrong-client", "varal-client", from, to},
	} {
		if err := c.ca.issue(dir, c.file, c.cn, c.from, c.to); err != nil {
			return err
		}
	}
	return nil
}

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(dir, file, cn string, from, to time.Time) (*authority, error) {
	t := template(cn, from, to)
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert, err := sign(dir, file, t, t, key, key)
	return &authority{cert: cert, key: key}, err
}

// issue signs a certificate that serves for both ends: tests swap them freely.
func (a *authority) issue(dir, file, cn string, from, to time.Time) error {
	t := template(cn, from, to)
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	t.DNSNames = []string{"localhost"}
	t.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	_, err = sign(dir, file, t, a.cert, key, a.key)
	return err
}

func template(cn string, from, to time.Time) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: cn}, NotBefore: from, NotAfter: to}
}

func sign(dir, file string, t, parent *x509.Certificate, key, by *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, t, parent, &key.PublicKey, by)
	if err != nil {
		return nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	certPEM := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	keyPEM := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
	for name, content := range map[string]string{file + ".pem": certPEM, file + ".key": keyPEM, file + "-both.pem": keyPEM + certPEM} {
		if err := write(filepath.Join(dir, name), content, 0o644); err != nil {
			return nil, err
		}
	}
	return x509.ParseCertificate(der)
}
