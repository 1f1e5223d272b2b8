//go:build unix

package brokers

import (
	"context"
	"path/filepath"
	"syscall"
	"time"
)

// Process lets the tests run a harmless process the way a server is run.
type Process struct{ p process }

func NewProcess(dir, marker string) Process {
	return Process{process{name: "sleeper", pidFile: filepath.Join(dir, "x.pid"), log: filepath.Join(dir, "x.log"), marker: marker}}
}

func (p Process) Spawn(argv ...string) error { return p.p.spawn(nil, nil, argv...) }
func (p Process) PID() int                   { return p.p.pid() }
func (p Process) PidFile() string            { return p.p.pidFile }
func (p Process) Stop(ctx context.Context) error {
	return p.p.stop(ctx, syscall.SIGTERM, time.Second)
}
func Lives(pid int) bool { return running(pid) }

// FreePort checks one port as `up` does.
func FreePort(port int) error {
	s := &site{opts: Options{}}
	return s.free("kafka", []int{port})
}
