package aws

import (
	"errors"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/varal-go/varal/adapters/internal/urlquery"
	"github.com/varal-go/varal/core/driver"
)

// urlParams are the fields of a Config that a URL may set, by parameter.
var urlParams = map[string]func(*Config, string) error{
	"endpoint":             func(c *Config, v string) error { c.Endpoint = v; return nil },
	"sns_endpoint":         func(c *Config, v string) error { c.SNSEndpoint = v; return nil },
	"session_token":        func(c *Config, v string) error { c.SessionToken = v; return nil },
	"profile":              func(c *Config, v string) error { c.Profile = v; return nil },
	"role_arn":             func(c *Config, v string) error { c.RoleARN = v; return nil },
	"external_id":          func(c *Config, v string) error { c.ExternalID = v; return nil },
	"role_session":         func(c *Config, v string) error { c.RoleSession = v; return nil },
	"account_id":           func(c *Config, v string) error { c.AccountID = v; return nil },
	"prefix":               func(c *Config, v string) error { c.Prefix = v; return nil },
	"lease":                func(c *Config, v string) error { return setDuration(&c.Lease, v) },
	"wait":                 func(c *Config, v string) error { return setDuration(&c.Wait, v) },
	"linger":               setLinger,
	"polls":                func(c *Config, v string) error { return setInt(&c.Polls, v) },
	"max_bytes":            func(c *Config, v string) error { return setInt(&c.MaxBytes, v) },
	"topic_max_bytes":      func(c *Config, v string) error { return setInt(&c.TopicMaxBytes, v) },
	"attributes":           func(c *Config, v string) error { c.Attributes = strings.Split(v, ","); return nil },
	"ca":                   func(c *Config, v string) error { c.tls().CA = v; return nil },
	"cert":                 func(c *Config, v string) error { c.tls().Cert = v; return nil },
	"key":                  func(c *Config, v string) error { c.tls().Key = v; return nil },
	"server_name":          func(c *Config, v string) error { c.tls().ServerName = v; return nil },
	"insecure_skip_verify": func(c *Config, v string) error { return setBool(&c.tls().InsecureSkipVerify, v) },
	"allow_insecure":       func(c *Config, v string) error { return setBool(&c.AllowInsecure, v) },
	"timeout":              func(c *Config, v string) error { return setDuration(&c.Timeout, v) },
	"connect_timeout":      func(c *Config, v string) error { return setDuration(&c.ConnectTimeout, v) },
}

func (c *Config) tls() *TLS {
	if c.TLS == nil {
		c.TLS = &TLS{}
	}
	return c.TLS
}

// setLinger takes 0 for what a Config says with a negative one.
func setLinger(c *Config, v string) (err error) {
	if c.Linger, err = time.ParseDuration(v); err != nil || c.Linger < 0 {
		return errors.New("want a duration such as 5ms, or 0s for none")
	}
	if c.Linger == 0 {
		c.Linger = -1
	}
	return nil
}

func setBool(to *bool, v string) (err error) {
	if *to, err = strconv.ParseBool(v); err != nil {
		return errors.New("want true or false")
	}
	return nil
}

func setInt(to *int, v string) (err error) {
	if *to, err = strconv.Atoi(v); err != nil || *to <= 0 {
		return errors.New("want a positive whole number")
	}
	return nil
}

func setDuration(to *time.Duration, v string) (err error) {
	if *to, err = time.ParseDuration(v); err != nil || *to <= 0 {
		return errors.New("want a positive duration such as 30s")
	}
	return nil
}

// ParseURL reads sqs://key:secret@region?parameter=value. Region and credentials may be
// left out: then they are the SDK's own (sqs:// alone is complete on a machine of AWS). An
// emulator is sqs://test:test@us-east-1?endpoint=http://127.0.0.1:4566. The parameters are
// the fields of Config and TLS in snake case. An unknown parameter, one given twice or one
// that cannot be read is an error that names it; no error quotes any other part of raw,
// which may hold a secret.
func ParseURL(raw string) (Config, error) {
	const op = "parse SQS URL"
	base, query, _ := strings.Cut(raw, "?")
	c, err := parseBase(base)
	if err != nil {
		return Config{}, driver.Errorf(op, driver.Permanent, "%w", err)
	}
	if err := urlquery.Set(&c, query, urlParams); err != nil {
		return Config{}, driver.Errorf(op, driver.Permanent, "%w", err)
	}
	return c, nil
}

// cutLast is strings.Cut at the last sep; all of s is after it where there is none.
func cutLast(s, sep string) (before, after string) {
	i := strings.LastIndex(s, sep)
	return s[:max(i, 0)], s[i+1:]
}

// parseBase never quotes the input: url.Parse would, secret and all.
func parseBase(raw string) (Config, error) {
	var c Config
	u, err := url.Parse(raw)
	switch _, hosts := cutLast(raw, "@"); {
	case strings.Contains(hosts, ","):
		return c, errors.New("several hosts: SQS has one region a URL and a queue lives in one; write one region, and open a client for each other")
	case err != nil:
		return c, errors.New("the URL cannot be read: want sqs://key:secret@region with reserved characters percent-encoded (a secret often holds / and +)")
	case u.Scheme != "sqs":
		return c, errors.New("the URL must start with sqs://")
	case u.Fragment != "" || u.Opaque != "" || strings.Trim(u.Path, "/") != "":
		return c, errors.New("after the region comes ?parameter=value or nothing; percent-encode the / of a secret")
	case u.Port() != "" || strings.Contains(u.Hostname(), "."):
		return c, errors.New("the host of the URL is a region such as eu-central-1; a server of your own goes into endpoint=http://host:port")
	}
	c.Region = u.Hostname()
	if u.User != nil {
		c.AccessKeyID = u.User.Username()
		c.SecretAccessKey, _ = u.User.Password()
		if c.AccessKeyID == "" || c.SecretAccessKey == "" {
			return c, errors.New("credentials are written key:secret@")
		}
	}
	return c, nil
}
