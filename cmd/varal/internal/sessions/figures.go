package sessions

import (
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
)

// sample draws the figures of a round that began at this nanosecond. Nothing runs any
// more.
func (r *round) sample(began int64) Sample {
	var all []int64
	end := began
	for i := range r.check.lines {
		l := &r.check.lines[i]
		all = append(all, l.latency...)
		end = max(end, l.end)
	}
	slices.Sort(all)
	a := r.check.verdict()
	s := Sample{Side: r.side, checked: r.check.attempts.Load(), Figures: Figures{
		Violations: r.check.violations.Load(), Lost: a.lost, Duplicates: a.duplicates,
		P50: millis(all, 0.5), P99: millis(all, 0.99), P999: millis(all, 0.999), Max: millis(all, 1),
	}}
	if d := end - began; d > 0 {
		s.Rate = round3(float64(len(all)) / time.Duration(d).Seconds())
	}
	s.notes = r.check.notes
	return s
}

// millis is a percentile of sorted nanoseconds, by nearest rank.
func millis(sorted []int64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return round3(float64(sorted[max(i, 0)]) / 1e6)
}

func round3(v float64) float64 { return math.Round(v*1000) / 1000 }

// merge is the median of each figure, and the sum or the worst of what may not be.
func merge(samples []Sample) (f Figures) {
	pick := func(of func(Sample) float64) float64 {
		v := make([]float64, len(samples))
		for i := range samples {
			v[i] = of(samples[i])
		}
		return median(v)
	}
	f.Rate = pick(func(s Sample) float64 { return s.Rate })
	f.P50 = pick(func(s Sample) float64 { return s.P50 })
	f.P99 = pick(func(s Sample) float64 { return s.P99 })
	f.P999 = pick(func(s Sample) float64 { return s.P999 })
	for i := range samples {
		f.Max = max(f.Max, samples[i].Max)
		f.Violations += samples[i].Violations
		f.Lost += samples[i].Lost
		f.Duplicates += samples[i].Duplicates
	}
	return f
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	n := len(s)
	switch {
	case n == 0:
		return 0
	case n%2 == 1:
		return s[n/2]
	}
	return round3((s[n/2-1] + s[n/2]) / 2)
}

// report puts the samples together. The ratios are medians of the quotients of the
// pairs: two rounds side by side share the noise of their moment.
func (o *Options) report(samples []Sample) *Report {
	r := &Report{
		Mode: "closed", Broker: adapters.Redact(o.Broker.URL), Messages: o.total(), Sessions: o.Sessions,
		ServiceMS: ms(o.Service), Transient: o.Transient, BackoffMS: ms(o.Backoff), Jitter: jitterName(o.Jitter),
		Mailbox: o.Mailbox, KeyLaw: "uniform", Partitions: o.Partitions, Payload: o.Payload,
		Workers: o.Workers, Prefetch: o.Prefetch, Cores: runtime.GOMAXPROCS(0), Ceiling: round3(o.ceiling()),
		Rounds: o.Rounds, Seed: o.Seed,
	}
	var ours, peers []Sample
	for _, s := range samples {
		if s.Side == "peer" {
			peers = append(peers, s)
		} else {
			ours = append(ours, s)
		}
		r.Checked += s.checked
		for _, n := range s.notes {
			r.Notes = append(r.Notes, s.Side+": "+n)
		}
	}
	r.Figures = merge(ours)
	if o.OpenLoop {
		r.Mode, r.Target, r.Share = "open", o.Rate, math.Round(r.Rate/float64(o.Rate)*1e5)/1e5
	}
	if len(samples) > 1 {
		r.All = samples
	}
	if len(peers) > 0 {
		r.compare(ours, peers)
	}
	return r
}

func (r *Report) compare(ours, peers []Sample) {
	f := merge(peers)
	r.Peer = &f
	var rates, halves []float64
	for i := range min(len(ours), len(peers)) {
		if peers[i].Rate == 0 || peers[i].P50 == 0 {
			continue
		}
		rates = append(rates, ours[i].Rate/peers[i].Rate)
		halves = append(halves, ours[i].P50/peers[i].P50)
	}
	r.Ratio, r.P50Ratio = round3(median(rates)), round3(median(halves))
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

func jitterName(j core.Jitter) string {
	return [...]string{core.FullJitter: "full", core.HalfJitter: "half", core.NoJitter: "none"}[j]
}
