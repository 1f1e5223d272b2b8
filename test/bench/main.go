// Command bench compares varal with Watermill and with the raw clients, both sides in
// one process and in turn, and prints the quotients.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	pairs   int
	seconds float64
	json    bool
	only    string
	profile string
	ballast int
	install bool
	groups  []string
}

var groups = map[string]func() []row{"engine": engineRows, "kafka": kafkaRows, "rabbitmq": rabbitRows, "redis": redisRows, "sqs": sqsRows}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if arg := os.Getenv(backlogEnv); arg != "" {
		err = backlogChild(ctx, arg, nil, os.Stdout)
	} else {
		err = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&o.pairs, "pairs", 7, "alternating pairs of samples for each row")
	f.Float64Var(&o.seconds, "seconds", 3, "length of one sample in seconds")
	f.BoolVar(&o.json, "json", false, "print JSON, one object a line")
	f.StringVar(&o.only, "run", "", "only rows whose name contains this")
	f.IntVar(&o.ballast, "ballast", 64, "MiB kept alive, as a service has them; 0 = none")
	f.BoolVar(&o.install, "install", os.Getenv("CI") == "true", "install what a peer needs and is not there, into a folder in the user's cache")
	f.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile of everything to this file")
	f.Usage = func() {
		_, _ = fmt.Fprintln(stderr, "usage: bench [flags] [engine kafka rabbitmq redis sqs latency]")
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.groups = f.Args()
	if len(o.groups) == 0 {
		o.groups = []string{"engine", "kafka", "rabbitmq", "redis", "sqs"}
	}
	for _, g := range o.groups {
		if groups[g] == nil && g != latencyGroup {
			return o, fmt.Errorf("there is no group %q: use engine, kafka, rabbitmq, redis, sqs or latency", g)
		}
	}
	if o.pairs < 1 || o.seconds <= 0 {
		return o, fmt.Errorf("-pairs and -seconds must be positive")
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if o.profile != "" {
		f, err := os.Create(o.profile)
		if err != nil {
			return err
		}
		defer f.Close() //nolint:errcheck // the profile is written by StopCPUProfile
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	// A few MiB of live heap make the collector run a hundred times a second, for both
	// sides: what is measured then is the collector. A service has more alive than that.
	ballast := make([]byte, max(o.ballast, 0)<<20)
	defer runtime.KeepAlive(ballast)
	install = o.install
	p := printer{out: stdout, json: o.json}
	p.machine(describe(ctx, o))
	failed := 0
	for _, g := range o.groups {
		if g == latencyGroup {
			if err := p.latency(ctx, o, stderr); err != nil {
				return err
			}
			continue
		}
		rows := slices.DeleteFunc(groups[g](), func(r row) bool { return !strings.Contains(r.name, o.only) })
		for _, r := range rows {
			_, _ = fmt.Fprintf(stderr, "%s: %s, against %s\n", r.name, r.what, r.peer)
			res, err := play(ctx, r, o.pairs, time.Duration(o.seconds*float64(time.Second)), stderr)
			if out, ok := errors.AsType[leftOut](err); ok {
				p.leftOut(r, out)
				continue
			}
			if err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				failed++
				_, _ = fmt.Fprintln(stderr, "bench:", err)
				continue
			}
			p.result(res)
		}
		for _, extra := range p.extra(g) {
			if err := extra(ctx, o, stderr); err != nil {
				return err
			}
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d rows could not be measured", failed)
	}
	return nil
}

// extra are the rows of a group that have no peer.
func (p printer) extra(group string) []func(context.Context, options, io.Writer) error {
	switch group {
	case "engine":
		return []func(context.Context, options, io.Writer) error{p.consume}
	case "redis":
		return []func(context.Context, options, io.Writer) error{p.redisLateness, p.redisBacklog}
	case "sqs":
		return []func(context.Context, options, io.Writer) error{p.sqsRequests}
	}
	return nil
}

// printer writes results as lines or as JSON.
type printer struct {
	out  io.Writer
	json bool
}

func (p printer) machine(m []fact) {
	if p.json {
		o := map[string]string{}
		for _, f := range m {
			o[f.name] = f.value
		}
		p.object(map[string]any{"machine": o})
		return
	}
	for _, f := range m {
		_, _ = fmt.Fprintf(p.out, "# %s: %s\n", f.name, f.value)
	}
}

func (p printer) result(r result) {
	if p.json {
		p.object(r)
		return
	}
	_, _ = fmt.Fprintf(p.out, "ratio %s %.0f %.0f %.2f  min %.2f max %.2f  cpu %.0f/%.0f ns  bar %s: %s\n",
		r.Name, r.Ours, r.PeerRate, r.Quotient, r.Min, r.Max, r.OursCPU, r.PeerCPU, r.Bar, verdict(r.Met))
}

// leftOut is why a row is not measured here, and what to do about it. It is no failure.
type leftOut string

func (l leftOut) Error() string { return string(l) }

func (p printer) leftOut(r row, why leftOut) {
	if p.json {
		p.object(map[string]string{"name": r.name, "left_out": string(why)})
		return
	}
	_, _ = fmt.Fprintf(p.out, "left out %s: %s\n", r.name, why)
}

func (p printer) object(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic("bench: a result that is not JSON: " + err.Error()) // our own plain structs
	}
	_, _ = fmt.Fprintln(p.out, string(b))
}

func verdict(met bool) string {
	if met {
		return "met"
	}
	return "MISSED"
}
