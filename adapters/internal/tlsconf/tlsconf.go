// Package tlsconf is the one tls block of every adapter's configuration.
package tlsconf

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
)

// TLS configures an encrypted connection. The zero TLS trusts the system's roots.
// Files are read again for every connection, so that a rotated certificate needs no
// restart.
type TLS struct {
	// CA is a PEM file with the roots to trust. "" = the system's.
	CA string `yaml:"ca"`
	// Cert and Key are PEM files of a client certificate (mTLS). Both or none.
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
	// ServerName to verify. "" = the host that is dialled.
	ServerName string `yaml:"server_name"`
	// InsecureSkipVerify accepts any certificate. Never outside a test.
	InsecureSkipVerify bool `yaml:"insecure_skip_verify"`
}

// Check reads the files once and names the field that is wrong.
func (t TLS) Check() error {
	if (t.Cert == "") != (t.Key == "") {
		return errors.New("tls.cert and tls.key go together: set both or none")
	}
	_, err := t.Config("")
	return err
}

// Config builds the configuration of one connection to host.
func (t TLS) Config(host string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if c.ServerName == "" {
		c.ServerName = host
	}
	c.InsecureSkipVerify = t.InsecureSkipVerify //nolint:gosec // the operator's explicit choice, logged by the adapter
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("tls.ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls.ca: %s holds no PEM certificate", t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("tls.cert and tls.key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// IsCertificateError reports whether err says that a certificate was not accepted,
// by us or by the peer: a wrong CA, a wrong name, an expired one.
func IsCertificateError(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		return true
	}
	return isRemoteAlert(err)
}

// isRemoteAlert reports whether the peer ended the handshake with an alert. Over TCP
// crypto/tls gives these no type of their own, only a net.OpError of this name; during
// a handshake that we accepted they are about our certificate or the lack of one.
func isRemoteAlert(err error) bool {
	e, ok := errors.AsType[*net.OpError](err)
	return ok && e.Op == "remote error"
}
