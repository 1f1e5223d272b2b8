package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/varal-go/varal/test/lab/check"
	"github.com/varal-go/varal/test/lab/oracle/control"
	"github.com/varal-go/varal/test/lab/oracle/judge"
)

// process is an oracle in a process of its own.
type process struct {
	Addr string
	cmd  *exec.Cmd
	in   io.Closer
	rest *bufio.Reader
}

// startProcess runs this binary as an oracle; env lets a test binary know.
func startProcess(ctx context.Context, file string, env ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "--listen", "127.0.0.1:0", "--attached", "--out", file)
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), os.Stderr
	cmd.WaitDelay = 5 * time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, in: in, rest: bufio.NewReader(out)}
	line, err := p.rest.ReadString('\n')
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok {
		return nil, errors.Join(fmt.Errorf("the oracle did not come up: %q", line), err, p.Stop())
	}
	p.Addr = addr
	return p, nil
}

// Stop ends the process in good order.
func (p *process) Stop() error {
	err := p.in.Close()
	_, _ = io.Copy(io.Discard, p.rest)
	return errors.Join(err, p.cmd.Wait())
}

// played is one run of a control, judged.
type played struct {
	judge.Report
	wrong []string // what the oracle should have said, and did not
}

// playControl runs a control against an oracle of its own and judges its file.
func playControl(ctx context.Context, c control.Control, seed uint64, dir string, env ...string) (played, error) {
	name := strings.Map(func(r rune) rune {
		if r == ' ' || r == ':' || r == ',' {
			return '-'
		}
		return r
	}, c.Name)
	file := filepath.Join(dir, fmt.Sprintf("%s-%d.jsonl", name, seed))
	p, err := startProcess(ctx, file, env...)
	if err != nil {
		return played{}, err
	}
	if err := errors.Join(c.Run(ctx, p.Addr, seed), p.Stop()); err != nil {
		return played{}, err
	}
	r, err := judge.File(file, check.Params{Attempts: control.Attempts})
	if err != nil {
		return played{}, err
	}
	return played{r, verify(c, &r)}, nil
}

// verify says where the verdicts are not those that the control must get.
func verify(c control.Control, r *judge.Report) []string {
	var wrong []string
	for _, p := range r.Problems {
		wrong = append(wrong, "the history is not sound: "+p)
	}
	broken := r.Broken()
	for _, id := range c.Must {
		v := r.Verdict(id)
		if v.Outcome != check.Broken {
			wrong = append(wrong, fmt.Sprintf("%s says %s (%s)", id, v.Outcome, v.Why))
		} else if len(v.Witness) == 0 {
			wrong = append(wrong, id+" accuses without a witness")
		}
	}
	for _, id := range broken {
		if !slices.Contains(c.Must, id) && !slices.Contains(c.May, id) {
			wrong = append(wrong, fmt.Sprintf("%s says broken: %s", id, r.Verdict(id).Why))
		}
	}
	for _, id := range c.Held {
		if v := r.Verdict(id); v.Outcome == check.Inconclusive {
			wrong = append(wrong, fmt.Sprintf("%s says inconclusive: %s", id, v.Why))
		}
	}
	return wrong
}

// runControls prints control × verdict, and fails when one is not as it must be.
func runControls(ctx context.Context, args []string, out io.Writer) (int, error) {
	set := flag.NewFlagSet("oracle controls", flag.ContinueOnError)
	seed := set.Uint64("seed", 1, "`N` that the controls are played with")
	dir := set.String("dir", "", "`DIR` to keep the histories in; empty = they are removed")
	if err := set.Parse(args); err != nil {
		return exitUsage, err
	}
	where := *dir
	if where == "" {
		tmp, err := os.MkdirTemp("", "varal-oracle-")
		if err != nil {
			return exitUsage, err
		}
		defer func() { _ = os.RemoveAll(tmp) }()
		where = tmp
	}
	all := map[string]played{}
	code := exitOK
	for _, c := range control.All() {
		r, err := playControl(ctx, c, *seed, where)
		if err != nil {
			return exitBroken, err
		}
		if all[c.Name] = r; len(r.wrong) > 0 {
			code = exitBroken
		}
	}
	return code, table(out, all)
}

// table prints control × verdict.
func table(out io.Writer, all map[string]played) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "control\t%s\tmust be\t\n", strings.Join(judge.IDs(), "\t"))
	for _, c := range control.All() {
		r, ok := all[c.Name]
		if !ok {
			continue
		}
		fmt.Fprintf(w, "%s\t", c.Name)
		for _, id := range judge.IDs() {
			fmt.Fprintf(w, "%s\t", map[check.Outcome]string{check.Held: "held", check.Broken: "BROKEN", check.Inconclusive: "-"}[r.Verdict(id).Outcome])
		}
		must := strings.Join(c.Must, " ")
		if c.Right() {
			must = "clean"
		}
		end := "as it must"
		if len(r.wrong) > 0 {
			end = "NOT: " + strings.Join(r.wrong, "; ")
		}
		fmt.Fprintf(w, "%s\t%s\n", must, end)
	}
	return w.Flush()
}
