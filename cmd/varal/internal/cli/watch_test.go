package cli_test

import (
	"crypto/rand"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/varal-go/varal/cmd/varal/internal/cli"
)

// TestWatchesATopicWithoutAGroup: two commands that name no group both see what is published
// while they run, and nothing from before.
func TestWatchesATopicWithoutAGroup(t *testing.T) {
	t.Parallel()
	for name, url := range watchable(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			say := func(body string) {
				if code, _, errs := run(t, "", "publish", "--create", "--url", url, "topic:news", "--body", body); code != 0 {
					t.Fatalf("publish: %d, %q", code, errs)
				}
			}
			say("stale")
			one, first := process(t, "consume", "--create", "--url", url, "topic:news")
			two, second := process(t, "consume", "--create", "--url", url, "topic:news")
			for end := time.Now().Add(30 * time.Second); !strings.Contains(first.String(), "fresh") || !strings.Contains(second.String(), "fresh"); {
				if time.Now().After(end) {
					t.Fatalf("not both have seen what was published: %q, %q", first, second)
				}
				say("fresh") // until both have begun
				time.Sleep(50 * time.Millisecond)
			}
			for out, p := range map[*lines]func() int{
				first:  func() int { stop(t, one, syscall.SIGTERM); return one.ProcessState.ExitCode() },
				second: func() int { stop(t, two, syscall.SIGINT); return two.ProcessState.ExitCode() },
			} {
				if code := p(); code != cli.OK || strings.Contains(out.String(), "stale") {
					t.Errorf("exit code %d, %q", code, out)
				}
			}
			if addr, ok := strings.CutPrefix(url, "kafka://"); ok {
				noGroups(t, addr)
			}
		})
	}
}

// watchable are the brokers of this run whose topics can be watched by two processes.
func watchable(t *testing.T) map[string]string {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	urls := map[string]string{"Kfake": "kafka://" + c.ListenAddrs()[0]}
	if u := os.Getenv("VARAL_REDIS_URL"); u != "" { // TestOnRedis tells what is missing
		namespace := "cli-" + strings.ToLower(rand.Text()[:8])
		t.Cleanup(func() { forget(t, u, namespace) })
		urls["Redis"] = u + "?namespace=" + namespace
		urls["RedisBroadcast"] = u + "?broadcast=true&namespace=" + namespace
	}
	return urls
}

// noGroups checks that the groups have ended with their commands.
func noGroups(t *testing.T, addr string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	groups, err := kadm.NewClient(cl).ListGroups(t.Context())
	if names := groups.Groups(); err != nil || len(names) > 0 {
		t.Errorf("groups are left: %q, %v", names, err)
	}
}
