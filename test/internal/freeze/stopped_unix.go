//go:build unix && !linux

package freeze

import (
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

const (
	stopLimit = 10 * time.Second
	stopPoll  = 5 * time.Millisecond
)

// awaitStopped returns when ps shows the process pid as stopped ("T") or as gone.
func awaitStopped(pid int) error {
	for until := time.Now().Add(stopLimit); time.Now().Before(until); time.Sleep(stopPoll) {
		out, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
		var status *exec.ExitError
		if errors.As(err, &status) { // no such process
			return nil
		}
		if err != nil {
			return err
		}
		if state := strings.TrimSpace(string(out)); strings.HasPrefix(state, "T") || strings.HasPrefix(state, "Z") {
			return nil
		}
	}
	return errors.New("it still runs 10 s after SIGSTOP")
}
