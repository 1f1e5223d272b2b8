// Package repo_test holds the rules about the repository itself: who may import whom, how
// long files and functions may be, what must have a doc comment, what go.mod and
// docker-compose.yml may say.
package repo_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

func root(t *testing.T) string {
	t.Helper()
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		t.Fatal("no caller")
	}
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// A replace works for us and for nobody who imports us.
func TestGoModHasNoReplace(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var mod struct {
		Replace, Exclude []any
		Toolchain        string
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	if len(mod.Replace)+len(mod.Exclude) > 0 {
		t.Errorf("go.mod has replace or exclude: %v %v", mod.Replace, mod.Exclude)
	}
	if mod.Toolchain != "" {
		t.Errorf("go.mod asks for toolchain %s; the go line says enough", mod.Toolchain)
	}
}
