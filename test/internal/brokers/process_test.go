//go:build unix

package brokers_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/varal-go/varal/test/internal/brokers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func sleeper(t *testing.T, script string) (brokers.Process, int) {
	t.Helper()
	p := brokers.NewProcess(t.TempDir(), "sleep-marker")
	if err := p.Spawn("/bin/sh", "-c", script, "sleep-marker"); err != nil {
		t.Fatal(err)
	}
	pid := p.PID()
	if pid == 0 {
		t.Fatal("the process that was just started is not recognised")
	}
	t.Cleanup(func() { _ = p.Stop(context.Background()) })
	return p, pid
}

func TestStopEndsTheProcess(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"that obeys":        "while :; do sleep 0.1; done",
		"that ignores TERM": "trap '' TERM; while :; do sleep 0.1; done",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, pid := sleeper(t, script)
			if err := p.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			if brokers.Lives(pid) {
				t.Errorf("pid %d still runs", pid)
			}
			if _, err := os.Stat(p.PidFile()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the pid file is still there: %v", err)
			}
		})
	}
}

// A pid file that is left over may name a process of somebody else by now: same
// number, but another start or another command. It must not be ended.
func TestForeignProcessIsLeftAlone(t *testing.T) {
	t.Parallel()
	p, pid := sleeper(t, "while :; do sleep 0.1; done")
	b, err := os.ReadFile(p.PidFile())
	if err != nil {
		t.Fatal(err)
	}
	_, start, _ := strings.Cut(string(b), "\n")
	for name, content := range map[string]string{
		"another start":   strconv.Itoa(pid) + "\n1\n",
		"another command": fmt.Sprintf("%d\n%s", pid, start),
	} {
		marker := "sleep-marker"
		if name == "another command" {
			marker = "kafka.Kafka"
		}
		other := brokers.NewProcess(t.TempDir(), marker)
		if err := os.WriteFile(other.PidFile(), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := other.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if !brokers.Lives(pid) {
			t.Fatalf("%s: the process was ended", name)
		}
	}
}

func TestTakenPortNamesItsHolder(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	err = brokers.FreePort(port)
	var taken *brokers.TakenError
	if !errors.As(err, &taken) {
		t.Fatalf("got %v, want a *TakenError", err)
	}
	if _, err := os.Stat("/proc/net/tcp"); err == nil && !strings.Contains(taken.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("%v does not name pid %d", taken, os.Getpid())
	}
	if !strings.Contains(taken.Error(), "--port-base") {
		t.Errorf("%v does not say what to do", taken)
	}
	_ = l.Close()
	// The port is ephemeral: on a busy machine somebody else may get it at once, so one
	// of several must be free.
	for range 5 {
		if err = brokers.FreePort(port); err == nil {
			return
		}
		l, listenErr := net.Listen("tcp", "127.0.0.1:0")
		if listenErr != nil {
			t.Fatal(listenErr)
		}
		port = l.Addr().(*net.TCPAddr).Port
		_ = l.Close()
	}
	t.Errorf("closed, and still %v", err)
}

func TestPortBaseOutOfRange(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := brokers.Status(ctx, brokers.Options{PortBase: 6000})
	if err == nil || !strings.Contains(err.Error(), "2767") {
		t.Errorf("got %v, want an error that names the largest base", err)
	}
}

func TestUnknownBroker(t *testing.T) {
	t.Parallel()
	_, err := brokers.Status(t.Context(), brokers.Options{}, "pulsar")
	if err == nil || !strings.Contains(err.Error(), "kafka, rabbitmq, redis, postgres, sqs") {
		t.Errorf("got %v, want an error that lists the known ones", err)
	}
}
