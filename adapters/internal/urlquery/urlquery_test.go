package urlquery_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/varal-go/varal/adapters/internal/urlquery"
)

type config struct{ name string }

var params = map[string]func(*config, string) error{
	"name": func(c *config, v string) error { c.name = v; return nil },
	"bad":  func(*config, string) error { return errors.New("want something else") },
}

func TestSet(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"":                "",
		"name=x%40y":      "",
		"other=1":         `unknown parameter "other"`,
		"name=a&name=b":   `parameter "name" is given 2 times`,
		"bad=s3cret":      `parameter "bad": want something else`,
		"s3cret@host/":    "percent-encode the special characters",
		"s3cret#":         "percent-encode the special characters",
		"name=%zz-s3cret": "check the percent-encoding",
	} {
		var c config
		err := urlquery.Set(&c, query, params)
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", query, err, want)
		case err != nil && strings.Contains(err.Error(), "s3cret"):
			t.Errorf("%q: %v", query, err)
		}
		if strings.HasPrefix(query, "name=x") && c.name != "x@y" {
			t.Errorf("%q: %q", query, c.name)
		}
	}
}
