package adapters_test

import (
	"errors"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/adapters/internal/adaptertest"
	"github.com/varal-go/varal/core"
)

// redisCase is a Redis that refuses: to be opened, or to store a message.
type redisCase struct {
	name    string
	answers map[string]string // of the fake, by command
	user    string            // of the URL
	query   string            // /db?parameter=value
	class   error
	publish bool // Open is fine, and Publish to the queue "tickets" is not
}

const wrongPass = "-WRONGPASS invalid username-password pair or user is disabled."

var storeNothing = func(text string) map[string]string {
	return map[string]string{"XADD": text, "EVALSHA": text, "EVAL": text, "EXEC": text}
}

var badRedis = []redisCase{
	{name: "wrong password", user: "varal:" + canary + "@", answers: map[string]string{"AUTH": wrongPass}, class: core.ErrDenied},
	{name: "wrong password of the default user", user: ":" + canary + "@", answers: map[string]string{"AUTH": wrongPass}, class: core.ErrDenied},
	{name: "unknown user", user: "nobody:" + canary + "@", answers: map[string]string{"AUTH": wrongPass}, class: core.ErrDenied},
	{name: "no credentials", class: core.ErrDenied, answers: map[string]string{
		"INFO": "-NOAUTH Authentication required.", "PING": "-NOAUTH Authentication required.", "CLIENT": "-NOAUTH Authentication required.",
	}},
	{name: "no such database", user: "varal:right@", query: "/9999", answers: map[string]string{"SELECT": "-ERR DB index is out of range"}, class: core.ErrPermanent},
	{name: "no permission", user: "waiter:right@", publish: true, class: core.ErrDenied, answers: map[string]string{
		"INFO":  "-NOPERM this user has no permissions to run the 'info' command",
		"HMGET": "-NOPERM this user has no permissions to access one of the keys used as arguments",
	}},
	{name: "out of memory", user: "varal:right@", publish: true, answers: storeNothing("-OOM command not allowed when used memory > 'maxmemory'."), class: core.ErrTransient},
	{name: "read-only replica", user: "varal:right@", publish: true, answers: storeNothing("-READONLY You can't write against a read only replica."), class: core.ErrTransient},
}

// strange are servers that a test cannot make of a real one at will.
var strange = []redisCase{
	{name: "a password and a server without", user: ":" + canary + "@", class: core.ErrDenied, answers: map[string]string{
		"AUTH": "-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
	}},
	{name: "loading", answers: map[string]string{"INFO": "-LOADING Redis is loading the dataset in memory"}, class: core.ErrTransient},
	{name: "too many clients", answers: map[string]string{"INFO": "-ERR max number of clients reached", "CLIENT": "-ERR max number of clients reached"}, class: core.ErrTransient},
	{name: "protected mode", class: core.ErrTransient, answers: map[string]string{
		"INFO": "-DENIED Redis is running in protected mode because protected mode is enabled and no password is set for the default user.",
	}},
	{name: "part of a Cluster", answers: map[string]string{"INFO": "redis_version:7.0.15\r\ncluster_enabled:1\r\nmaxmemory_policy:noeviction\r\n"}, class: core.ErrUnsupported},
	{name: "a Sentinel", answers: map[string]string{"INFO": "redis_version:7.0.15\r\nredis_mode:sentinel\r\n"}, class: core.ErrUnsupported},
	{name: "no Cluster", query: "?cluster=true", answers: map[string]string{"CLUSTER": "-ERR This instance has cluster support disabled"}, class: core.ErrPermanent},
	{name: "a Cluster with a login", user: "varal:" + canary + "@", query: "?cluster=true", answers: map[string]string{"AUTH": wrongPass}, class: core.ErrDenied},
	{name: "a server and no Sentinel", query: "?sentinel=kitchen", class: core.ErrPermanent, answers: map[string]string{
		"SENTINEL": "-ERR unknown command 'sentinel', with args beginning with: 'get-master-addr-by-name' 'kitchen' ",
	}},
	{name: "a Sentinel of others", query: "?sentinel=kitchen", answers: map[string]string{"SENTINEL": "*-1"}, class: core.ErrNotFound},
	{name: "a Sentinel with a login", query: "?sentinel=kitchen&sentinel_password=" + canary, answers: map[string]string{"AUTH": wrongPass}, class: core.ErrDenied},
	{name: "a Sentinel that wants a login", query: "?sentinel=kitchen", class: core.ErrDenied, answers: map[string]string{
		"SENTINEL": "-NOAUTH Authentication required.", "CLIENT": "-NOAUTH Authentication required.",
	}},
	{name: "too old", answers: map[string]string{"INFO": "redis_version:5.0.14\r\nmaxmemory_policy:noeviction\r\n"}, class: core.ErrUnsupported},
	{name: "durable, without a file", query: "?require_durable=true", class: core.ErrConflict, answers: map[string]string{
		"INFO": "redis_version:7.0.15\r\nmaxmemory_policy:noeviction\r\naof_enabled:0\r\n",
	}},
	{name: "durable, with eviction", query: "?require_durable=true", class: core.ErrConflict, answers: map[string]string{
		"INFO": "redis_version:7.0.15\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:1\r\n",
	}},
}

