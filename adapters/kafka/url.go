package kafka

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ParseURL reads kafka://host:port,host:port?param=value&…; kafkas:// asks for TLS,
// user:password@ for SASL. A port left out is 9092; special characters of user and
// password are percent-encoded. The parameters are the fields of Config in
// snake case: client_id, session_timeout, rebalance_timeout, connect_timeout,
// assignor, instance_id, fetch_max_wait, fetch_partition_bytes, max_bytes, compression,
// partitions, replication_factor, share_groups, allow_insecure; sasl (the mechanism);
// and with kafkas:// tls_ca, tls_cert, tls_key, tls_server_name,
// tls_insecure_skip_verify.
//
// A parameter that is unknown, repeated or unreadable is an error that names it. No
// error quotes any other part of raw, which may hold a password.
func ParseURL(raw string) (Config, error) {
	c, err := parseURL(raw)
	if err != nil {
		return Config{}, fmt.Errorf("kafka url: %w", err)
	}
	return c, nil
}

func parseURL(raw string) (Config, error) {
	var c Config
	scheme, rest, ok := strings.Cut(raw, "://")
	switch {
	case ok && scheme == "kafka":
	case ok && scheme == "kafkas":
		c.TLS = new(TLS)
	default:
		return c, errors.New("it must begin with kafka:// or kafkas://")
	}
	rest, query, _ := strings.Cut(rest, "?")
	// A password with a raw ? or / would be cut in two here. Say so before any
	// part of it can be quoted as the name of a parameter.
	if strings.ContainsAny(query, "@#") || strings.Contains(rest, "#") {
		return c, errors.New("percent-encode the special characters of user and password")
	}
	if user, hosts, ok := cutLast(rest, "@"); ok {
		s, err := parseUser(user)
		if err != nil {
			return c, err
		}
		c.SASL, rest = s, hosts
	}
	hosts, path, _ := strings.Cut(rest, "/")
	if path != "" {
		return c, errors.New("there is no path in it: after the hosts comes ? or nothing")
	}
	for i, h := range strings.Split(hosts, ",") {
		addr, err := parseHost(h)
		if err != nil {
			return c, fmt.Errorf("host %d: %w", i+1, err)
		}
		c.Brokers = append(c.Brokers, addr)
	}
	if err := c.parseQuery(query); err != nil {
		return c, err
	}
	return c, c.withDefaults().check()
}

func cutLast(s, sep string) (before, after string, ok bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return "", s, false
}

func parseUser(s string) (*SASL, error) {
	user, pass, ok := strings.Cut(s, ":")
	user, err1 := url.PathUnescape(user)
	pass, err2 := url.PathUnescape(pass)
	if !ok || err1 != nil || err2 != nil || user == "" || pass == "" {
		return nil, errors.New("before @ comes user:password, special characters percent-encoded")
	}
	return &SASL{User: user, Password: pass}, nil
}

func parseHost(h string) (string, error) {
	if strings.HasPrefix(h, "[") && strings.HasSuffix(h, "]") {
		h += ":9092"
	} else if h != "" && !strings.Contains(h, ":") {
		h = net.JoinHostPort(h, "9092")
	}
	return h, checkBroker(h)
}

func (c *Config) parseQuery(query string) error {
	if query == "" {
		return nil
	}
	var seen []string
	for pair := range strings.SplitSeq(query, "&") {
		k, v, _ := strings.Cut(pair, "=")
		k, err := url.QueryUnescape(k)
		if err != nil {
			return errors.New("a parameter's name is not percent-encoded correctly")
		}
		if slices.Contains(seen, k) {
			return fmt.Errorf("parameter %q comes twice", k)
		}
		seen = append(seen, k)
		if v, err = url.QueryUnescape(v); err != nil {
			return fmt.Errorf("parameter %q is not percent-encoded correctly", k)
		}
		if err := c.set(k, v); err != nil {
			return fmt.Errorf("parameter %q: %w", k, err)
		}
	}
	return nil
}

// set stores one parameter. Its errors do not quote the value.
func (c *Config) set(name, value string) error {
	if field, ok := strings.CutPrefix(name, "tls_"); ok {
		return c.setTLS(field, value)
	}
	switch name {
	case "client_id":
		c.ClientID = value
	case "session_timeout":
		return duration(&c.SessionTimeout, value)
	case "rebalance_timeout":
		return duration(&c.RebalanceTimeout, value)
	case "assignor":
		if c.Assignor = value; value == "" {
			return errAssignor
		}
	case "instance_id":
		if c.InstanceID = value; value == "" {
			return errInstanceID
		}
	case "connect_timeout":
		return duration(&c.ConnectTimeout, value)
	case "fetch_max_wait":
		return duration(&c.FetchMaxWait, value)
	case "fetch_partition_bytes":
		return number(&c.FetchPartitionBytes, value)
	case "max_bytes":
		return number(&c.MaxBytes, value)
	case "compression":
		if c.Compression = value; value == "" {
			return errors.New("use none, gzip, snappy, lz4 or zstd")
		}
	case "partitions":
		return number(&c.Partitions, value)
	case "replication_factor":
		return number(&c.ReplicationFactor, value)
	case "share_groups":
		return boolean(&c.ShareGroups, value)
	case "allow_insecure":
		return boolean(&c.AllowInsecure, value)
	case "sasl":
		if c.SASL == nil {
			return errors.New("it needs user:password@ before the hosts")
		}
		c.SASL.Mechanism = value
	default:
		return errors.New("there is no such parameter")
	}
	return nil
}

func (c *Config) setTLS(field, value string) error {
	if c.TLS == nil {
		return errors.New("it needs kafkas://")
	}
	switch field {
	case "ca":
		c.TLS.CA = value
	case "cert":
		c.TLS.Cert = value
	case "key":
		c.TLS.Key = value
	case "server_name":
		c.TLS.ServerName = value
	case "insecure_skip_verify":
		return boolean(&c.TLS.InsecureSkipVerify, value)
	default:
		return errors.New("there is no such parameter")
	}
	return nil
}

func duration(to *time.Duration, s string) error {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return errors.New("not a positive duration such as 6s")
	}
	*to = d
	return nil
}

func number(to *int, s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n <= 0 {
		return errors.New("not a positive number")
	}
	*to = n
	return nil
}

func boolean(to *bool, s string) error {
	b, err := strconv.ParseBool(s)
	if err != nil {
		return errors.New("not true or false")
	}
	*to = b
	return nil
}
