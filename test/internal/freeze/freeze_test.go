package freeze_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/varal-go/varal/test/internal/freeze"
)

// echoes makes this binary a process that answers each line.
const echoes = "VARAL_TEST_FREEZE_ECHO"

func TestMain(m *testing.M) {
	if os.Getenv(echoes) == "" {
		os.Exit(m.Run())
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(in.Text())
	}
}

// What is sent to a process after Stop is answered after Continue: it was frozen, not
// about to be. The signal alone fails this in a few of a hundred rounds on a busy machine.
func TestStoppedWhenStopReturns(t *testing.T) {
	t.Parallel()
	if !freeze.Supported {
		t.Skip(freeze.ErrUnsupported)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), echoes+"=1")
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
	answers := make(chan string)
	go func() {
		defer close(answers)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			answers <- lines.Text()
		}
	}()
	for i := range 200 {
		if err := freeze.Stop(cmd.Process); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(in, i)
		stopped := standsStill(t, cmd.Process.Pid)
		if err := freeze.Continue(cmd.Process); err != nil {
			t.Fatal(err)
		}
		if got := <-answers; got != fmt.Sprint(i) {
			t.Fatalf("round %d was answered with %q", i, got)
		}
		if !stopped {
			t.Fatalf("round %d: a thread ran after Stop had returned", i)
		}
	}
}

// Stop of a process that has ended leaves it to be waited for.
func TestStopOfAnEndedProcess(t *testing.T) {
	t.Parallel()
	if !freeze.Supported {
		t.Skip(freeze.ErrUnsupported)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
	}
	if err := freeze.Stop(cmd.Process); err != nil {
		t.Errorf("it stopped or it ended, and Stop says %v", err)
	}
	_ = freeze.Continue(cmd.Process)
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Stop its end cannot be waited for: %v", err)
	}
	if err := freeze.Stop(cmd.Process); err == nil {
		t.Error("Stop of a process that was waited for is an error: there is nothing to freeze")
	}
}
