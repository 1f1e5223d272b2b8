//go:build unix

package brokers

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const nativeHere = true

// flock takes a lock on an open file. With wait it blocks until it has it.
func flock(f *os.File, exclusive, wait bool) error {
	how := syscall.LOCK_SH
	if exclusive {
		how = syscall.LOCK_EX
	}
	if !wait {
		how |= syscall.LOCK_NB
	}
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// detach gives the server a session of its own, so that Ctrl-C in the terminal of
// the caller does not reach it.
func detach(cmd *exec.Cmd, cred *credential) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if cred != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: cred.uid, Gid: cred.gid}
	}
}

// running tells whether the process exists and is more than a zombie. A server that
// lost its parent is reaped by PID 1, which may take seconds: kill(pid, 0) still
// succeeds on it.
func running(pid int) bool {
	reap(pid)
	if pid <= 0 || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	return procState(pid) != "Z"
}

// vanished tells whether the pid is free again. PostgreSQL takes its own zombie for
// a postmaster that lives.
func vanished(pid int) bool {
	reap(pid)
	return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// reap ends a zombie that this very process started. For any other pid it does nothing.
func reap(pid int) {
	if pid > 0 {
		_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
	}
}

func signal(pid int, sig syscall.Signal) error { return syscall.Kill(pid, sig) }

// procStat gives the fields of /proc/<pid>/stat from the state on. The name before
// them may hold blanks and parentheses, so the last ")" counts.
func procStat(pid int) []string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	_, rest, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	return strings.Fields(rest)
}

func procState(pid int) string {
	if f := procStat(pid); len(f) > 0 {
		return f[0]
	}
	return firstOf(ps(pid, "state="))
}

// procStart identifies one life of a pid: the same number with another start is
// another process.
func procStart(pid int) string {
	const starttime = 19 // field 22 of the file, counted from the state
	if f := procStat(pid); len(f) > starttime {
		return f[starttime]
	}
	return ps(pid, "lstart=")
}

func procCmdline(pid int) string {
	if b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline"); err == nil {
		return strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " "))
	}
	return ps(pid, "command=")
}

// ps is the way where there is no /proc.
func ps(pid int, column string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "ps", "-ww", "-o", column, "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

func firstOf(s string) string {
	if s == "" {
		return ""
	}
	return s[:1]
}
