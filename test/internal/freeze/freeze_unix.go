//go:build unix

package freeze

import (
	"fmt"
	"os"
	"syscall"
)

// Supported tells whether Stop and Continue work on this system.
const Supported = true

// Stop freezes p, a child of this process, with SIGSTOP and returns when all its
// threads stand still. It reaps nothing: a p that ended instead is still there to be
// waited for, and is no error.
//
// The signal alone is a request. The kernel gives it to one thread of p, and only when
// that thread gets a core does it stop the others: on a busy machine a thread of p reads
// what was sent to it after the signal, and answers, before it stands still.
func Stop(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("freeze process %d: %w", p.Pid, err)
	}
	if err := awaitStopped(p.Pid); err != nil {
		return fmt.Errorf("freeze process %d: wait until it stands still: %w", p.Pid, err)
	}
	return nil
}

// Continue lets a frozen p go on (SIGCONT).
func Continue(p *os.Process) error {
	if err := p.Signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("let process %d go on: %w", p.Pid, err)
	}
	return nil
}
