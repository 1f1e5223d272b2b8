package repo_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTrackedFilesAreText: a built program that slipped into a commit carries the paths
// of the machine that built it, and stays in every clone.
func TestTrackedFilesAreText(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		t.Skipf("not a git checkout: %v", err)
	}
	names := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if len(names) < 100 {
		t.Fatalf("git lists %d files only", len(names))
	}
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			continue // removed and not yet committed
		}
		if why := notText(b); why != "" {
			t.Errorf("%s %s", name, why)
		}
	}
}

// notText says why content does not belong into the repository; "" = it does.
func notText(b []byte) string {
	switch {
	case bytes.IndexByte(b, 0) >= 0:
		return "is binary: build it, do not commit it"
	case len(b) > 1<<20:
		return "is larger than 1 MiB"
	}
	return ""
}

func TestABinaryIsNotText(t *testing.T) {
	t.Parallel()
	if notText([]byte("\x7fELF\x02\x00")) == "" || notText(make([]byte, 2<<20)) == "" || notText([]byte("package x\n")) != "" {
		t.Error("the check cannot tell a program from a source file")
	}
}
