//go:build !unix

package chaos

import (
	"errors"
	"os"
)

const killName = "killed"

var errNoTerm = errors.New("this system has no SIGTERM for another process: run this experiment on Linux or macOS")

func terminate(*os.Process) error { return errNoTerm }

// killedBy: TerminateProcess leaves exit code 1, as a failed body does; which of
// the two it was cannot be told, and the kill was sent.
func killedBy(s *os.ProcessState) string {
	if s.ExitCode() == 1 {
		return killName
	}
	return ""
}
