//go:build unix

package kafka_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/varal-go/varal/adapters/kafka"
	"github.com/varal-go/varal/core/driver"
)

// frozenTopic makes the test binary the member of TestThawedMember: the topic to read.
const frozenTopic = "VARAL_TEST_FROZEN_TOPIC"

func init() {
	if name := os.Getenv(frozenTopic); name != "" {
		if err := frozen(name); err != nil {
			fmt.Println("error", err)
		}
		os.Exit(0)
	}
}

// frozen prints the epoch of a first message, waits for a line, and prints the epoch of
// every other message until its input ends.
func frozen(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	d, err := kafka.Open(ctx, kafka.Config{
		Brokers:  strings.Split(os.Getenv("VARAL_TEST_FROZEN_BROKERS"), ","),
		Assignor: os.Getenv("VARAL_TEST_FROZEN_ASSIGNOR"),
	})
	if err != nil {
		return err
	}
	c, err := d.Subscribe(ctx, driver.Subscription{From: driver.Destination{Shape: driver.Queue, Name: name}})
	if err != nil {
		return err
	}
	in := bufio.NewReader(os.Stdin)
	for n := 1; ; n = 100 {
		batch, err := c.Receive(ctx, driver.Demand{Records: n, Bytes: 1 << 30, Limit: 1 << 20})
		if err != nil && driver.ClassOf(err) != driver.Transient {
			return err
		}
		for _, m := range batch {
			fmt.Println("epoch", m.Receipt.Epoch)
		}
		if n == 1 {
			_, _ = in.ReadString('\n')
		}
	}
}

// A process that stood still for longer than its session hands out nothing of what it
// holds when it goes on: another member has it by then. It
// looks as soon as it runs.
func TestThawedMember(t *testing.T) {
	either(t, func(t *testing.T, b broker) {
		d := b.open(t, func(c *kafka.Config) { c.SessionTimeout = 0 })
		to := topic(t, d, driver.Queue, 1)
		publish(t, d, to, messages(20, 1))
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), frozenTopic+"="+to.Name, "VARAL_TEST_FROZEN_BROKERS="+strings.Join(b.conf.Brokers, ","), "VARAL_TEST_FROZEN_ASSIGNOR="+b.conf.Assignor)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		lines := bufio.NewScanner(out)
		if !lines.Scan() || lines.Text() != "epoch 1" {
			t.Fatalf("the member says %q (%v)", lines.Text(), lines.Err())
		}
		if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		heir := consume(t, d, to, "")
		heir.owns(t, 1)
		heir.collect(t, 20) // it commits nothing
		_, _ = in.Write([]byte("\n"))
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		shut(t, heir) // the partition is free again
		if !lines.Scan() || lines.Text() != "epoch 2" {
			t.Errorf("after the thaw the member says %q (%v), want a message of its next assignment", lines.Text(), lines.Err())
		}
	})
}
