package redis

import (
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/varal-go/varal/adapters/internal/urlquery"
	"github.com/varal-go/varal/core/driver"
)

// urlParams are the fields of a Config that a URL may set, by parameter.
var urlParams = map[string]func(*Config, string) error{
	"ca":                   func(c *Config, v string) error { return c.tls(func(t *TLS) { t.CA = v }) },
	"cert":                 func(c *Config, v string) error { return c.tls(func(t *TLS) { t.Cert = v }) },
	"key":                  func(c *Config, v string) error { return c.tls(func(t *TLS) { t.Key = v }) },
	"server_name":          func(c *Config, v string) error { return c.tls(func(t *TLS) { t.ServerName = v }) },
	"insecure_skip_verify": setSkipVerify,
	"allow_insecure":       func(c *Config, v string) error { return setBool(&c.AllowInsecure, v) },
	"client_name":          func(c *Config, v string) error { c.ClientName = v; return nil },
	"namespace":            func(c *Config, v string) error { c.Namespace = v; return nil },
	"lease":                func(c *Config, v string) error { return setDuration(&c.Lease, v) },
	"timeout":              func(c *Config, v string) error { return setDuration(&c.Timeout, v) },
	"connect_timeout":      func(c *Config, v string) error { return setDuration(&c.ConnectTimeout, v) },
	"max_bytes":            func(c *Config, v string) error { return setInt(&c.MaxBytes, v) },
	"require_durable":      func(c *Config, v string) error { return setBool(&c.RequireDurable, v) },
	"replicas":             func(c *Config, v string) error { return setInt(&c.Replicas, v) },
	"broadcast":            func(c *Config, v string) error { return setBool(&c.Broadcast, v) },
	"cluster":              func(c *Config, v string) error { return setBool(&c.Cluster, v) },
	"sentinel":             setSentinel,
	"sentinel_user":        func(c *Config, v string) error { c.SentinelUser = v; return nil },
	"sentinel_password":    func(c *Config, v string) error { c.SentinelPassword = v; return nil },
}

// tls sets a field of the tls block, which only rediss:// has: a certificate beside a
// plain connection would be a setting that does nothing.
func (c *Config) tls(set func(*TLS)) error {
	if c.TLS == nil {
		return errors.New("it needs rediss://")
	}
	set(c.TLS)
	return nil
}

func setSentinel(c *Config, v string) error {
	if c.Sentinel = v; v == "" {
		return errors.New("want the name that the Sentinels know the primary by")
	}
	return nil
}

func setSkipVerify(c *Config, v string) error {
	var skip bool
	if err := setBool(&skip, v); err != nil {
		return err
	}
	return c.tls(func(t *TLS) { t.InsecureSkipVerify = skip })
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

// ParseURL reads redis://user:password@host:port/db?parameter=value; rediss:// asks for
// TLS. A port left out is 6379, a database left out is 0, and a password without a user is
// written :password@. With sentinel=NAME the hosts, several of them with commas between, are
// those of Sentinels (port 26379 where it is left out); user, password and db are still
// those of the server. With cluster=true they are nodes of a Cluster. The parameters are the fields of Config and TLS in snake case. An
// unknown parameter, one given twice or one that cannot be read is an error that names it;
// no error quotes any other part of raw, which may hold a password.
func ParseURL(raw string) (Config, error) {
	c, err := parseURL(raw)
	if err != nil {
		return Config{}, driver.Errorf("parse Redis URL", driver.Permanent, "%w", err)
	}
	return c, nil
}

func parseURL(raw string) (Config, error) {
	base, query, _ := strings.Cut(raw, "?")
	base, more := cutHosts(base)
	c, first, err := parseBase(base)
	if err != nil {
		return c, err
	}
	if err := urlquery.Set(&c, query, urlParams); err != nil {
		return c, err
	}
	port := "6379"
	if c.Sentinel != "" {
		port = "26379"
	} else if len(more) > 0 && !c.Cluster {
		return c, errors.New("the URL names several hosts: add ?sentinel=NAME where they are Sentinels, or ?cluster=true where they are nodes of a Cluster")
	}
	var addrs []string
	for _, h := range append([]string{first}, more...) {
		u, err := url.Parse("redis://" + h) // each by itself: it knows no lists
		if err != nil || u.Host != h {
			return c, errors.New("after the first comma: want host:port,host:port")
		}
		addr, err := hostPort(u, port)
		if err != nil {
			return c, err
		}
		addrs = append(addrs, addr)
	}
	if c.Sentinel != "" || c.Cluster {
		c.Addrs = addrs
	} else {
		c.Addr = addrs[0]
	}
	return c, nil
}

// cutHosts takes all hosts but the first out of a URL.
func cutHosts(base string) (rest string, more []string) {
	scheme, after, ok := strings.Cut(base, "://")
	if !ok {
		return base, nil
	}
	authority, path, slash := strings.Cut(after, "/")
	at := strings.LastIndexByte(authority, '@') + 1
	hosts := strings.Split(authority[at:], ",")
	rest = scheme + "://" + authority[:at] + hosts[0]
	if slash {
		rest += "/" + path
	}
	return rest, hosts[1:]
}

// parseBase never quotes the input: url.Parse would, password and all.
func parseBase(raw string) (c Config, host string, err error) {
	u, err := url.Parse(raw)
	if err != nil {
		return c, "", errors.New("the URL cannot be read: want redis://user:password@host:port/db with reserved characters percent-encoded")
	}
	switch u.Scheme {
	case "redis":
	case "rediss":
		c.TLS = &TLS{}
	default:
		return c, "", errors.New("the URL must start with redis:// or rediss://")
	}
	if u.Fragment != "" || u.Opaque != "" {
		return c, "", errors.New("percent-encode the special characters of user and password")
	}
	if _, err := hostPort(u, "6379"); err != nil {
		return c, "", err
	}
	if u.User != nil {
		c.User = u.User.Username()
		c.Password, _ = u.User.Password()
	}
	if db := strings.TrimPrefix(u.Path, "/"); db != "" {
		if c.DB, err = strconv.Atoi(db); err != nil || c.DB < 0 {
			return c, "", errors.New("after the host comes /db, the number of the database, or nothing")
		}
	}
	return c, u.Host, nil
}

func hostPort(u *url.URL, port string) (string, error) {
	if p := u.Port(); p != "" {
		port = p
	}
	n, err := strconv.Atoi(port)
	switch {
	case u.Hostname() == "":
		return "", errors.New("the URL names no host")
	case err != nil || n < 1 || n > 65535:
		return "", errors.New("the port is not in 1..65535")
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}
