package freeze

import (
	"errors"

	"golang.org/x/sys/unix"
)

// awaitStopped returns when the child pid was stopped or has ended. The kernel reports a
// stop to the parent once the last thread stands still (waitid(2), WSTOPPED); WNOWAIT
// leaves the report, and an exit, for whoever waits for the process.
func awaitStopped(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD): // it ended and was waited for
			return nil
		default:
			return err
		}
	}
}
