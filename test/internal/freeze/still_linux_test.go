package freeze_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// standsStill tells whether every thread of a process is in the state "stopped".
func standsStill(t *testing.T, pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("no threads of %d are shown in /proc: %v", pid, err)
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		if err != nil {
			t.Fatal(err)
		}
		// proc(5): the state follows the name in parentheses.
		if _, rest, _ := bytes.Cut(stat, []byte(") ")); rest[0] != 'T' {
			return false
		}
	}
	return true
}
