package adapters_test

import (
	"os"
	"strings"
	"testing"

	"github.com/varal-go/varal/adapters"
)

// TestDocumented: every field the reader knows is in docs/configuration.md, and the
// file shown there can be read.
func TestDocumented(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	_, rest, _ := strings.Cut(doc, "```yaml\n")
	file, _, _ := strings.Cut(rest, "```")
	if _, err := adapters.Parse("docs/configuration.md", []byte(file)); err != nil {
		t.Error(err)
	}
	// The reader lists its fields when it meets one it does not know.
	for _, text := range []string{
		"x: 1", "brokers: {a: {x: 1}}", "brokers: {a: {url: \"memory:\", tls: {x: 1}}}", "destinations: {a: {x: 1}}",
		"destinations: {q: {shape: queue}}\nsubscriptions: {a: {x: 1}}", "destinations: {q: {shape: queue}}\nsubscriptions: {a: {from: q, retry: {x: 1}}}",
	} {
		if !strings.HasPrefix(text, "brokers") {
			text = "brokers: {m: {url: \"memory:\"}}\n" + text
		}
		_, err := adapters.Parse("f", []byte(text))
		if err == nil {
			t.Fatalf("%q: no error", text)
		}
		_, list, ok := strings.Cut(err.Error(), "the fields are ")
		if !ok {
			t.Fatalf("%q: %v", text, err)
		}
		list, _, _ = strings.Cut(list, " (")
		for _, field := range strings.Split(list, ", ") {
			if !strings.Contains(doc, "`"+field+"`") {
				t.Errorf("docs/configuration.md does not name the field %s", field)
			}
		}
	}
}
