package brokers

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Options says where the servers live and what may be done to get them.
// The zero Options is a quiet run on the default ports that installs nothing.
type Options struct {
	// PortBase is added to every port, so that a second set can run beside the first.
	// It has data folders of its own.
	PortBase int
	// Install allows packages to be installed (apt-get, Maven, pip). In CI it is implied.
	Install bool
	// Native never asks for a docker engine.
	Native bool
	// Progress gets one line per step. nil = silence.
	Progress io.Writer
}

// InCI tells whether the run is CI's, where everything that is needed gets installed.
func InCI() bool { return os.Getenv("CI") == "true" }

// PortBase is the default of Options.PortBase: VARAL_BROKERS_PORT_BASE, or 0.
func PortBase() int {
	n, _ := strconv.Atoi(os.Getenv("VARAL_BROKERS_PORT_BASE"))
	return n
}

// Ports stay below the range that outgoing connections are given (32768 on), or any
// client could hold one of ours by chance.
const (
	lowestPort  = 20000
	highestPort = 30000
	minPort     = 1024
	maxPort     = 32767
)

// site is one set of servers: its folders, its ports, its progress lines.
type site struct {
	opts  Options
	dir   string // state of this set: data, logs, pid files
	cache string // downloads, shared by all sets

	mu    sync.Mutex // progress lines
	tlsMu sync.Mutex
	begun time.Time
}

func newSite(o Options) (*site, error) {
	if lowestPort+o.PortBase < minPort || highestPort+o.PortBase > maxPort {
		return nil, fmt.Errorf("port base %d: the servers use ports %d to %d, and all of them must stay within %d to %d: use %d to %d",
			o.PortBase, lowestPort, highestPort, minPort, maxPort, minPort-lowestPort, maxPort-highestPort)
	}
	root, err := rootDir()
	if err != nil {
		return nil, err
	}
	s := &site{opts: o, dir: root, cache: filepath.Join(root, "cache"), begun: time.Now()}
	if o.PortBase != 0 {
		s.dir = filepath.Join(root, "base"+strconv.Itoa(o.PortBase))
	}
	for _, d := range []string{s.dir, s.cache} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, fmt.Errorf("data folder of the brokers: %w (choose another with VARAL_BROKERS_DIR)", err)
		}
	}
	return s, nil
}

// rootDir is VARAL_BROKERS_DIR, or a folder in the user's cache.
func rootDir() (string, error) {
	if d := os.Getenv("VARAL_BROKERS_DIR"); d != "" {
		return filepath.Abs(d)
	}
	c, err := os.UserCacheDir()
	if err != nil { // no HOME, as in a bare container
		c = filepath.Join(os.TempDir(), "varal-"+strconv.Itoa(os.Getuid()))
	}
	return filepath.Join(c, "varal-brokers"), nil
}

func (s *site) port(p int) int          { return p + s.opts.PortBase }
func (s *site) addr(p int) string       { return fmt.Sprintf("127.0.0.1:%d", s.port(p)) }
func (s *site) data(name string) string { return filepath.Join(s.home(name), name) }
func (s *site) mayInstall() bool        { return s.opts.Install || InCI() }

// home is the folder above the data of a server. A server that runs as another user
// must be able to walk there, which it can't below a root's 0700 home.
func (s *site) home(name string) string {
	if name != "postgres" || os.Getuid() != 0 || traversable(s.dir) {
		return s.dir
	}
	return filepath.Join(os.TempDir(), "varal-brokers"+strconv.Itoa(s.opts.PortBase))
}

// traversable tells whether everyone may walk through dir and its parents.
func traversable(dir string) bool {
	for ; ; dir = filepath.Dir(dir) {
		if i, err := os.Stat(dir); err != nil || i.Mode()&0o001 == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
	}
}

// say prints one progress line with the seconds since the start.
func (s *site) say(name, format string, args ...any) {
	if s.opts.Progress == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.opts.Progress, "[%5.1fs] %-8s %s\n", time.Since(s.begun).Seconds(), name, fmt.Sprintf(format, args...))
}

// write puts content into a file of the data folder, through a rename: a server
// that reads its configuration at this moment sees the old or the new one.
func write(path, content string, mode os.FileMode) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, []byte(content), mode); err != nil {
		return err
	}
	return errors.Join(os.Chmod(tmp, mode), os.Rename(tmp, path))
}

// tail is the end of a log, for an error message.
func tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "(no log: " + err.Error() + ")"
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return strings.Join(all, "\n")
}
