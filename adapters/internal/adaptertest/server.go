package adaptertest

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// FreeAddr is an address on loopback where nobody listens now.
func FreeAddr(t testing.TB) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// RedisServer is the binary of the server, for one of the test's own. Without it the test is
// skipped, or fails where VARAL_REQUIRE names redis and the server that all share runs from
// it: one in a container need not have a binary beside it.
func RedisServer(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		if strings.Contains(os.Getenv("VARAL_REQUIRE"), "redis") && os.Getenv("VARAL_REDIS_PIDFILE") != "" {
			t.Fatal("redis-server is not in PATH and VARAL_REQUIRE names redis")
		}
		t.Skip("there is no redis-server in PATH to start one of the test's own: apt-get install redis-server")
	}
	return path
}
