package aws_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/aws"
	"github.com/varal-go/varal/core/driver"
)

const (
	stsHost    = "sts.us-east-1.amazonaws.com"
	roleARN    = "arn:aws:iam::123456789012:role/cook"
	roleKey    = "AKIDOFTHEROLE"
	roleSecret = "the-secret/of+the/role"
	roleToken  = "the-token/of+the/role=="
)

// cloud stands for STS and for SQS, over TLS with a certificate that only its own CA
// vouches for. Whoever dials past dial, or trusts other roots, does not reach it.
type cloud struct {
	srv *httptest.Server
	ca  string

	mu      sync.Mutex
	dialled []string
	sts     []url.Values // requests to STS
	signed  []string     // by whom, STS and SQS, in order
	tokens  []string     // of SQS
	refuse  string       // STS says
}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	c := &cloud{ca: filepath.Join(t.TempDir(), "ca.pem")}
	c.srv = httptest.NewUnstartedServer(c)
	cert := certificate(t, stsHost, "sqs.us-east-1.amazonaws.com")
	c.srv.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	c.srv.StartTLS()
	t.Cleanup(c.srv.Close)
	if err := os.WriteFile(c.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// certificate vouches for itself.
func certificate(t *testing.T, hosts ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test root"}, DNSNames: hosts,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// dial leads every host here, and remembers which was asked for.
func (c *cloud) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c.mu.Lock()
	c.dialled = append(c.dialled, addr)
	c.mu.Unlock()
	var d net.Dialer
	return d.DialContext(ctx, network, c.srv.Listener.Addr().String())
}

func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, who, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	who, _, _ = strings.Cut(who, "/")
	c.signed = append(c.signed, who)
	if r.Header.Get("X-Amz-Target") != "" {
		c.tokens = append(c.tokens, r.Header.Get("X-Amz-Security-Token"))
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprintf(w, `{"__type":"com.amazonaws.sqs#AccessDenied","message":"%s with %s may not"}`, roleSecret, r.Header.Get("X-Amz-Security-Token"))
		return
	}
	if err := r.ParseForm(); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.sts = append(c.sts, r.PostForm)
	if c.refuse != "" {
		answer(w, r, http.StatusForbidden, c.refuse, "no")
		return
	}
	action := r.PostForm.Get("Action")
	_, _ = fmt.Fprintf(w, `<%[1]sResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><%[1]sResult><Credentials><AccessKeyId>%s</AccessKeyId><SecretAccessKey>%s</SecretAccessKey><SessionToken>%s</SessionToken><Expiration>%s</Expiration></Credentials></%[1]sResult></%[1]sResponse>`,
		action, roleKey, roleSecret, roleToken, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
}

func (c *cloud) config() aws.Config {
	return aws.Config{Region: "us-east-1", Dial: c.dial, TLS: &aws.TLS{CA: c.ca}, Timeout: 5 * time.Second}
}

// publish opens a driver and sends with it; SQS here refuses everybody.
func (c *cloud) publish(t *testing.T, conf aws.Config) error {
	t.Helper()
	d, err := aws.Open(within(t, 10*time.Second), conf)
	if err != nil {
		return err
	}
	defer func() {
		if err := d.Close(within(t, 5*time.Second)); err != nil {
			t.Error(err)
		}
	}()
	return d.Publish(within(t, 5*time.Second), driver.Destination{Shape: driver.Queue, Name: "q"}, some(0, 1))
}

// inRole checks that SQS was asked as the role, and that no error quotes what it may not.
func (c *cloud) inRole(t *testing.T, err error, action, signer string) {
	t.Helper()
	if driver.ClassOf(err) != driver.Denied {
		t.Fatalf("publish: %v", err)
	}
	if strings.Contains(err.Error(), roleSecret) || strings.Contains(err.Error(), roleToken) || !strings.Contains(err.Error(), "*** with *** may not") {
		t.Errorf("the error quotes a secret: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sts) != 1 || c.sts[0].Get("Action") != action || c.sts[0].Get("RoleArn") != roleARN || c.signed[0] != signer {
		t.Errorf("STS was asked %v, signed by %q", c.sts, c.signed)
	}
	if got := c.signed[len(c.signed)-1]; got != roleKey || !slices.Equal(c.tokens, []string{roleToken}) {
		t.Errorf("SQS was asked by %q with the tokens %q", got, c.tokens)
	}
	if !slices.Contains(c.dialled, stsHost+":443") {
		t.Errorf("STS was not reached through Config.Dial: %q", c.dialled)
	}
}

// TestAssumeRole: STS is asked through Dial and TLS of the Config, signed with its key, and
// SQS as the role.
func TestAssumeRole(t *testing.T) {
	t.Parallel()
	c, requests := newCloud(t), new(aws.Requests)
	conf := c.config()
	conf.AccessKeyID, conf.SecretAccessKey = "AKIDWAITER", "the-secret-of-the-waiter"
	conf.RoleARN, conf.ExternalID, conf.RoleSession, conf.Requests = roleARN, "the-external-id", "evening", requests
	c.inRole(t, c.publish(t, conf), "AssumeRole", "AKIDWAITER")
	if asked := c.sts[0]; asked.Get("ExternalId") != "the-external-id" || asked.Get("RoleSessionName") != "evening" {
		t.Errorf("STS was asked %v", asked)
	}
	if n := requests.Counts(); n["STS.AssumeRole"] != 1 {
		t.Errorf("%v", n)
	}
}

// TestRoleRefused: what STS says decides the class, and a STS that cannot be reached is no
// missing right.
func TestRoleRefused(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]driver.Class{"AccessDenied": driver.Denied, "ExpiredToken": driver.Denied, "": driver.Transient, "CA": driver.Denied} {
		c := newCloud(t)
		conf := c.config()
		conf.AccessKeyID, conf.SecretAccessKey, conf.RoleARN = "AKIDWAITER", "the-secret-of-the-waiter", roleARN
		switch c.refuse = code; code {
		case "":
			conf.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed }
		case "CA": // another authority
			c.refuse = ""
			conf.TLS = &aws.TLS{CA: newCloud(t).ca}
		}
		err := c.publish(t, conf)
		if driver.ClassOf(err) != want || !strings.Contains(err.Error(), "assume the role "+roleARN) {
			t.Errorf("%q: %v, want %v", code, err, want)
		}
		if len(c.tokens) != 0 {
			t.Errorf("%q: SQS was asked all the same", code)
		}
	}
}

