// Package urlquery reads the parameters of a broker's URL into its Config.
package urlquery

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Set sets the fields of c that query, the part of a URL behind its first ?, names. An
// unknown parameter, one given twice or one that cannot be read is an error that names it.
// No error quotes anything else, and nothing of a password: one with a ? in it is cut there,
// so that its rest looks like the name of a parameter, and says so by the @ that follows.
func Set[C any](c *C, query string, params map[string]func(*C, string) error) error {
	if strings.ContainsAny(query, "@#") {
		return errors.New("percent-encode the special characters of user and password")
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("the parameters after ? cannot be read: check the percent-encoding")
	}
	for name, vs := range values {
		set := params[name]
		switch {
		case set == nil:
			return fmt.Errorf("unknown parameter %q", name)
		case len(vs) != 1:
			return fmt.Errorf("parameter %q is given %d times", name, len(vs))
		}
		if err := set(c, vs[0]); err != nil {
			return fmt.Errorf("parameter %q: %w", name, err)
		}
	}
	return nil
}
