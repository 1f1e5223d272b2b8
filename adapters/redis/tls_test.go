package redis_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/internal/adaptertest"
	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core/driver"
)

// authority is a CA, and makes servers with its certificate "server".
type authority struct {
	*adaptertest.Authority
	t *testing.T
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{Authority: adaptertest.NewAuthority(t), t: t}
	a.Issue(t, "server", time.Now().Add(time.Hour)) // replicas show it too, as clients
	return a
}

func (a *authority) client() *tls.Config {
	c, err := redis.TLS{CA: a.Path("ca.pem")}.Config("127.0.0.1")
	if err != nil {
		a.t.Fatal(err)
	}
	return c
}

// settings are those of a server, or a Sentinel, that listens with TLS only and uses it
// towards the others as well.
func (a *authority) settings(port string) [][2]string {
	return [][2]string{
		{"bind", "127.0.0.1"},
		{"port", "0"},
		{"tls-port", port},
		{"tls-cert-file", a.Path("server.pem")},
		{"tls-key-file", a.Path("server.key")},
		{"tls-ca-cert-file", a.Path("ca.pem")},
		{"tls-auth-clients", "no"},
		{"tls-replication", "yes"},
	}
}

// secret starts a server with TLS.
func (a *authority) secret(more ...string) *server {
	a.t.Helper()
	s := &server{t: a.t, addr: adaptertest.FreeAddr(a.t), tls: a.client()}
	_, port, _ := net.SplitHostPort(s.addr)
	s.args = []string{binaryWithTLS(a.t), "--dir", a.t.TempDir(), "--save", "", "--appendonly", "yes", "--maxmemory-policy", "noeviction", "--repl-diskless-sync-delay", "0"}
	for _, kv := range a.settings(port) {
		s.args = append(s.args, "--"+kv[0], kv[1])
	}
	s.args = append(s.args, more...)
	s.start()
	a.t.Cleanup(s.kill)
	return s
}

// binaryWithTLS is the server's, or the test is skipped: TLS may be left out of a build.
func binaryWithTLS(t *testing.T) string {
	t.Helper()
	path := adaptertest.RedisServer(t)
	out, _ := exec.Command(path, "--port", "0", "--tls-port", "none").CombinedOutput() // it complains and ends
	if !strings.Contains(string(out), "argument must be") && !strings.Contains(string(out), "couldn't be parsed") {
		t.Skipf("this redis-server was built without TLS: %s", out)
	}
	return path
}

// watched starts a primary, a replica and a Sentinel, all with TLS.
func (a *authority) watched() (primary, replica, watcher *server) {
	a.t.Helper()
	primary = a.secret()
	host, port, _ := net.SplitHostPort(primary.addr)
	replica = a.secret("--replicaof", host+" "+port)
	primary.copied(a.t, 1)
	watcher = &server{t: a.t, addr: adaptertest.FreeAddr(a.t), tls: a.client()}
	dir := a.t.TempDir()
	_, own, _ := net.SplitHostPort(watcher.addr)
	conf := fmt.Sprintf("dir %[1]s\nlogfile %[1]s/log\nsentinel monitor %[2]s %[3]s %[4]s 1\nsentinel down-after-milliseconds %[2]s 1000\nsentinel failover-timeout %[2]s 60000\n",
		dir, wardName, host, port)
	for _, kv := range a.settings(own) {
		conf += kv[0] + " " + kv[1] + "\n"
	}
	file := filepath.Join(dir, "sentinel.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		a.t.Fatal(err)
	}
	watcher.args = []string{adaptertest.RedisServer(a.t), file, "--sentinel"}
	watcher.start()
	a.t.Cleanup(watcher.kill)
	cl := watcher.sentinel()
	eventually(a.t, "the Sentinel", 15*time.Second, func() bool {
		replicas, err := cl.Replicas(context.Background(), wardName).Result()
		return err == nil && len(replicas) == 1
	})
	return primary, replica, watcher
}

// allied starts a Cluster of two masters with TLS.
func (a *authority) allied() (nodes []*server) {
	a.t.Helper()
	ctx := within(a.t, 30*time.Second)
	bus := make([]string, 2)
	for i := range bus {
		_, bus[i], _ = net.SplitHostPort(adaptertest.FreeAddr(a.t))
		n := a.secret("--tls-cluster", "yes", "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "2000",
			"--cluster-announce-ip", "127.0.0.1", "--cluster-port", bus[i])
		for _, order := range [][]any{{"CLUSTER", "ADDSLOTSRANGE", i * 8192, i*8192 + 8191}, {"CLUSTER", "SET-CONFIG-EPOCH", i + 1}} {
			if err := n.client().Do(ctx, order...).Err(); err != nil {
				a.t.Fatal(err)
			}
		}
		nodes = append(nodes, n)
	}
	_, port, _ := net.SplitHostPort(nodes[1].addr)
	if err := nodes[0].client().Do(ctx, "CLUSTER", "MEET", "127.0.0.1", port, bus[1]).Err(); err != nil {
		a.t.Fatal(err)
	}
	for _, n := range nodes {
		cl := n.client()
		eventually(a.t, "the Cluster", 20*time.Second, func() bool {
			info, err := cl.ClusterInfo(context.Background()).Result()
			return err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:2\r")
		})
	}
	return nodes
}

