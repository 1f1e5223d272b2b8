package brokers

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// server is one kind of broker, run as plain processes.
type server interface {
	spec() spec
	// lacks says what must be installed first; nil = nothing.
	lacks(ctx context.Context, s *site) *LackError
	install(ctx context.Context, s *site) error
	// start writes the configuration and starts the processes on the data that is there.
	start(ctx context.Context, s *site) error
	// probe is nil once a client would be served.
	probe(ctx context.Context, s *site) error
}

// spec is what is constant about a server.
type spec struct {
	name    string
	urlVar  string
	version string // pinned by us; "" = the distribution's
	ports   []int  // before the port base
	// onRequest: it is started where it is named, and not with all.
	onRequest bool

	stop     syscall.Signal // the graceful one
	stopWait time.Duration

	process func(*site) process
	extras  func(*site) []process // started before, stopped after; nil = none
	vars    func(s *site, native bool) []Var
	running func(ctx context.Context, s *site, url string) string // version that answers; "" = none
}

// Var is one environment variable for the tests.
type Var struct{ Name, Value string }

func servers() []server {
	return []server{
		kafka{}, rabbitmq{}, redis{}, postgres{}, sqs{}, redisCluster{}, redisSentinels{},
	}
}

// Known names every broker that this package can run.
func Known() []string {
	var names []string
	for _, v := range servers() {
		names = append(names, v.spec().name)
	}
	return names
}

// standard names what `up` starts where nothing is named.
func standard() (names []string) {
	for _, v := range servers() {
		if !v.spec().onRequest {
			names = append(names, v.spec().name)
		}
	}
	return names
}

// choose finds the servers by name; no name = all.
func choose(names []string) ([]server, error) {
	var out []server
	for _, v := range servers() {
		if len(names) == 0 || slices.Contains(names, v.spec().name) {
			out = append(out, v)
		}
	}
	for _, n := range names {
		if !slices.Contains(Known(), n) {
			return nil, fmt.Errorf("broker %q is not known: this version runs %s", n, strings.Join(Known(), ", "))
		}
	}
	return out, nil
}

// readyWait bounds a start that hangs. It is no measure of speed: a Kafka that needs 10 s
// by itself was not there after 90 s beside three other brokers and their tests on two
// processors, and a server that ended is noticed at once.
const readyWait = 5 * time.Minute

// waitReady probes until the server serves, and gives up at once when it ended.
func (s *site) waitReady(ctx context.Context, v server) error {
	sp := v.spec()
	p := sp.process(s)
	begun, told := time.Now(), time.Now()
	for {
		err := v.probe(ctx, s)
		if err == nil {
			s.say(sp.name, "ready after %.1fs (pid %d)", time.Since(begun).Seconds(), p.pid())
			return nil
		}
		if dead := p.alive(); dead != nil {
			return dead
		}
		if time.Since(begun) > readyWait {
			return fmt.Errorf("%s is not ready after %s: %w; the end of %s:\n%s", sp.name, readyWait, err, p.log, tail(p.log, 25))
		}
		if time.Since(told) > 5*time.Second {
			s.say(sp.name, "not ready yet: %v", err)
			told = time.Now()
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// launch starts the server on its ports, which must be free, and waits for it.
func (s *site) launch(ctx context.Context, v server) error {
	sp := v.spec()
	if err := s.free(sp.name, sp.ports); err != nil {
		return err
	}
	s.say(sp.name, "starting on %s", s.addr(sp.ports[0]))
	if err := v.start(ctx, s); err != nil {
		return err
	}
	if err := s.waitReady(ctx, v); err != nil {
		// Half a start must not hold the ports.
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sp.stopWait)
		defer cancel()
		if stopErr := s.halt(stopCtx, v, sp.stop); stopErr != nil {
			return fmt.Errorf("%w (and it could not be stopped: %w)", err, stopErr)
		}
		return err
	}
	return nil
}

// halt ends the server and the processes that belong to it.
func (s *site) halt(ctx context.Context, v server, sig syscall.Signal) error {
	sp := v.spec()
	if err := sp.process(s).stop(ctx, sig, sp.stopWait); err != nil {
		return err
	}
	if sp.extras == nil {
		return nil
	}
	for _, p := range sp.extras(s) {
		if err := p.stop(ctx, syscall.SIGTERM, 5*time.Second); err != nil {
			return err
		}
	}
	return nil
}

// Ports gives the first port of each broker, before any port base.
func Ports() map[string]string {
	m := map[string]string{}
	for _, v := range servers() {
		m[v.spec().name] = strconv.Itoa(v.spec().ports[0])
	}
	return m
}