func TestBadRedis(t *testing.T) {
	t.Parallel()
	cases := append(append([]redisCase{}, badRedis...), strange...)
	out := make([]string, len(cases))
	var wg sync.WaitGroup
	for i, c := range cases {
		addr := fakeRedis(t, c.answers)
		wg.Go(func() { out[i] = c.name + "\n    " + c.run(t, addr) })
	}
	wg.Wait()
	golden(t, "bad_redis.golden", out)
}

// run returns what the case is told, within its deadline.
func (c *redisCase) run(t *testing.T, addr string) string {
	t.Helper()
	config := adapters.Config{URL: "redis://" + c.user + addr + c.query, Provision: core.ProvisionNone}
	if !c.publish {
		return (&badCase{c.name, config, c.class}).open(t)
	}
	return published(t, c.name, config, c.class)
}

// TestRealRedisSaysTheSame: what the fake is made to say is what Redis says.
func TestRealRedisSaysTheSame(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	setup, err := adapters.Open(t.Context(), adapters.Config{URL: "redis://varal:right@" + server.addr, Provision: core.ProvisionCreate})
	if err != nil {
		t.Fatal(err)
	}
	err = setup.Publish(t.Context(), core.Queue("tickets"), &core.Message{ID: "0"})
	if err := errors.Join(err, setup.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	for _, c := range badRedis { // one after the other: two of them change the server
		switch c.name {
		case "out of memory":
			server.admin(t, "CONFIG", "SET", "maxmemory", "1kb")
		case "read-only replica":
			server.admin(t, "CONFIG", "SET", "maxmemory", "0")
			_, port, _ := strings.Cut(closedPort(t), ":")
			server.admin(t, "REPLICAOF", "127.0.0.1", port) // of nobody: what it has it serves
		}
		got := ports.ReplaceAllString(c.run(t, server.addr), "$1:PORT")
		if want := goldenLine(t, "bad_redis.golden", c.name); got != want {
			t.Errorf("%s\n real %s\n fake %s", c.name, got, want)
		}
	}
}

// realRedis is a server of the test's own.
type realRedis struct{ addr string }

// startRedis runs one with two users and no login without a password.
func startRedis(t *testing.T) realRedis {
	t.Helper()
	bin := adaptertest.RedisServer(t)
	r := realRedis{closedPort(t)}
	_, port, _ := strings.Cut(r.addr, ":")
	cmd := exec.CommandContext(t.Context(), bin, "--bind", "127.0.0.1", "--port", port, "--dir", t.TempDir(), "--save", "", "--loglevel", "warning",
		"--appendonly", "yes", "--maxmemory-policy", "noeviction", "--user", "default", "on", ">admin", "~*", "&*", "+@all",
		"--user", "varal", "on", ">right", "~*", "&*", "+@all", "--user", "waiter", "on", ">right", "~other*", "&*", "+@all", "-info")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the test's context has ended by now, and the process with it
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	deadline := time.Now().Add(10 * time.Second)
	for r.try(t, "PING") != "+PONG" {
		if time.Now().After(deadline) {
			t.Fatal("redis-server does not answer")
		}
		time.Sleep(10 * time.Millisecond) // it tells nobody when it is ready
	}
	return r
}
