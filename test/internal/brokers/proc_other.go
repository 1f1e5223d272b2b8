//go:build !unix

package brokers

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// Without Unix processes there is only docker.
const nativeHere = false

var errNoNative = errors.New("servers run as plain processes on Unix only; start a docker engine")

func flock(*os.File, bool, bool) error { return nil }
func detach(*exec.Cmd, *credential)    {}
func running(int) bool                 { return false }
func vanished(int) bool                { return true }
func signal(int, syscall.Signal) error { return errNoNative }
func procStart(int) string             { return "" }
func procCmdline(int) string           { return "" }
