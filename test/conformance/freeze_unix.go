//go:build unix

package conformance

import (
	"os"
	"syscall"
)

// freezer sends the signals. A freeze may take a moment after it: the kernel stops one
// thread first. No case minds, for each waits until a lease has passed.
func freezer(p *os.Process) (freeze, thaw func()) {
	signal := func(s syscall.Signal) func() { return func() { _ = p.Signal(s) } }
	return signal(syscall.SIGSTOP), signal(syscall.SIGCONT)
}
