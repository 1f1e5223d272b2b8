package chaos

import (
	"fmt"
	"os"
	"time"

	"github.com/varal-go/varal/test/internal/freeze"
	"github.com/varal-go/varal/test/lab/history"
)

// killLimit is how long a killed process may take to be gone.
const killLimit = 30 * time.Second

// Kill ends the process with SIGKILL (Windows: TerminateProcess), waits until it is
// gone, and records the fault. A process that ended by itself first gives ErrEnded
// and a fault of outcome "missed", which explains nothing.
func (p *Proc) Kill() error {
	select {
	case <-p.exited:
		return ErrEnded
	default:
	}
	// The moment is taken before the signal: what the victim still did while the
	// system killed it must not accuse whoever takes over.
	i := p.lab.record(p.fault(history.OpFault, history.FaultKill))
	if err := p.cmd.Process.Kill(); err != nil {
		p.lab.amend(i, history.FaultMissed)
		<-p.exited
		return ErrEnded
	}
	if _, err := p.Wait(killLimit); err != nil {
		p.lab.amend(i, history.FaultMissed)
		return fmt.Errorf("chaos: kill: %w", err)
	}
	p.mu.Lock()
	byUs := p.signal == killName
	p.mu.Unlock()
	if !byUs { // it exited between the check and the signal
		p.lab.amend(i, history.FaultMissed)
		return ErrEnded
	}
	return nil
}

// Freeze stops the process with SIGSTOP until Thaw, and records the fault. It returns
// when the process stands still: nothing sent to it afterwards is read before Thaw.
// Unsupported on Windows.
func (p *Proc) Freeze() error {
	return p.stop(history.OpFault, history.FaultFreeze, freeze.Stop, true)
}

// Thaw lets a frozen process go on, and records the heal.
func (p *Proc) Thaw() error {
	return p.stop(history.OpHeal, history.FaultFreeze, freeze.Continue, false)
}

func (p *Proc) stop(op history.Op, outcome string, signal func(*os.Process) error, frozen bool) error {
	select {
	case <-p.exited:
		return ErrEnded
	default:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// A freeze is recorded before it, a thaw after it: the span in the history
	// covers the real one.
	i := -1
	if frozen {
		i = p.lab.record(p.fault(op, outcome))
	}
	if err := signal(p.cmd.Process); err != nil {
		if i >= 0 {
			p.lab.amend(i, history.FaultMissed)
		}
		return fmt.Errorf("chaos: %s %s: %w", outcome, p.spec.Name, err)
	}
	p.frozen = frozen
	if !frozen {
		p.lab.record(p.fault(op, outcome))
	}
	return nil
}

// Term asks the process to stop in good order (SIGTERM) and returns at once; its
// body's ctx ends. Unsupported on Windows: send a command instead.
func (p *Proc) Term() error {
	select {
	case <-p.exited:
		return ErrEnded
	default:
	}
	i := p.lab.record(p.fault(history.OpFault, history.FaultTerm))
	if err := terminate(p.cmd.Process); err != nil {
		p.lab.amend(i, history.FaultMissed)
		return fmt.Errorf("chaos: term %s: %w", p.spec.Name, err)
	}
	return nil
}

func (p *Proc) fault(op history.Op, outcome string) history.Event {
	return history.Event{Op: op, Outcome: outcome, Dest: p.spec.Name, N: p.gen}
}
