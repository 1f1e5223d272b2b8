package kafka_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/varal-go/varal/adapters/internal/adaptertest"
	"github.com/varal-go/varal/adapters/kafka"
	"github.com/varal-go/varal/core/driver"
)

// tryOpen opens and closes; it returns how long Open took and what it said.
func tryOpen(t *testing.T, c kafka.Config) (time.Duration, error) {
	t.Helper()
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	d, err := kafka.Open(ctx, c)
	took := time.Since(start)
	if err == nil {
		shut(t, d)
	}
	return took, err
}

func TestSASL(t *testing.T) {
	t.Parallel()
	for _, mech := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		t.Run(mech, func(t *testing.T) {
			t.Parallel()
			b := fake(t, kfake.EnableSASL(), kfake.Superuser(mech, "varal", "pizza"))
			checkSASL(t, b.conf.Brokers, mech)
		})
		t.Run(mech+" real", func(t *testing.T) {
			t.Parallel()
			checkSASL(t, listener(t, "SASL"), mech)
		})
	}
}

// checkSASL expects user varal with password pizza.
func checkSASL(t *testing.T, brokers []string, mech string) {
	t.Helper()
	conf := kafka.Config{Brokers: brokers, SASL: &kafka.SASL{Mechanism: mech, User: "varal", Password: "pizza"}}
	if _, err := tryOpen(t, conf); err != nil {
		t.Fatalf("right password: %v", err)
	}
	conf.SASL.Password = "s3cr3t"
	took, err := tryOpen(t, conf)
	wantClass(t, err, driver.Denied)
	if took > 5*time.Second || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("after %v: %v", took, err)
	}
	_, err = tryOpen(t, kafka.Config{Brokers: brokers})
	wantClass(t, err, driver.Denied)
}

// The password does not travel in the clear, whatever address a broker advertises.
func TestPlainNeedsTLS(t *testing.T) {
	t.Parallel()
	conf := kafka.Config{Brokers: []string{"192.0.2.1:9092"}, SASL: &kafka.SASL{User: "u", Password: "p"}}
	_, err := tryOpen(t, conf)
	wantClass(t, err, driver.Permanent)
	if !strings.Contains(err.Error(), "allow_insecure") {
		t.Error(err)
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	took, err := tryOpen(t, kafka.Config{Brokers: []string{l.Addr().String()}, ConnectTimeout: 2 * time.Second})
	wantClass(t, err, driver.Transient)
	if took > 2500*time.Millisecond {
		t.Errorf("took %v", took)
	}
	// Accepts and never answers.
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mute.Close() }()
	took, err = tryOpen(t, kafka.Config{Brokers: []string{mute.Addr().String()}, ConnectTimeout: time.Second})
	wantClass(t, err, driver.Transient)
	if took > 3*time.Second {
		t.Errorf("a mute broker took %v", took)
	}
	_, err = tryOpen(t, kafka.Config{Brokers: []string{"127.0.0.1:1"}, ShareGroups: true})
	wantClass(t, err, driver.Unsupported)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := adaptertest.NewAuthority(t), adaptertest.NewAuthority(t)
	certFile, keyFile := ours.Issue(t, "server", time.Now().Add(time.Hour))
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ours.Cert)
	b := fake(t, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}))
	clientCert, clientKey := ours.Issue(t, "client", time.Now().Add(time.Hour))
	good := kafka.TLS{CA: ours.Path("ca.pem"), Cert: clientCert, Key: clientKey}
	checkTLS(t, b.conf.Brokers, good, theirs.Path("ca.pem"))
}

// listener is one of the guarded listeners of test/brokers.
func listener(t *testing.T, name string) []string {
	t.Helper()
	c, err := kafka.ParseURL(adaptertest.GuardedURL(t, "kafka", name))
	if err != nil {
		t.Fatal(err)
	}
	return c.Brokers
}

func TestTLSReal(t *testing.T) {
	t.Parallel()
	addr := listener(t, "MTLS")
	good := kafka.TLS{CA: adaptertest.Material("ca.pem"), Cert: adaptertest.Material("client.pem"), Key: adaptertest.Material("client.key")}
	checkTLS(t, addr, good, adaptertest.Material("wrong-ca.pem"))
}

func TestExpiredCertificateReal(t *testing.T) {
	t.Parallel()
	took, err := tryOpen(t, kafka.Config{Brokers: listener(t, "EXPIRED"), TLS: &kafka.TLS{CA: adaptertest.Material("ca.pem")}})
	if driver.ClassOf(err) != driver.Denied || took > 5*time.Second {
		t.Errorf("%v after %v, want class Denied", err, took)
	}
}

func TestSCRAMOverTLSReal(t *testing.T) {
	t.Parallel()
	conf := kafka.Config{
		Brokers: listener(t, "SASL_TLS"), TLS: &kafka.TLS{CA: adaptertest.Material("ca.pem")},
		SASL: &kafka.SASL{Mechanism: "SCRAM-SHA-512", User: os.Getenv("VARAL_KAFKA_USER"), Password: os.Getenv("VARAL_KAFKA_PASSWORD")},
	}
	if _, err := tryOpen(t, conf); err != nil {
		t.Fatal(err)
	}
	conf.SASL.Password = "pineapple"
	if _, err := tryOpen(t, conf); driver.ClassOf(err) != driver.Denied {
		t.Errorf("wrong password: %v, want class Denied", err)
	}
}

func checkTLS(t *testing.T, brokers []string, good kafka.TLS, otherCA string) {
	t.Helper()
	if _, err := tryOpen(t, kafka.Config{Brokers: brokers, TLS: &good}); err != nil {
		t.Fatalf("right certificates: %v", err)
	}
	wrongCA, noCert, wrongName := good, good, good
	wrongCA.CA = otherCA
	noCert.Cert, noCert.Key = "", ""
	wrongName.ServerName = "pizza.example"
	for name, conf := range map[string]*kafka.TLS{"wrong CA": &wrongCA, "no client certificate": &noCert, "wrong name": &wrongName, "no TLS": nil} {
		took, err := tryOpen(t, kafka.Config{Brokers: brokers, TLS: conf})
		if driver.ClassOf(err) != driver.Denied || took > 5*time.Second {
			t.Errorf("%s: %v after %v, want class Denied", name, err, took)
		}
	}
}
