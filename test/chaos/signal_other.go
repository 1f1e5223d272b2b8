//go:build !unix

package chaos

import (
	"errors"
	"os"
)

const (
	sigStop = iota + 1
	sigCont
	sigTerm

	killName = "killed"
)

var errNoSignals = errors.New("this system has no SIGSTOP, SIGCONT and SIGTERM for another process: run this experiment on Linux or macOS")

func signal(*os.Process, int) error { return errNoSignals }

// killedBy: TerminateProcess leaves exit code 1, as a failed body does; which of
// the two it was cannot be told, and the kill was sent.
func killedBy(s *os.ProcessState) string {
	if s.ExitCode() == 1 {
		return killName
	}
	return ""
}
