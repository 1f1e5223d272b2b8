package adapters_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/varal-go/varal/adapters"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	// A developer's own broker must not decide what these tests see.
	_ = os.Unsetenv(adapters.EnvURL)
	_ = os.Unsetenv(adapters.EnvBroker)
	withoutAWS()
	goleak.VerifyTestMain(m)
}

// withoutAWS keeps the SDK from what this machine knows of AWS: its environment, its shared
// files, and the service that gives a machine of AWS its credentials.
func withoutAWS() {
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "AWS_") {
			_ = os.Unsetenv(name)
		}
	}
	_ = os.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	_ = os.Setenv("AWS_CONFIG_FILE", os.DevNull)
	_ = os.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
}

// canary is planted as the password of every case; it must never come out again.
const canary = "c4n4ry-S3cret"

var ports = regexp.MustCompile(`(127\.0\.0\.1|localhost|\[::1\]):\d{4,5}\b`)

// golden compares what cases printed with testdata/name.
func golden(t *testing.T, name string, got []string) {
	t.Helper()
	text := ports.ReplaceAllString(strings.Join(got, "\n")+"\n", "$1:PORT")
	if strings.Contains(text, canary) {
		t.Errorf("a secret was printed:\n%s", text)
	}
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	wantLines, gotLines := strings.Split(string(want), "\n"), strings.Split(text, "\n")
	for i := range max(len(wantLines), len(gotLines)) {
		var w, g string
		if i < len(wantLines) {
			w = wantLines[i]
		}
		if i < len(gotLines) {
			g = gotLines[i]
		}
		if w != g {
			t.Errorf("%s:%d\n got %s\nwant %s\n(go test -update writes it anew)", path, i+1, g, w)
		}
	}
}
