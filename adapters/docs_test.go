package adapters_test

import (
	"os"
	"strings"
	"testing"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core/driver"
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

// TestCapabilitiesDocumented: the table, the contract and the application's package say
// the same of every capability.
func TestCapabilitiesDocumented(t *testing.T) {
	t.Parallel()
	read := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	doc := strings.ReplaceAll(read("../docs/configuration.md"), "`", "")
	driverText, coreText := read("../core/driver/capabilities.go"), read("../core/types.go")
	for n := range driver.NeedCount {
		_, row, ok := strings.Cut(doc, "\n| "+n.String()+" | ")
		sentence, _, _ := strings.Cut(row, " |\n")
		if !ok || sentence == "" {
			t.Errorf("docs/configuration.md has no row for the capability %s", n)
			continue
		}
		for name, text := range map[string]string{"driver": driverText, "core": coreText} {
			if !strings.Contains(text, ": "+sentence+".\n") {
				t.Errorf("package %s does not say of %s: %s", name, n, sentence)
			}
		}
	}
}
