package brokers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// lock makes one run wait for another: two `up` at once would both find nothing
// running and both start.
func (s *site) lock(ctx context.Context) (unlock func(), err error) {
	// One lock for all sets: they share the downloads.
	path := filepath.Join(filepath.Dir(s.cache), "lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for told := false; flock(f, true, false) != nil; told = true {
		if !told {
			holder, _ := os.ReadFile(path)
			s.say("lock", "waiting for the run that holds it (pid %s)", strings.TrimSpace(string(holder)))
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
	}
	_ = f.Truncate(0)
	_, _ = f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	return func() { _ = f.Close() }, nil
}

// Hold marks the set as in use until release is called: DownIfUnused leaves it up
// meanwhile. Several holders at once are the point.
func Hold(o Options) (release func(), err error) {
	s, err := newSite(o)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(s.dir, "use.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := flock(f, false, true); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// inUse tells whether someone holds the set.
func (s *site) inUse() bool {
	f, err := os.OpenFile(filepath.Join(s.dir, "use.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return false
	}
	defer f.Close()
	return flock(f, true, false) != nil
}
