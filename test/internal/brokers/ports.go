package brokers

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// dial is short: what is asked for here is on this machine.
func dial(addr string) (net.Conn, error) {
	//nolint:noctx // bounded to a second
	return net.DialTimeout("tcp", addr, time.Second)
}

// listening tells whether something accepts connections there.
func listening(addr string) bool {
	c, err := dial(addr)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// free checks that none of the ports is taken, and names who has it.
func (s *site) free(name string, ports []int) error {
	for _, p := range ports {
		addr := s.addr(p)
		if !listening(addr) {
			continue
		}
		return &TakenError{Broker: name, Addr: addr, Holder: holder(s.port(p)), Base: s.opts.PortBase}
	}
	return nil
}

// TakenError says that a port of a broker is held by a process that is not ours.
type TakenError struct {
	Broker, Addr string
	Holder       string // pid and command line where they can be read
	Base         int    // the port base in use
}

func (e *TakenError) Error() string {
	return fmt.Sprintf("%s is taken by %s, which this command did not start: stop it, or move the whole set with --port-base %d",
		e.Addr, e.Holder, e.Base+500)
}

// holder names the process that listens on a loopback port.
func holder(port int) string {
	inode := listenInode(port)
	if inode == "" {
		return "another process"
	}
	want := "socket:[" + inode + "]"
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == want {
			pid, _ := strconv.Atoi(strings.Split(fd, "/")[2])
			cmd := procCmdline(pid)
			if len(cmd) > 160 {
				cmd = cmd[:160] + "…"
			}
			return fmt.Sprintf("pid %d (%s)", pid, cmd)
		}
	}
	return "another process (of another user, or in another container)"
}

// listenInode finds the socket in the kernel's tables.
func listenInode(port int) string {
	const listen = "0A"
	suffix := fmt.Sprintf(":%04X", port)
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) > 9 && strings.HasSuffix(f[1], suffix) && f[3] == listen {
				return f[9]
			}
		}
	}
	return ""
}
