package aws_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/aws"
	"github.com/varal-go/varal/core/driver"
)

func TestParseURL(t *testing.T) {
	t.Parallel()
	c, err := aws.ParseURL("sqs://AKIA:se%2Fcret@eu-central-1?endpoint=http://127.0.0.1:4566&prefix=dev-&lease=45s&wait=10s&linger=0s" +
		"&polls=4&attributes=tenant,kind&role_arn=arn:aws:iam::123456789012:role/r&external_id=x&account_id=123456789012&session_token=tok&ca=/ca.pem")
	if err != nil {
		t.Fatal(err)
	}
	if c.Region != "eu-central-1" || c.AccessKeyID != "AKIA" || c.SecretAccessKey != "se/cret" || c.SessionToken != "tok" ||
		c.Endpoint != "http://127.0.0.1:4566" || c.Prefix != "dev-" || c.Lease != 45*time.Second || c.Wait != 10*time.Second ||
		c.Linger >= 0 || c.Polls != 4 || len(c.Attributes) != 2 || c.ExternalID != "x" || c.AccountID != "123456789012" || c.TLS == nil || c.TLS.CA != "/ca.pem" {
		t.Errorf("%#v, TLS %v", c.String(), c.TLS)
	}
	if c, err := aws.ParseURL("sqs://"); err != nil || c.Region != "" || c.AccessKeyID != "" {
		t.Errorf("sqs:// alone: %v, %v", c, err)
	}
}

const secret = "s3cr3tkey"

func TestParseURLRefuses(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"http://x":                               "must start with sqs://",
		"sqs://a:" + secret + "@%zz":             "cannot be read",
		"sqs://a:" + secret + "/x@eu-west-1":     "percent-encode",
		"sqs://a:" + secret + "@localhost:4566":  "endpoint=http://host:port",
		"sqs://a:" + secret + "@sqs.example.org": "endpoint=http://host:port",
		"sqs://:" + secret + "@eu-west-1":        "key:secret@",
		"sqs://eu-west-1?colour=red":             `unknown parameter "colour"`,
		"sqs://eu-west-1?lease=1s&lease=2s":      `"lease" is given 2 times`,
		"sqs://eu-west-1?lease=" + secret:        `"lease": want a positive duration`,
		"sqs://eu-west-1?polls=-1":               `"polls": want a positive whole number`,
		"sqs://eu-west-1?linger=-1s":             `"linger": want a duration`,
		"sqs://eu-west-1?allow_insecure=perhaps": `"allow_insecure": want true or false`,
	} {
		_, err := aws.ParseURL(raw)
		switch {
		case driver.ClassOf(err) != driver.Permanent || !strings.Contains(err.Error(), want):
			t.Errorf("%s: %v, want %q", raw, err, want)
		case strings.Contains(err.Error(), secret):
			t.Errorf("%s: the error shows the secret: %v", raw, err)
		}
	}
}

func TestOpenNamesTheField(t *testing.T) {
	t.Parallel()
	good := aws.Config{Region: "us-east-1", Endpoint: "http://127.0.0.1:1", AccessKeyID: "k", SecretAccessKey: secret}
	for want, change := range map[string]func(*aws.Config){
		"Config.Endpoint: want http":                  func(c *aws.Config) { c.Endpoint = "127.0.0.1:4566" },
		"Config.Endpoint: messages would travel":      func(c *aws.Config) { c.Endpoint = "http://sqs.example.org" },
		"Config.SNSEndpoint: no user":                 func(c *aws.Config) { c.SNSEndpoint = "http://u:" + secret + "@127.0.0.1" },
		"Config.AccessKeyID and Config.SecretAccess":  func(c *aws.Config) { c.AccessKeyID = "" },
		"Config.SessionToken is set":                  func(c *aws.Config) { c.AccessKeyID, c.SecretAccessKey, c.SessionToken = "", "", secret },
		"Config.ExternalID is set without":            func(c *aws.Config) { c.ExternalID = "x" },
		"Config.RoleARN: want arn":                    func(c *aws.Config) { c.RoleARN = "admin" },
		"Config.AccountID: want the 12 digits":        func(c *aws.Config) { c.AccountID = "1234" },
		"Config.Prefix: letters":                      func(c *aws.Config) { c.Prefix = "a/b" },
		"Config.Lease: whole seconds":                 func(c *aws.Config) { c.Lease = 1500 * time.Millisecond },
		"Config.Lease: whole seconds, from 1 s to 12": func(c *aws.Config) { c.Lease = 13 * time.Hour },
		"Config.Wait: whole seconds":                  func(c *aws.Config) { c.Wait = 21 * time.Second },
		"Config.Wait must be shorter":                 func(c *aws.Config) { c.Wait, c.Lease = 10*time.Second, 10*time.Second },
		"Config.Linger: at most 1 s":                  func(c *aws.Config) { c.Linger = time.Minute },
		"Config.Timeout and Config.ConnectTimeout":    func(c *aws.Config) { c.Timeout = -1 },
		"Config.MaxBytes: 1024 to 1048576":            func(c *aws.Config) { c.MaxBytes = 2 << 20 },
		"Config.TopicMaxBytes: 1024 to 1048576":       func(c *aws.Config) { c.TopicMaxBytes = 10 },
		"Config.Polls: 1 to 100":                      func(c *aws.Config) { c.Polls = 101 },
		"Config.Attributes: at most 3":                func(c *aws.Config) { c.Attributes = []string{"a", "b", "c", "d"} },
		"Config.Attributes: a name has letters":       func(c *aws.Config) { c.Attributes = []string{"AWS.x"} },
		"tls.cert and tls.key go together":            func(c *aws.Config) { c.TLS = &aws.TLS{Cert: "x"} },
	} {
		c := good
		change(&c)
		_, err := aws.Open(t.Context(), c)
		switch {
		case driver.ClassOf(err) != driver.Permanent || !strings.Contains(err.Error(), want):
			t.Errorf("want %q, got %v", want, err)
		case strings.Contains(err.Error(), secret):
			t.Errorf("the error shows a secret: %v", err)
		}
	}
}

func TestConfigKeepsSecrets(t *testing.T) {
	t.Parallel()
	c := aws.Config{Region: "us-east-1", AccessKeyID: "k", SecretAccessKey: secret, SessionToken: secret, ExternalID: secret}
	asJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(c), fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", c), fmt.Sprintf("%q", &c), string(asJSON), c.LogValue().String()} {
		if strings.Contains(text, secret) || !strings.Contains(text, "us-east-1") {
			t.Errorf("it shows a secret or nothing: %s", text)
		}
	}
}

// TestNoCredentials: that there are none is told by Open and not by every request.
func TestNoCredentials(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"} {
		t.Setenv(name, "")
	}
	none := t.TempDir() + "/none"
	t.Setenv("AWS_CONFIG_FILE", none)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", none)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := aws.Open(ctx, aws.Config{Region: "us-east-1"})
	if driver.ClassOf(err) != driver.Denied || !strings.Contains(err.Error(), "AccessKeyID") {
		t.Errorf("no credentials: %v", err)
	}
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	if _, err = aws.Open(ctx, aws.Config{AccessKeyID: "a", SecretAccessKey: "b"}); driver.ClassOf(err) != driver.Permanent || !strings.Contains(err.Error(), "AWS_REGION") {
		t.Errorf("no region: %v", err)
	}
	t.Setenv("AWS_REGION", "eu-west-3")
	d, err := aws.Open(ctx, aws.Config{AccessKeyID: "a", SecretAccessKey: "b"})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(ctx); err != nil {
		t.Error(err)
	}
}