// chain clears the environment of what the SDK looks for. Its tests are not parallel.
func chain(t *testing.T, set map[string]string) {
	t.Helper()
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"} {
		t.Setenv(name, "")
	}
	nowhere := filepath.Join(t.TempDir(), "none")
	t.Setenv("AWS_CONFIG_FILE", nowhere)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", nowhere)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	for name, value := range set {
		t.Setenv(name, value)
	}
}

// TestDefaultChain: credentials of the SDK's own places, where the Config has none.
func TestDefaultChain(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	shared := write("credentials", "[default]\naws_access_key_id = AKIDDEFAULT\naws_secret_access_key = a-secret-of-a-file\n"+
		"[kitchen]\naws_access_key_id = AKIDKITCHEN\naws_secret_access_key = a-secret-of-a-file\n")
	for _, tc := range []struct {
		name, profile, signer string
		env                   map[string]string
	}{
		{"environment", "", "AKIDENV", map[string]string{"AWS_ACCESS_KEY_ID": "AKIDENV", "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-environment"}},
		{"shared file", "", "AKIDDEFAULT", map[string]string{"AWS_SHARED_CREDENTIALS_FILE": shared}},
		{"profile", "kitchen", "AKIDKITCHEN", map[string]string{"AWS_SHARED_CREDENTIALS_FILE": shared}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			chain(t, tc.env)
			c := newCloud(t)
			conf := c.config()
			conf.Profile = tc.profile
			if err := c.publish(t, conf); driver.ClassOf(err) != driver.Denied || !slices.Equal(c.signed, []string{tc.signer}) {
				t.Errorf("%v, signed by %q", err, c.signed)
			}
		})
	}
	t.Run("web identity", func(t *testing.T) {
		chain(t, map[string]string{"AWS_ROLE_ARN": roleARN, "AWS_WEB_IDENTITY_TOKEN_FILE": write("token", "an-identity")})
		c := newCloud(t)
		c.inRole(t, c.publish(t, c.config()), "AssumeRoleWithWebIdentity", "")
		if got := c.sts[0].Get("WebIdentityToken"); got != "an-identity" {
			t.Errorf("the token was %q", got)
		}
	})
	t.Run("none", func(t *testing.T) {
		chain(t, nil)
		c := newCloud(t)
		if err := c.publish(t, c.config()); driver.ClassOf(err) != driver.Denied || !strings.Contains(err.Error(), "no credentials: set Config.AccessKeyID") || len(c.signed) != 0 {
			t.Errorf("%v, asked by %q", err, c.signed)
		}
	})
}

// A role's credentials are new every hour; the secrets of the Config stay hidden for all
// that.
func TestSecretsOfTheConfigStayHidden(t *testing.T) {
	t.Parallel()
	c := &aws.Config{SecretAccessKey: "key-of-the-config-0", ExternalID: "id-of-the-config-0", SessionToken: "short"}
	var fetched []string
	for i := range 100 {
		fetched = append(fetched, fmt.Sprintf("fetched-token-%03d", i))
	}
	got := aws.HideAfter(c, fetched, "key-of-the-config-0 id-of-the-config-0 fetched-token-099 fetched-token-000 short")
	if got != "*** *** *** fetched-token-000 short" {
		t.Errorf("an error would say %q", got)
	}
}
