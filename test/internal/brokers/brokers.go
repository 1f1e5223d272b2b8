package brokers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// State of a broker in a Report.
const (
	Running = "running" // ours, ready
	Preset  = "preset"  // the caller's environment names one
	Stopped = "stopped"
	Missing = "missing" // not installed
	Failed  = "failed"  // tried, and could not
)

// Report is what is known about one broker.
type Report struct {
	Broker  string `json:"broker"`
	State   string `json:"state"`
	How     string `json:"how,omitempty"` // native, docker, preset
	Version string `json:"version,omitempty"`
	URL     string `json:"url,omitempty"`
	PID     int    `json:"pid,omitempty"` // 0 under docker
	Data    string `json:"data,omitempty"`
	Log     string `json:"log,omitempty"`
	Why     string `json:"why,omitempty"` // why it is not used
	Get     string `json:"get,omitempty"` // how to get it
	// Started says that this very call started it.
	Started bool `json:"started,omitempty"`
	// Env is what the tests need.
	Env map[string]string `json:"env,omitempty"`

	vars []Var
}

// Used tells whether tests can talk to it.
func (r Report) Used() bool { return r.State == Running || r.State == Preset }

// String is the one line for a person.
func (r Report) String() string {
	if !r.Used() {
		line := fmt.Sprintf("%s: not used, because %s", r.Broker, r.Why)
		if r.Get != "" {
			line += "; get it by " + r.Get
		}
		return line
	}
	version := r.Version
	if version == "" {
		version = "unknown"
	}
	return fmt.Sprintf("%s: used, version %s (%s, %s)", r.Broker, version, r.How, r.URL)
}