// dialURL opens what a URL says.
func dialURL(t *testing.T, raw string) (driver.Driver, error) {
	t.Helper()
	c, err := redis.ParseURL(raw)
	if err != nil {
		t.Fatal(err)
	}
	c.Lease, c.Timeout = 2*time.Second, 2*time.Second
	d, err := redis.Open(within(t, 10*time.Second), c)
	if err == nil {
		t.Cleanup(func() {
			if err := d.Close(within(t, 10*time.Second)); err != nil {
				t.Error("close:", err)
			}
		})
	}
	return d, err
}

// passes sends messages through queues, whose slots are different ones, and through a keyed
// one.
func passes(t *testing.T, d driver.Driver) {
	t.Helper()
	for _, partitions := range []int{0, 0, 0, shardsOfTests} {
		to := driver.Destination{Shape: driver.Queue, Name: adaptertest.Name("-"), Partitions: partitions}
		if _, err := d.Admin().Apply(within(t, 10*time.Second), []driver.Resource{{Destination: to}}, driver.Create); err != nil {
			t.Fatal(err)
		}
		c := subscribe(t, d, driver.Subscription{From: to, Assigned: func(driver.Assignment) {}, Revoke: func(context.Context, []string) {}})
		publish(t, d, to, 0, 5)
		mustSettle(t, c, driver.Ack, receive(t, c, 5)...)
	}
}

// refusedTLS checks an error about certificates, or about who speaks TLS.
func refusedTLS(t *testing.T, raw string, class driver.Class, text string) {
	t.Helper()
	began := time.Now()
	_, err := dialURL(t, raw)
	if driver.ClassOf(err) != class || !strings.Contains(fmt.Sprint(err), text) {
		t.Errorf("%s ended with class %v, want %v and the words %q: %v", raw, driver.ClassOf(err), class, text, err)
	}
	if d := time.Since(began); d > 8*time.Second {
		t.Errorf("%s took %v to fail", raw, d)
	}
}

func TestTLSBehindSentinels(t *testing.T) {
	t.Parallel()
	a, other := newAuthority(t), newAuthority(t)
	primary, replica, watcher := a.watched()
	base := watcher.addr + "?sentinel=" + wardName
	refusedTLS(t, "rediss://"+base, driver.Denied, "ca in the URL (Config.TLS)")
	refusedTLS(t, "rediss://"+base+"&ca="+other.Path("ca.pem"), driver.Denied, "ca in the URL (Config.TLS)")
	refusedTLS(t, "rediss://"+base+"&server_name=elsewhere&ca="+a.Path("ca.pem"), driver.Denied, "elsewhere")
	d, err := dialURL(t, "rediss://"+base+"&ca="+a.Path("ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	passes(t, d)
	primary.kill() // what the Sentinel names next is dialled with TLS too
	eventually(t, "the replica to take over", 30*time.Second, func() bool {
		info, _ := replica.client().Info(context.Background(), "replication").Result()
		return strings.Contains(info, "role:master")
	})
	eventually(t, "the new primary", 20*time.Second, func() bool {
		_, err := d.Admin().Apply(within(t, 5*time.Second), []driver.Resource{{Destination: driver.Destination{Shape: driver.Queue, Name: "after"}}}, driver.Create)
		return err == nil
	})
	passes(t, d)
}

func TestTLSInACluster(t *testing.T) {
	t.Parallel()
	a, other := newAuthority(t), newAuthority(t)
	nodes := a.allied()
	base := nodes[0].addr + "?cluster=true" // the other one is found
	refusedTLS(t, "rediss://"+base, driver.Denied, "certificate")
	refusedTLS(t, "rediss://"+base+"&ca="+other.Path("ca.pem"), driver.Denied, "certificate")
	d, err := dialURL(t, "rediss://"+base+"&ca="+a.Path("ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	passes(t, d)
}

// TestTLSOnOneSideOnly: whoever asks for TLS where there is none, or the other way round,
// is told to change the URL.
func TestTLSOnOneSideOnly(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	secret, plain := a.secret(), private(t)
	for _, more := range []string{"", "&cluster=true", "&sentinel=x"} {
		refusedTLS(t, "rediss://"+plain.addr+"?connect_timeout=500ms&ca="+a.Path("ca.pem")+more, driver.Transient, "write redis://")
		refusedTLS(t, "redis://"+secret.addr+"?connect_timeout=500ms"+more, driver.Transient, "write rediss://")
	}
}
