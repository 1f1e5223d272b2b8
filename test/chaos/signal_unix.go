//go:build unix

package chaos

import (
	"os"
	"syscall"
)

const (
	sigStop = int(syscall.SIGSTOP)
	sigCont = int(syscall.SIGCONT)
	sigTerm = int(syscall.SIGTERM)

	killName = "killed"
)

func signal(p *os.Process, sig int) error { return p.Signal(syscall.Signal(sig)) }

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
