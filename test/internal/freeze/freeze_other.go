//go:build !unix

package freeze

import "os"

// Supported tells whether Stop and Continue work on this system.
const Supported = false

// Stop is not supported on this system.
func Stop(*os.Process) error { return ErrUnsupported }

// Continue is not supported on this system.
func Continue(*os.Process) error { return ErrUnsupported }
