package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/varal-go/varal/test/lab/oracle/logbook"
)

// runListen takes events until ctx ends.
func runListen(ctx context.Context, args []string, in io.Reader, out io.Writer) (int, error) {
	set := flag.NewFlagSet("oracle", flag.ContinueOnError)
	listen := set.String("listen", "", "`HOST:PORT` to take members on; loopback only, port 0 = any free one")
	file := set.String("out", "", "`FILE` to append events to; it must be new, or empty")
	attached := set.Bool("attached", false, "end when standard input ends, so that an oracle does not outlive who started it")
	if err := set.Parse(args); err != nil {
		return exitUsage, err
	}
	if *listen == "" || *file == "" || set.NArg() > 0 {
		return exitUsage, fmt.Errorf("%w: oracle --listen 127.0.0.1:0 --out FILE, or oracle judge FILE, or oracle controls", errUsage)
	}
	ln, err := loopback(ctx, *listen)
	if err != nil {
		return exitUsage, err
	}
	f, err := newLog(*file)
	if err != nil {
		return exitUsage, errors.Join(err, ln.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if *attached {
		go func() { // not waited for: a read of standard input ends with the process
			_, _ = io.Copy(io.Discard, in)
			cancel()
		}()
	}
	fmt.Fprintf(out, "listening on %s\n", ln.Addr())
	book := logbook.NewBook(f)
	err = book.Serve(ctx, ln)
	fmt.Fprintf(out, "%d events in %s\n", book.Events(), *file)
	if err := errors.Join(err, f.Close()); err != nil {
		return exitBroken, err
	}
	return exitOK, nil
}

// loopback listens where no other machine reaches: members are not authenticated.
func loopback(ctx context.Context, addr string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("%w: --listen: %w", errUsage, err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("%w: --listen %s is not a loopback address: members are not authenticated, use 127.0.0.1", errUsage, addr)
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	return ln, nil
}

// newLog opens a log that nothing is in: the times of two runs are not on one clock.
func newLog(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}
	st, err := f.Stat()
	if err == nil && st.Size() > 0 {
		err = fmt.Errorf("%w: --out %s holds another run; give a new name", errUsage, path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
