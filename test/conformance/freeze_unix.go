//go:build unix

package conformance

import (
	"os"
	"syscall"
)

func freezer(p *os.Process) (freeze, thaw func()) {
	signal := func(s syscall.Signal) func() { return func() { _ = p.Signal(s) } }
	return signal(syscall.SIGSTOP), signal(syscall.SIGCONT)
}
