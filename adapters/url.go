package adapters

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
)

const (
	hidden      = "***"
	unparseable = "<unparseable url>"
)

// Redact returns a broker's URL without what may be secret: user, password and
// parameters. What cannot be taken apart with certainty, a password that holds a raw @
// or / for example, becomes "<unparseable url>".
func Redact(raw string) string {
	p, ok := split(raw)
	if !ok {
		if raw == "" {
			return ""
		}
		return unparseable
	}
	return p.scheme + p.mark + p.hosts + p.path
}

// parts of a URL. url.Parse does not know several hosts.
type parts struct {
	scheme, mark   string // mark: ":" or "://"
	user, password string // as written
	hosts, path    string
	query          string
}

// split takes a URL apart, and refuses what could be read in two ways.
func split(raw string) (p parts, ok bool) {
	p.scheme = schemeOf(raw)
	rest := strings.TrimPrefix(raw, p.scheme+":")
	if p.scheme == "" || strings.ContainsFunc(raw, unfit) {
		return p, false
	}
	rest, p.query, _ = strings.Cut(rest, "?")
	if strings.ContainsAny(p.query, "@#") || strings.Contains(rest, "#") {
		return p, false // the rest of a password with a raw ? or #
	}
	p.mark = ":"
	if !strings.HasPrefix(rest, "//") {
		p.hosts = rest // memory:NAME
		return p, p.scheme == "memory" && !strings.ContainsAny(rest, "@:")
	}
	p.mark, rest = "://", rest[2:]
	authority, path, slash := strings.Cut(rest, "/")
	if slash {
		p.path = "/" + path
	}
	if strings.Contains(path, "@") || strings.Count(authority, "@") > 1 {
		return p, false
	}
	info, hosts, found := strings.Cut(authority, "@")
	if !found {
		info, hosts = "", authority
	}
	p.user, p.password, _ = strings.Cut(info, ":")
	p.hosts = hosts
	return p, !strings.Contains(p.password, ":") && validEscapes(raw) && validHosts(hosts)
}

func unfit(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"<>\\^`{|}", r) }

func validEscapes(s string) bool {
	_, err := url.PathUnescape(s)
	return err == nil
}

// validHosts holds back anything that is not host:port, because a URL whose @ was
// forgotten has its password in the place of the port.
func validHosts(hosts string) bool {
	for h := range strings.SplitSeq(hosts, ",") {
		if strings.HasPrefix(h, "[") {
			end := strings.IndexByte(h, ']')
			if end < 0 {
				return false
			}
			h = "v6" + h[end+1:]
		}
		name, port, has := strings.Cut(h, ":")
		if strings.ContainsAny(name, "[]%") || strings.ContainsAny(port, ":[]") {
			return false
		}
		if _, err := strconv.ParseUint(port, 10, 32); has && err != nil {
			return false
		}
	}
	return true
}

// schemeOf returns the scheme of a URL, "" where there is none.
func schemeOf(raw string) string {
	scheme, _, ok := strings.Cut(raw, ":")
	if !ok {
		return ""
	}
	for i, r := range scheme {
		if (r < 'a' || r > 'z') && (i == 0 || !strings.ContainsRune("0123456789+-.", r)) {
			return ""
		}
	}
	return scheme
}

// secretParameters are those of all URLs that hold a secret: the token of temporary
// credentials of AWS, and the password of Redis Sentinels.
var secretParameters = []string{"session_token", "sentinel_password"}

// secretsOf returns what of a URL must not be shown, as written and as read.
func secretsOf(raw string) (out []string) {
	p, ok := split(raw)
	if !ok {
		return nil
	}
	add := func(written string, read func(string) (string, error)) {
		if written == "" {
			return
		}
		out = append(out, written)
		if plain, err := read(written); err == nil && plain != written {
			out = append(out, plain)
		}
	}
	add(p.password, url.PathUnescape)
	for pair := range strings.SplitSeq(p.query, "&") {
		name, value, _ := strings.Cut(pair, "=")
		if plain, err := url.QueryUnescape(name); err == nil && slices.Contains(secretParameters, plain) {
			add(value, url.QueryUnescape)
		}
	}
	return out
}

// withUser puts user and password into a URL that has none.
func withUser(raw, user, password string) string {
	p, ok := split(raw)
	if !ok {
		return raw
	}
	info := escape(user)
	if password != "" {
		info += ":" + escape(password)
	}
	out := p.scheme + p.mark + info + "@" + p.hosts + p.path
	if p.query != "" {
		out += "?" + p.query
	}
	return out
}

// escape leaves nothing in s that means something in a URL.
func escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
