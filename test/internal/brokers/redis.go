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

const redisPort = 21379

// redis is a single server with an append-only file: what it acknowledged survives a
// kill of the process.
type redis struct{}

func (r redis) spec() spec {
	return spec{
		name: "redis", urlVar: "VARAL_REDIS_URL", ports: []int{redisPort},
		stop: syscall.SIGTERM, stopWait: 10 * time.Second,
		process: r.process, vars: r.vars, running: r.running,
	}
}

func (redis) lacks(context.Context, *site) *LackError {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return &LackError{"redis", "there is no redis-server in PATH", "apt-get install redis-server, or --install"}
	}
	return nil
}

func (redis) install(ctx context.Context, s *site) error {
	return s.apt(ctx, "redis", "", "redis-server")
}

// The server rewrites its command line to its address.
func (redis) process(s *site) process { return s.process("redis", "server", s.addr(redisPort)) }

func (r redis) start(_ context.Context, s *site) error {
	dir := s.data("redis")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, kv := range [][2]string{
		{"bind", "127.0.0.1"},
		{"port", strconv.Itoa(s.port(redisPort))},
		{"daemonize", "no"},
		{"dir", strconv.Quote(dir)},
		{"appendonly", "yes"},
		{"appendfsync", "everysec"},
		{"save", `""`},
		{"maxmemory-policy", "noeviction"},
		{"enable-debug-command", "local"},
	} {
		fmt.Fprintf(&b, "%s %s\n", kv[0], kv[1])
	}
	conf := filepath.Join(dir, "redis.conf")
	if err := write(conf, b.String(), 0o644); err != nil {
		return err
	}
	return r.process(s).spawn(nil, []string{"LANG=C.UTF-8", "PATH=" + os.Getenv("PATH")}, bin, conf)
}

// probe is not content with an answer: while it reads its file, the server says LOADING.
func (redis) probe(_ context.Context, s *site) error {
	return talk(s.addr(redisPort), []byte("PING\r\n"), []byte("+PONG"))
}

func (redis) running(_ context.Context, _ *site, url string) string {
	addr, _, _ := strings.Cut(strings.TrimPrefix(url, "redis://"), "?")
	addr, _, _ = strings.Cut(addr, "/")
	addr, _, _ = strings.Cut(addr, ",")
	addr = addr[strings.LastIndexByte(addr, '@')+1:]
	version, err := redisVersion(addr)
	if err != nil {
		return ""
	}
	return version
}

func redisVersion(addr string) (string, error) {
	c, err := dial(addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := c.Write([]byte("INFO server\r\n")); err != nil {
		return "", err
	}
	b := make([]byte, 4096)
	n, err := c.Read(b)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b[:n])) {
		if v, ok := strings.CutPrefix(line, "redis_version:"); ok {
			return strings.TrimSpace(v), nil
		}
	}
	return "", errors.New("no version in INFO")
}

func (r redis) vars(s *site, native bool) []Var {
	v := []Var{{"VARAL_REDIS_URL", "redis://" + s.addr(redisPort)}}
	if native {
		v = append(v, Var{"VARAL_REDIS_PIDFILE", r.process(s).pidFile})
	}
	return v
}
