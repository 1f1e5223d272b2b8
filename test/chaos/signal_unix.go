//go:build unix

package chaos

import (
	"os"
	"syscall"
)

const killName = "killed"

func terminate(p *os.Process) error { return p.Signal(syscall.SIGTERM) }

// killedBy tells which signal ended a process: killName for a SIGKILL, "" for none.
func killedBy(s *os.ProcessState) string {
	w, ok := s.Sys().(syscall.WaitStatus)
	switch {
	case !ok || !w.Signaled():
		return ""
	case w.Signal() == syscall.SIGKILL:
		return killName
	}
	return w.Signal().String()
}
