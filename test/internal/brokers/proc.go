package brokers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// credential is the user that a server runs as, where it must not be ours.
type credential struct{ uid, gid uint32 }

// process is one server process and its pid file. The pid file is ours: the one that
// a server writes itself may be stale, or deleted by a second start that failed.
type process struct {
	name    string // for messages
	pidFile string
	log     string
	marker  string // part of the command line by which it is recognised
}

func (s *site) process(name, part, marker string) process {
	return process{
		name:    name,
		pidFile: filepath.Join(s.data(name), part+".pid"),
		log:     filepath.Join(s.data(name), part+".log"),
		marker:  marker,
	}
}

// pid is that of the running process, or 0. The number alone proves nothing, since
// it may have been given away again: the start time and the command line must fit.
func (p process) pid() int {
	b, err := os.ReadFile(p.pidFile)
	if err != nil {
		return 0
	}
	first, second, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil || !running(pid) {
		return 0
	}
	if procStart(pid) != strings.TrimSpace(second) || !strings.Contains(procCmdline(pid), p.marker) {
		return 0
	}
	return pid
}

// spawn starts the process in the background. It outlives the caller. The
// environment is exactly env: a variable of the caller's shell must not steer a server.
func (p process) spawn(cred *credential, env []string, argv ...string) error {
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	//nolint:noctx // the server must outlive the call
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = filepath.Dir(p.pidFile), env, out, out
	detach(cmd, cred)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	pid := cmd.Process.Pid
	content := fmt.Sprintf("%d\n%s\n", pid, procStart(pid))
	return errors.Join(write(p.pidFile, content, 0o644), cmd.Process.Release())
}

// alive is a check for waitReady: a server that ended will not become ready.
func (p process) alive() error {
	b, _ := os.ReadFile(p.pidFile)
	first, _, _ := strings.Cut(string(b), "\n")
	if pid, err := strconv.Atoi(first); err == nil && running(pid) {
		return nil
	}
	return fmt.Errorf("%s ended while starting; the end of %s:\n%s", p.name, p.log, tail(p.log, 25))
}

// stop ends the process with sig, and with SIGKILL after wait. Done when the pid is
// free again. Not running is no error.
func (p process) stop(ctx context.Context, sig syscall.Signal, wait time.Duration) error {
	pid := p.pid()
	if pid == 0 {
		return p.forget()
	}
	deadline, again := time.Now().Add(wait), time.Now()
	for running(pid) {
		switch now := time.Now(); {
		case now.After(deadline):
			_ = signal(pid, syscall.SIGKILL)
		case !now.Before(again):
			// Once a second anew: Redis spends the signal without ending while it
			// writes its first append-only file.
			_ = signal(pid, sig)
			again = now.Add(time.Second)
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%s: pid %d did not end: %w", p.name, pid, err)
		}
	}
	for end := time.Now().Add(5 * time.Second); !vanished(pid) && time.Now().Before(end); {
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return p.forget()
}

func (p process) forget() error {
	if err := os.Remove(p.pidFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
