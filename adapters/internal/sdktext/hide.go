package sdktext

import (
	"slices"
	"strings"
	"unicode"
)

const (
	hidden   = "***"
	withheld = "<text of the client library withheld: it holds part of the password>"
)

// Hide returns a foreign text without the secrets. Only a secret that stands out can be cut
// out of a text: in place of a short one, or of a word, the gaps would spell it
// ("***assword").
func Hide(text string, secrets []string) string {
	// Longest first: a secret that begins with another would keep its tail otherwise.
	all := slices.SortedFunc(slices.Values(secrets), func(a, b string) int { return len(b) - len(a) })
	for _, secret := range all {
		switch {
		case secret == "" || !strings.Contains(text, secret):
		case len(secret) < 8 || !strings.ContainsFunc(secret, notLetter):
			return withheld
		default:
			text = strings.ReplaceAll(text, secret, hidden)
		}
	}
	return text
}

func notLetter(r rune) bool { return !unicode.IsLetter(r) }
