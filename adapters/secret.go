package adapters

import (
	"fmt"
	"log/slog"
)

// Secret is a text that does not print: every way of formatting, marshalling and
// logging it gives ***. The zero Secret is empty.
type Secret struct{ text string }

// NewSecret returns text as a Secret.
func NewSecret(text string) Secret { return Secret{text} }

// Reveal returns the text.
func (s Secret) Reveal() string { return s.text }

// IsZero reports whether the secret is empty.
func (s Secret) IsZero() bool { return s.text == "" }

// String returns "***".
func (Secret) String() string { return hidden }

// GoString returns "***".
func (Secret) GoString() string { return hidden }

// Format writes "***" whatever the verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hidden)) }

// MarshalJSON writes "***".
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + hidden + `"`), nil }

// MarshalText writes "***".
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// LogValue logs "***".
func (Secret) LogValue() slog.Value { return slog.StringValue(hidden) }