// Up brings the brokers up and waits until each serves; none named = all but those that are
// started on request only. There is one report per
// broker; the error is for what concerns all of them. Running ones are reused.
func Up(ctx context.Context, o Options, names ...string) ([]Report, error) {
	if len(names) == 0 {
		names = standard()
	}
	chosen, err := choose(names)
	if err != nil {
		return nil, err
	}
	s, err := newSite(o)
	if err != nil {
		return nil, err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	reports := s.up(ctx, chosen)
	return reports, s.writeEnv(ctx)
}

// up installs one after the other, since package managers lock each other out; what is
// installed starts meanwhile.
func (s *site) up(ctx context.Context, chosen []server) []Report {
	compose := s.compose(ctx)
	reports := make([]Report, len(chosen))
	var wg sync.WaitGroup
	for i, v := range chosen {
		r := s.look(ctx, v, compose)
		if r.State == Stopped && compose == nil {
			r = s.provide(ctx, v, r)
		}
		reports[i] = r
		if r.State != Stopped {
			continue
		}
		wg.Go(func() { reports[i] = s.bring(ctx, v, r, compose) })
	}
	wg.Wait()
	return reports
}

// look says how things stand without changing them.
func (s *site) look(ctx context.Context, v server, c *compose) Report {
	sp := v.spec()
	r := Report{Broker: sp.name, State: Stopped, Why: "it is not running", Get: "go run ./test/brokers up " + sp.name}
	own := sp.vars(s, true)[0].Value
	if url := os.Getenv(sp.urlVar); url != "" && url != own {
		return Report{
			Broker: sp.name, State: Preset, How: "preset", URL: url, Version: sp.running(ctx, s, url),
			vars: []Var{{sp.urlVar, url}},
		}
	}
	p := sp.process(s)
	switch {
	case p.pid() != 0 && v.probe(ctx, s) == nil:
		return s.running(ctx, v, r, "native")
	case p.pid() != 0:
		r.Why = fmt.Sprintf("its process (pid %d) runs but does not serve; see %s", p.pid(), p.log)
	case c.has(sp.name):
		return s.running(ctx, v, r, "docker")
	}
	return r
}

func (s *site) running(ctx context.Context, v server, r Report, how string) Report {
	sp := v.spec()
	native := how == "native"
	r.State, r.How, r.Why, r.Get = Running, how, "", ""
	r.vars = sp.vars(s, native)
	r.URL = r.vars[0].Value
	if native {
		p := sp.process(s)
		r.PID, r.Log, r.Data = p.pid(), p.log, filepath.Dir(p.pidFile)
	}
	if r.Version = sp.version; r.Version == "" || !native {
		r.Version = sp.running(ctx, s, r.URL)
	}
	r.vars = append(r.vars, Var{variable(sp.name, "VERSION"), r.Version})
	r.Env = map[string]string{}
	for _, one := range r.vars {
		r.Env[one.Name] = one.Value
	}
	return r
}

// provide installs what is missing, where that is allowed.
func (s *site) provide(ctx context.Context, v server, r Report) Report {
	name := v.spec().name
	if !nativeHere {
		r.State, r.Why, r.Get = Missing, "servers run as plain processes on Unix only, and no docker engine answers", "starting a docker engine"
		return r
	}
	lack := v.lacks(ctx, s)
	if lack == nil {
		return r
	}
	if !s.mayInstall() {
		r.State, r.Why, r.Get = Missing, lack.Why, lack.Get
		return r
	}
	err := v.install(ctx, s)
	if err == nil {
		if lack = v.lacks(ctx, s); lack == nil {
			return r
		}
		err = lack
	}
	s.say(name, "installation failed")
	r.State, r.Why, r.Get = Failed, err.Error(), ""
	return r
}

// bring starts one broker that is installed.
func (s *site) bring(ctx context.Context, v server, r Report, c *compose) Report {
	var err error
	how := "native"
	if c != nil {
		how, err = "docker", c.up(ctx, v.spec().name)
	} else {
		// A process of ours that does not serve is in the way of the new one.
		err = s.halt(ctx, v, v.spec().stop)
		if err == nil {
			err = s.launch(ctx, v)
		}
	}
	if err != nil {
		r.State, r.Why, r.Get = Failed, err.Error(), ""
		return r
	}
	r = s.running(ctx, v, r, how)
	r.Started = true
	return r
}

// Status reports without changing or waiting for anything.
func Status(ctx context.Context, o Options, names ...string) ([]Report, error) {
	chosen, err := choose(names)
	if err != nil {
		return nil, err
	}
	s, err := newSite(o)
	if err != nil {
		return nil, err
	}
	return s.status(ctx, chosen), nil
}

func (s *site) status(ctx context.Context, chosen []server) []Report {
	compose := s.compose(ctx)
	var reports []Report
	for _, v := range chosen {
		r := s.look(ctx, v, compose)
		if r.State == Stopped && compose == nil && r.Why == "it is not running" {
			if lack := v.lacks(ctx, s); lack != nil {
				r.State, r.Why, r.Get = Missing, lack.Why, lack.Get
			}
		}
		reports = append(reports, r)
	}
	return reports
}

// Down stops the brokers that this package started. Others, and preset ones, are left alone.
func Down(ctx context.Context, o Options, names ...string) error {
	return down(ctx, o, false, names)
}

// DownIfUnused is Down, but leaves a set up that somebody holds; it tells whether it did stop.
func DownIfUnused(ctx context.Context, o Options, names ...string) (stopped bool, err error) {
	s, err := newSite(o)
	if err != nil || s.inUse() {
		return false, err
	}
	return true, down(ctx, o, true, names)
}

func down(ctx context.Context, o Options, ifUnused bool, names []string) error {
	chosen, err := choose(names)
	if err != nil {
		return err
	}
	s, err := newSite(o)
	if err != nil {
		return err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if ifUnused && s.inUse() { // taken while we waited for the lock
		return nil
	}
	compose := s.compose(ctx)
	errs := make([]error, len(chosen))
	var wg sync.WaitGroup
	for i, v := range chosen {
		wg.Go(func() { errs[i] = s.down(ctx, v, compose) })
	}
	wg.Wait()
	return errors.Join(errors.Join(errs...), s.writeEnv(ctx))
}

func (s *site) down(ctx context.Context, v server, c *compose) error {
	sp := v.spec()
	if pid := sp.process(s).pid(); pid != 0 {
		s.say(sp.name, "stopping pid %d", pid)
	} else if c.has(sp.name) {
		return c.down(ctx, sp.name)
	}
	if err := s.halt(ctx, v, sp.stop); err != nil {
		return err
	}
	s.say(sp.name, "stopped")
	return nil
}

// Restart ends one broker, with SIGKILL if kill is set, and starts it again on the
// same data. It returns when the broker serves again.
func Restart(ctx context.Context, o Options, name string, kill bool) (Report, error) {
	chosen, err := choose([]string{name})
	if err != nil {
		return Report{}, err
	}
	s, err := newSite(o)
	if err != nil {
		return Report{}, err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return Report{}, err
	}
	defer unlock()
	r, err := s.restart(ctx, chosen[0], kill)
	if err != nil {
		return r, err
	}
	return r, s.writeEnv(ctx)
}

func (s *site) restart(ctx context.Context, v server, kill bool) (Report, error) {
	sp, c := v.spec(), s.compose(ctx)
	r := s.look(ctx, v, c)
	if r.State == Preset {
		return r, fmt.Errorf("%s is preset by %s: only its owner can restart it", sp.name, sp.urlVar)
	}
	if c.has(sp.name) && sp.process(s).pid() == 0 {
		if err := c.restart(ctx, sp.name, kill); err != nil {
			return r, err
		}
		return s.running(ctx, v, r, "docker"), nil
	}
	pid := sp.process(s).pid()
	if pid == 0 {
		return r, fmt.Errorf("%s is not running: %s", sp.name, r.Get)
	}
	sig := sp.stop
	if kill {
		sig = syscall.SIGKILL
	}
	s.say(sp.name, "ending pid %d (%s)", pid, sig)
	if err := sp.process(s).stop(ctx, sig, sp.stopWait); err != nil {
		return r, err
	}
	if err := s.launch(ctx, v); err != nil {
		return r, err
	}
	return s.running(ctx, v, r, "native"), nil
}
