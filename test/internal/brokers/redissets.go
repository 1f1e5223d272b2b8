package brokers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Ports of the sets of Redis servers. The bus of a Cluster defaults to a port that
// outgoing connections are given, so it is said.
var (
	redisNodes    = []int{21381, 21382, 21383}
	redisSentinel = 21386
	redisPair     = []int{21384, 21385}
)

const (
	redisBus = 10 // above the port of the node
	// redisName is what the Sentinel knows the primary by.
	redisName = "varal"
)

// redisCluster is three masters without replicas. Its first node stands for the set: a
// restart is that node's.
type redisCluster struct{ redis }

// redisSentinels is a primary, a replica and a Sentinel. A restart is that of the server
// that was the primary at first.
type redisSentinels struct{ redis }

func (r redisCluster) spec() spec {
	return spec{
		name: "redis-cluster", urlVar: "VARAL_REDIS_CLUSTER_URL", ports: redisNodes[:1], onRequest: true,
		stop: syscall.SIGTERM, stopWait: 10 * time.Second,
		process: r.process, extras: r.extras, vars: r.vars, running: r.running,
	}
}

func (r redisSentinels) spec() spec {
	return spec{
		name: "redis-sentinel", urlVar: "VARAL_REDIS_SENTINEL_URL", ports: redisPair[:1], onRequest: true,
		stop: syscall.SIGTERM, stopWait: 10 * time.Second,
		process: r.process, extras: r.extras, vars: r.vars, running: r.running,
	}
}

func (redisCluster) node(s *site, port int) process {
	return s.process("redis-cluster", "node-"+strconv.Itoa(port), s.addr(port))
}

func (r redisCluster) process(s *site) process { return r.node(s, redisNodes[0]) }

func (r redisCluster) extras(s *site) (out []process) {
	for _, p := range redisNodes[1:] {
		out = append(out, r.node(s, p))
	}
	return out
}

func (redisSentinels) node(s *site, port int) process {
	return s.process("redis-sentinel", "node-"+strconv.Itoa(port), s.addr(port))
}

func (r redisSentinels) process(s *site) process { return r.node(s, redisPair[0]) }

func (r redisSentinels) extras(s *site) []process {
	return []process{r.node(s, redisSentinel), r.node(s, redisPair[1])}
}

// start forms the Cluster where there is none yet.
func (r redisCluster) start(ctx context.Context, s *site) error {
	for _, port := range redisNodes {
		err := r.spawnNode(s, r.node(s, port), port, nil, [][2]string{
			{"cluster-enabled", "yes"},
			{"cluster-config-file", "nodes.conf"},
			{"cluster-node-timeout", "2000"},
			{"cluster-announce-ip", "127.0.0.1"},
			{"cluster-port", strconv.Itoa(s.port(port + redisBus))},
		})
		if err != nil {
			return err
		}
	}
	for _, port := range redisNodes {
		if err := awaitPong(ctx, s.addr(port)); err != nil {
			return err
		}
	}
	for _, port := range redisNodes {
		info, err := tell(s.addr(port), "CLUSTER INFO")
		if err != nil || !strings.Contains(info, "cluster_known_nodes:1\r") || !strings.Contains(info, "cluster_slots_assigned:0\r") {
			return err // it is one already
		}
	}
	for i, port := range redisNodes {
		n := len(redisNodes)
		orders := []string{
			fmt.Sprintf("CLUSTER ADDSLOTSRANGE %d %d", i*16384/n, (i+1)*16384/n-1),
			fmt.Sprintf("CLUSTER SET-CONFIG-EPOCH %d", i+1),
		}
		for _, other := range redisNodes[i+1:] {
			orders = append(orders, fmt.Sprintf("CLUSTER MEET 127.0.0.1 %d %d", s.port(other), s.port(other+redisBus)))
		}
		for _, order := range orders {
			if answer, err := tell(s.addr(port), order); err != nil || answer != "+OK\r\n" {
				return fmt.Errorf("%s: %s: %q (%v)", s.addr(port), order, answer, err) //nolint:errorlint // nil where it answered something else
			}
		}
	}
	return nil
}

// start keeps the files of an earlier run: after a failover the servers and the Sentinel
// have noted there who is the primary now.
func (r redisSentinels) start(ctx context.Context, s *site) error {
	for i, port := range redisPair {
		more := [][2]string{{"repl-diskless-sync-delay", "0"}}
		if i > 0 {
			more = append(more, [2]string{"replicaof", fmt.Sprintf("127.0.0.1 %d", s.port(redisPair[0]))})
		}
		if err := r.spawnNode(s, r.node(s, port), port, nil, more); err != nil {
			return err
		}
	}
	for _, port := range redisPair {
		if err := awaitPong(ctx, s.addr(port)); err != nil {
			return err
		}
	}
	return r.spawnNode(s, r.node(s, redisSentinel), redisSentinel, []string{"--sentinel"}, [][2]string{
		{"sentinel", fmt.Sprintf("monitor %s 127.0.0.1 %d 1", redisName, s.port(redisPair[0]))},
		{"sentinel", "down-after-milliseconds " + redisName + " 1000"},
		{"sentinel", "failover-timeout " + redisName + " 5000"},
	})
}

