// Package cli is the command line of varal.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// The exit codes.
const (
	OK          = 0   // done
	Failed      = 1   // the run found a loss, a broken order, or a refusal
	Usage       = 2   // the command line or the configuration is wrong
	Unreachable = 3   // the broker cannot be reached, or refuses the credentials
	Interrupted = 130 // stopped by a signal before it was done
)

const exitCodes = `Exit codes:
  0    done
  1    the run found a loss or a broken order; a subscription was refused
  2    the command line or the configuration is wrong, or a destination is missing
  3    the broker cannot be reached, or refuses credentials or certificate
  130  stopped by a signal before it was done`

// fileNames belongs to the help of every command that takes a destination.
const fileNames = "Where --file has a\ndestination NAME, the file's name for it and its partitions hold."

// coded is an error with an exit code. Its text may be empty: all was said.
type coded struct {
	code int
	err  error
}

func (c *coded) Error() string { return c.err.Error() }
func (c *coded) Unwrap() error { return c.err }

var errFound = errors.New("")

// session is one call of the program: its streams, and whether they are terminals.
type session struct {
	in       io.Reader
	out, err io.Writer
	screen   bool // stdout is a terminal: colour
	live     bool // stderr is a terminal: progress
}

// Main runs the program with these arguments and returns its exit code. The first
// SIGINT or SIGTERM drains; the second one ends the process at once.
func Main(args []string, in io.Reader, out, errw io.Writer) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// Without this the runtime ends the process at the first write to a closed pipe,
	// before messages under way are given back.
	signal.Ignore(syscall.SIGPIPE)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	stopped := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-signals:
			cancel()
		case <-stopped:
			return
		}
		select {
		case <-signals:
			os.Exit(Interrupted)
		case <-stopped:
		}
	}()
	code := Run(ctx, args, in, out, errw)
	signal.Stop(signals)
	close(stopped)
	<-ended
	return code
}

// Run is Main without signals: the end of ctx drains.
func Run(ctx context.Context, args []string, in io.Reader, out, errw io.Writer) int {
	s := &session{in: in, out: out, err: errw, screen: isTerminal(out) && os.Getenv("NO_COLOR") == "", live: isTerminal(errw)}
	root := s.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errw)
	err := root.ExecuteContext(ctx)
	code := codeOf(ctx, err)
	if err != nil && err.Error() != "" && code != OK {
		_, _ = fmt.Fprintln(errw, "varal:", oneLine(err)) // stderr may be closed: nobody listens then
	}
	return code
}

// codeOf sorts an error into an exit code.
func codeOf(ctx context.Context, err error) int {
	c, ok := errors.AsType[*coded](err)
	switch {
	case err == nil:
		return OK
	case errors.Is(err, syscall.EPIPE), errors.Is(err, os.ErrClosed), errors.Is(err, io.ErrClosedPipe):
		return OK // the reader of our output has seen enough
	case ok:
		return c.code
	case ctx.Err() != nil:
		return Interrupted
	}
	switch driver.ClassOf(err) {
	case driver.Transient, driver.Ambiguous, driver.Denied, driver.Closed:
		return Unreachable
	}
	return Usage
}

// plainClass leaves out what says nothing to somebody at a prompt: the class of an error
// that is about what he wrote, and core's "subscribe" before the adapter's own.
func plainClass(text string) string {
	if rest, ok := strings.CutPrefix(text, "subscribe "+consumeName+": "); ok && strings.HasPrefix(rest, "subscribe ") {
		text = rest
	}
	return strings.TrimSuffix(text, " ("+driver.Permanent.String()+")")
}

// oneLine keeps an error from filling the screen or driving the terminal.
func oneLine(err error) string {
	text := []rune(plainClass(err.Error()))
	var b strings.Builder
	for _, r := range text[:min(len(text), 2000)] {
		switch {
		case r == '\n':
			b.WriteString("; ")
		case r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0:
			_, _ = fmt.Fprintf(&b, `\x%02x`, r) // a Builder does not fail
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func (s *session) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "varal",
		Short: "One set of handlers on memory, Kafka, RabbitMQ, Redis or SQS",
		Long: "varal shows what a broker does with messages, publishes and consumes.\n\n" +
			"Every command takes the broker from --url, or from the environment variable VARAL_URL:\n" +
			"  memory: (demo and describe)   kafka://host:9092   amqp://user:password@host:5672/   redis://host:6379\n" +
			"  sqs://region (queues and topics; no streams)\n\n" + exitCodes,
		Example:       "  varal demo\n  varal demo --url kafka://localhost:9092",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       readBuild().String(),
		Args:          known,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if c.HasParent() {
			err = fmt.Errorf("%s: %w", c.Name(), err)
		}
		return &coded{Usage, fmt.Errorf("%w (see %s --help)", err, c.CommandPath())}
	})
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(s.demo(), s.publish(), s.consume(), s.describe(), s.topology(), s.sessions(), s.bench(), s.version())
	return root
}

// known refuses a command there is not, and names the one that was probably meant.
func known(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(args[0]); args[0] != "" && len(near) > 0 {
		return usage("there is no command %.40q: did you mean %s?", args[0], strings.Join(near, " or "))
	}
	var all []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			all = append(all, sub.Name())
		}
	}
	return usage("there is no command %.40q: there are %s", args[0], strings.Join(all, ", "))
}

// usage is an error about the command line.
func usage(format string, args ...any) error { return &coded{Usage, fmt.Errorf(format, args...)} }

// parseDestination reads "queue:tickets".
func parseDestination(arg string, partitions int) (core.Destination, error) {
	shape, name, ok := strings.Cut(arg, ":")
	d := core.Destination{Name: name, Partitions: partitions}
	switch shape {
	case "queue":
		d.Shape = core.ShapeQueue
	case "topic":
		d.Shape = core.ShapeTopic
	case "stream":
		d.Shape = core.ShapeStream
	default:
		ok = false
	}
	switch {
	case !ok || name == "":
		return d, usage("%.80q is no destination: write queue:NAME, topic:NAME or stream:NAME", arg)
	case partitions < 0 || partitions > 100_000:
		return d, usage("--partitions %d is not within 0 (no order asked) and 100000", partitions)
	}
	return d, nil
}
