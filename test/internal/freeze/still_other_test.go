//go:build !linux

package freeze_test

import "testing"

// standsStill: no thread's state can be read here; the echo alone is the judge.
func standsStill(*testing.T, int) bool { return true }