// spawnNode starts one server of a set, unless it runs.
func (redis) spawnNode(s *site, p process, port int, flags []string, more [][2]string) error {
	if p.pid() != 0 {
		return nil
	}
	if err := s.free(p.name, []int{port}); err != nil {
		return err
	}
	dir := filepath.Join(filepath.Dir(p.pidFile), strconv.Itoa(port))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return err
	}
	settings := [][2]string{{"bind", "127.0.0.1"}, {"port", strconv.Itoa(s.port(port))}, {"daemonize", "no"}, {"dir", strconv.Quote(dir)}}
	if flags == nil {
		settings = append(settings, [][2]string{
			{"appendonly", "yes"},
			{"appendfsync", "everysec"},
			{"save", `""`},
			{"maxmemory-policy", "noeviction"},
		}...)
	}
	var b strings.Builder
	for _, kv := range append(settings, more...) {
		fmt.Fprintf(&b, "%s %s\n", kv[0], kv[1])
	}
	conf := filepath.Join(dir, "redis.conf")
	if _, err := os.Stat(conf); err != nil {
		if err := write(conf, b.String(), 0o644); err != nil {
			return err
		}
	}
	return p.spawn(nil, []string{"LANG=C.UTF-8", "PATH=" + os.Getenv("PATH")}, append([]string{bin, conf}, flags...)...)
}

// probe asks every node, for each has its own view.
func (redisCluster) probe(_ context.Context, s *site) error {
	for _, port := range redisNodes {
		info, err := tell(s.addr(port), "CLUSTER INFO")
		if err != nil {
			return err
		}
		if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r", len(redisNodes))) {
			return fmt.Errorf("%s does not call the Cluster whole yet", s.addr(port))
		}
	}
	return nil
}

// probe wants a replica that follows the primary, and a Sentinel that could have it take
// over.
func (redisSentinels) probe(_ context.Context, s *site) error {
	primaries, following := 0, 0
	for _, port := range redisPair {
		info, err := tell(s.addr(port), "INFO replication")
		switch {
		case err != nil:
			return err
		case strings.Contains(info, "role:master"):
			primaries++
		case strings.Contains(info, "master_link_status:up"):
			following++
		}
	}
	if primaries != 1 || following != 1 {
		return fmt.Errorf("%d primaries and %d replicas that follow, want one each", primaries, following)
	}
	for order, want := range map[string]string{
		"SENTINEL CKQUORUM " + redisName: "+OK", "SENTINEL REPLICAS " + redisName: "*1\r", "SENTINEL GET-MASTER-ADDR-BY-NAME " + redisName: "*2\r",
	} {
		if answer, err := tell(s.addr(redisSentinel), order); err != nil || !strings.HasPrefix(answer, want) {
			return fmt.Errorf("%s: %q (%v)", order, answer, err) //nolint:errorlint // as above
		}
	}
	return nil
}

func (r redisCluster) vars(s *site, native bool) []Var {
	var hosts []string
	for _, p := range redisNodes {
		hosts = append(hosts, s.addr(p))
	}
	v := []Var{{"VARAL_REDIS_CLUSTER_URL", "redis://" + strings.Join(hosts, ",") + "?cluster=true"}}
	if native {
		v = append(v, Var{"VARAL_REDIS_CLUSTER_PIDFILE", r.process(s).pidFile})
	}
	return v
}

func (r redisSentinels) vars(s *site, native bool) []Var {
	v := []Var{{"VARAL_REDIS_SENTINEL_URL", "redis://" + s.addr(redisSentinel) + "?sentinel=" + redisName}}
	if native {
		v = append(v, Var{"VARAL_REDIS_SENTINEL_PIDFILE", r.process(s).pidFile})
	}
	return v
}

func awaitPong(ctx context.Context, addr string) error {
	for end := time.Now().Add(10 * time.Second); ; {
		err := talk(addr, []byte("PING\r\n"), []byte("+PONG"))
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: %w", addr, err)
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// tell gives one order and returns what comes back, as far as one packet holds it.
func tell(addr, order string) (string, error) {
	c, err := dial(addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := c.Write([]byte(order + "\r\n")); err != nil {
		return "", err
	}
	b := make([]byte, 8192)
	n, err := c.Read(b)
	return string(b[:n]), err
}
