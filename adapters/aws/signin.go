package aws

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go/middleware"

	"github.com/varal-go/varal/adapters/internal/sdktext"
	"github.com/varal-go/varal/core/driver"
)

// signInClient is what the SDK's own chain of credentials asks its services with (STS for a
// web identity, SSO): it dials and checks certificates as the rest does. The SDK gives the
// metadata service of a machine a dialer of its own, with a timeout of a second: it is on
// the machine's own link, where no proxy leads. Credentials are fetched seldom, so no
// connection is kept, and none is left when the driver closes.
func signInClient(t *http.Transport) *awshttp.BuildableClient {
	return awshttp.NewBuildableClient().WithTransportOptions(func(own *http.Transport) {
		own.DialContext, own.DialTLSContext, own.TLSClientConfig = t.DialContext, t.DialTLSContext, t.TLSClientConfig
		own.TLSHandshakeTimeout, own.DisableKeepAlives = t.TLSHandshakeTimeout, true
	})
}

// signIn returns the credentials to sign with. It asks for them once, to find out now that
// there are none instead of with every request.
func signIn(ctx context.Context, op string, loaded sdk.Config, c *Config, client *http.Client, hide *secrets) (sdk.CredentialsProvider, error) {
	own := sdk.NewCredentialsCache(signer{loaded.Credentials, hide})
	if _, err := own.Retrieve(ctx); err != nil {
		return nil, noLogin(ctx, op, err)
	}
	if c.RoleARN == "" {
		return own, nil
	}
	loaded.Credentials = own
	role := sdk.NewCredentialsCache(signer{assume(loaded, c, client), hide})
	if _, err := role.Retrieve(ctx); err != nil {
		if login, ok := err.(*loginError); ok { //nolint:errorlint // the signer's, outermost
			err = login.err // the answer of STS, or that there was none
		}
		return nil, asked(op, fmt.Errorf("assume the role %s: %w", c.RoleARN, sdktext.Mark(err)))
	}
	return role, nil
}

func assume(loaded sdk.Config, c *Config, client *http.Client) sdk.CredentialsProvider {
	api := sts.NewFromConfig(loaded, func(o *sts.Options) { o.HTTPClient = client })
	return stscreds.NewAssumeRoleProvider(api, c.RoleARN, func(o *stscreds.AssumeRoleOptions) {
		o.RoleSessionName = c.RoleSession
		if c.ExternalID != "" {
			o.ExternalID = &c.ExternalID
		}
	})
}

// noLogin is the error of a chain of credentials that has none.
func noLogin(ctx context.Context, op string, err error) error {
	switch class, _ := classOf(err); {
	case ctx.Err() != nil:
		return &driver.Error{Op: op, Class: driver.Transient, Err: sdktext.Mark(err)}
	case class == driver.Denied:
		return classify(op, err)
	}
	return driver.Errorf(op, driver.Denied, "no credentials: set Config.AccessKeyID and SecretAccessKey, AWS_PROFILE, or give the machine or container a role: %w", sdktext.Mark(err))
}

// signer marks the errors of a credentials provider, and takes note of what it must hide.
type signer struct {
	from sdk.CredentialsProvider
	hide *secrets
}

// Retrieve implements sdk.CredentialsProvider.
func (s signer) Retrieve(ctx context.Context) (sdk.Credentials, error) {
	c, err := s.from.Retrieve(ctx)
	if err != nil {
		return c, &loginError{err}
	}
	s.hide.add(c.SecretAccessKey, c.SessionToken)
	return c, nil
}

// secrets are what no text of an error may hold: a service may quote them.
type secrets struct {
	own []string // of the Config; never forgotten, and never changed

	mu      sync.Mutex
	renewed []string // of fetched credentials, the newest last; guarded by mu
}

const (
	// shortSecret is below what AWS gives out: 40 characters, and hundreds for a token. The
	// credentials of an emulator are words such as "test", which texts may hold.
	shortSecret = 12
	// mostSecrets bounds what is remembered of credentials that are renewed by the hour.
	mostSecrets = 16
)

func newSecrets(c *Config) *secrets {
	return &secrets{own: slices.DeleteFunc([]string{c.SecretAccessKey, c.SessionToken, c.ExternalID}, isShort)}
}

func isShort(secret string) bool { return len(secret) < shortSecret }

func (s *secrets) add(some ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, secret := range some {
		if !isShort(secret) && !slices.Contains(s.own, secret) && !slices.Contains(s.renewed, secret) {
			s.renewed = append(s.renewed, secret)
		}
	}
	s.renewed = s.renewed[max(0, len(s.renewed)-mostSecrets):]
}

// hidden is text without the secrets.
func (s *secrets) hidden(text string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sdktext.Hide(text, slices.Concat(s.own, s.renewed))
}

// options makes every client of the SDK hide them in its errors.
func (s *secrets) options() []func(*middleware.Stack) error {
	return []func(*middleware.Stack) error{func(stack *middleware.Stack) error {
		return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("varalHideSecrets", func(
			ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler,
		) (middleware.InitializeOutput, middleware.Metadata, error) {
			out, meta, err := next.HandleInitialize(ctx, in)
			if err != nil {
				err = &quiet{err, s}
			}
			return out, meta, err
		}), middleware.Before)
	}}
}

// quiet is an error whose text hides secrets; errors.As reaches the SDK's own.
type quiet struct {
	err  error
	hide *secrets
}

func (q *quiet) Error() string { return q.hide.hidden(q.err.Error()) }
func (q *quiet) Unwrap() error { return q.err }

// Format keeps %+v and %#v from printing the fields.
func (q *quiet) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(q.Error())) }
