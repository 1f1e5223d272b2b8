// Package freeze stops other processes where they stand, for tests of what a frozen
// member of a group does to the others.
//
// Actor: the signals that freeze a process and let it go on.
package freeze

import "errors"

// ErrUnsupported is the error of Stop and Continue on a system without SIGSTOP.
var ErrUnsupported = errors.New("this system has no SIGSTOP and SIGCONT for another process: run this experiment on Linux or macOS")
