// Command oracle is the sequence oracle: a process that members of a test report to,
// and the judge of what they have reported.
//
//	oracle --listen 127.0.0.1:0 --out FILE      takes events until SIGTERM
//	oracle judge [--json] [--only V1,V2] FILE…  judges each file: V1–V7
//	oracle controls [--seed N] [--dir DIR]      runs the negative controls, prints control × verdict
//
// The first prints "listening on HOST:PORT" when it is ready. Exit codes of judge:
// 0 every check held, 1 something is broken, 3 nothing is broken and something is
// inconclusive, 2 usage or a file that cannot be read.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Exit codes.
const (
	exitOK           = 0
	exitBroken       = 1
	exitUsage        = 2
	exitInconclusive = 3
)

// errUsage is an error whose text tells what to write instead.
var errUsage = errors.New("usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, os.Args[1:], os.Stdin, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		code = max(code, exitBroken)
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string, in io.Reader, out io.Writer) (int, error) {
	if len(args) > 0 {
		switch args[0] {
		case "judge":
			return runJudge(args[1:], out)
		case "controls":
			return runControls(ctx, args[1:], out)
		}
	}
	return runListen(ctx, args, in, out)
}
