package aws

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go/logging"

	"github.com/varal-go/varal/adapters/internal/sdktext"
	"github.com/varal-go/varal/core/driver"
)

// services are the clients of one broker.
type services struct {
	sqs       *sqs.Client
	sns       *sns.Client
	transport *http.Transport
	region    string
	secrets   *secrets
}

// connect reads the SDK's configuration and asks once for credentials. No service is
// called: what a plain service may ask for without harm differs from one to the next.
func connect(ctx context.Context, op string, c *Config) (*services, error) {
	transport, err := newTransport(c)
	if err != nil {
		return nil, driver.Errorf(op, driver.Permanent, "%w", err)
	}
	client := &http.Client{Transport: wholeBody{counted{transport, c.Requests}}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	hide := newSecrets(c)
	opts := []func(*config.LoadOptions) error{
		config.WithLogger(logging.Nop{}), config.WithHTTPClient(signInClient(transport)), config.WithAPIOptions(hide.options()),
	}
	if c.Region != "" {
		opts = append(opts, config.WithRegion(c.Region))
	}
	if c.Profile != "" {
		opts = append(opts, config.WithSharedConfigProfile(c.Profile))
	}
	if c.AccessKeyID != "" {
		opts = append(opts, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(c.AccessKeyID, c.SecretAccessKey, c.SessionToken)))
	}
	loaded, err := config.LoadDefaultConfig(ctx, opts...)
	switch {
	case err != nil:
		return nil, driver.Errorf(op, driver.Permanent, "the SDK's own configuration (environment, shared files): %w", sdktext.Mark(err))
	case loaded.Region == "":
		return nil, driver.Errorf(op, driver.Permanent, "no region: set Config.Region (sqs://eu-central-1), or AWS_REGION")
	}
	if loaded.Credentials, err = signIn(ctx, op, loaded, c, client, hide); err != nil {
		return nil, err
	}
	s := &services{transport: transport, region: loaded.Region, secrets: hide}
	s.sqs = sqs.NewFromConfig(loaded, func(o *sqs.Options) {
		o.HTTPClient, o.Retryer = client, sdk.NopRetryer{} // core tries again, and knows what is safe
		o.BaseEndpoint = endpoint(c.Endpoint, o.BaseEndpoint)
	})
	s.sns = sns.NewFromConfig(loaded, func(o *sns.Options) {
		o.HTTPClient, o.Retryer = client, sdk.NopRetryer{}
		o.BaseEndpoint = endpoint(c.SNSEndpoint, o.BaseEndpoint)
	})
	return s, nil
}

func endpoint(own string, other *string) *string {
	if own == "" {
		return other
	}
	return &own
}

// wholeBody gives each request a body that net/http knows to be in memory. It then writes
// head and body in one piece, and may take another connection where the idle one it chose
// turns out to be closed before a byte was written: no answer is lost by that, and without
// it such a publish would end as unknown.
type wholeBody struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (w wholeBody) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return w.next.RoundTrip(r)
	}
	data, err := io.ReadAll(r.Body)
	_ = r.Body.Close()
	if err != nil {
		return nil, &dialError{err}
	}
	r = r.WithContext(r.Context()) // a copy: a RoundTripper does not change what it was given
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	r.Body, _ = r.GetBody()
	r.ContentLength = int64(len(data))
	return w.next.RoundTrip(r)
}

// newTransport: a long poll holds its connection, so there may be many at once.
func newTransport(c *Config) (*http.Transport, error) {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		MaxIdleConnsPerHost: 64, IdleConnTimeout: 55e9, // services close idle ones after a minute
		TLSHandshakeTimeout: c.ConnectTimeout,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, c.ConnectTimeout)
			defer cancel()
			conn, err := c.Dial(ctx, network, addr)
			if err != nil {
				return nil, &dialError{err}
			}
			return conn, nil
		},
	}
	if c.TLS == nil {
		t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		return t, nil
	}
	conf, err := c.TLS.Config("")
	if err != nil {
		return nil, err
	}
	t.TLSClientConfig = conf // through an HTTP proxy
	t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return dialTLS(ctx, c, t.DialContext, network, addr)
	}
	return t, nil
}

// dialTLS reads the certificates again for each connection, so that rotated ones need no
// restart.
func dialTLS(ctx context.Context, c *Config, dial func(ctx context.Context, network, addr string) (net.Conn, error), network, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, &dialError{err}
	}
	conf, err := c.TLS.Config(host)
	if err != nil {
		return nil, &dialError{driver.Errorf("connect", driver.Permanent, "%w", err)}
	}
	conn, err := dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.ConnectTimeout)
	defer cancel()
	secure := tls.Client(conn, conf)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, &dialError{err}
	}
	return secure, nil
}
