package all_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/varal-go/varal/test/conformance"
)

// TestMain is also the main of the processes that are killed and frozen: the test
// binary starts itself with the adapter's name in this variable.
func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		os.Exit(child(name))
	}
	code := m.Run()
	// An adapter that is broken on purpose takes up to 14 s to close.
	err := goleak.Find()
	for end := time.Now().Add(30 * time.Second); code == 0 && err != nil && time.Now().Before(end); err = goleak.Find() {
		time.Sleep(200 * time.Millisecond)
	}
	if code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, "goleak:", err)
		code = 1
	}
	os.Exit(code)
}

const childEnv = "VARAL_CONFORMANCE_CHILD"

func child(name string) int {
	ctx := context.Background()
	open, ok := children[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "no adapter %q\n", name)
		return 2
	}
	d, err := open(ctx)
	if err == nil {
		err = conformance.WorkMain(ctx, d, os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
