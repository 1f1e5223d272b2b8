package cli_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// TestOnRedis runs each command that asks a broker on a real one.
func TestOnRedis(t *testing.T) {
	t.Parallel()
	url := os.Getenv("VARAL_REDIS_URL")
	if url == "" {
		if strings.Contains(os.Getenv("VARAL_REQUIRE"), "redis") {
			t.Fatal("VARAL_REQUIRE names redis and VARAL_REDIS_URL is not set")
		}
		t.Skip("VARAL_REDIS_URL is not set: no redis to ask")
	}
	namespace := "cli-" + strings.ToLower(rand.Text()[:8])
	t.Cleanup(func() { forget(t, url, namespace) })
	on := []string{"--url", url + "?namespace=" + namespace}
	for _, c := range []struct {
		args []string
		want string // of the output
	}{
		{[]string{"describe", "queue:tickets", "--partitions", "4"}, "ordered        emulated"},
		{[]string{"publish", "--create", "queue:tickets", "--partitions", "4", "--key", "table-7", "--body", "margherita"}, "\n"},
		{[]string{"consume", "queue:tickets", "--partitions", "4", "--max", "1", "--idle", "10s"}, "margherita"},
		{[]string{"publish", "--create", "stream:diary", "--body", "opened"}, "\n"},
		{[]string{"consume", "stream:diary", "--from", "earliest", "--max", "1", "--idle", "10s"}, "opened"},
	} {
		code, out, errs := run(t, "", append(c.args, on...)...)
		if code != 0 || !strings.Contains(out, c.want) {
			t.Errorf("%q: %d, %q, %q", c.args, code, out, errs)
		}
	}
	var v map[string]any
	code, out, errs := run(t, "", append([]string{"bench", "sessions", "--messages", "500", "--json"}, on...)...)
	if code != 0 || json.Unmarshal([]byte(out), &v) != nil || v["messages"] != 500.0 || v["violations"] != 0.0 || v["lost"] != 0.0 {
		t.Errorf("bench sessions: %d, %q, %q", code, out, errs)
	}
}

// forget deletes what the test has left.
func forget(t *testing.T, url, namespace string) {
	t.Helper()
	opts, err := redis.ParseURL(url)
	if err != nil {
		t.Error(err)
		return
	}
	c := redis.NewClient(opts)
	defer func() { _ = c.Close() }()
	keys := c.Scan(context.Background(), 0, namespace+":*", 1000).Iterator()
	for keys.Next(context.Background()) {
		if err := c.Unlink(context.Background(), keys.Val()).Err(); err != nil {
			t.Error(err)
		}
	}
	if err := keys.Err(); err != nil {
		t.Error(err)
	}
}
