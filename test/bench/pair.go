package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/pprof"
	"slices"
	"time"
)

// sampler measures one side for about d in steady state: connected, its group
// joined, at least warmUp messages through before the clock starts. It opens and
// closes everything it needs, so that the other side has the machine for itself.
type sampler func(ctx context.Context, d time.Duration) (measure, error)

// warmUp is how many messages go through before the clock of a sample starts.
const warmUp = 100

// measure is what one sample saw.
type measure struct {
	messages int64
	elapsed  time.Duration
	allocs   uint64        // of the whole process while the clock ran; 0 = not counted
	cpu      time.Duration // likewise
}

func (m measure) rate() float64 { return float64(m.messages) / m.elapsed.Seconds() }

// cpuNanos is what one message cost this process, brokers of their own not included.
func (m measure) cpuNanos() float64 { return float64(m.cpu.Nanoseconds()) / float64(m.messages) }

// row is one comparison. Its name is stable: scripts read it.
type row struct {
	name string
	peer string // what the other side is
	what string // the work, in words
	bar  string // what the quotient is asked to be, in words
	met  func(ours, quotient float64) bool
	// prepare makes what both sides of one pair share (topics, preloaded messages).
	prepare func(ctx context.Context, d time.Duration) (*match, error)
}

// match is one row ready to be played.
type match struct {
	ours, peer sampler
	between    func(ctx context.Context) error // before every sample; may be nil
	end        func(ctx context.Context)       // may be nil
}

// atLeast is the usual bar.
func atLeast(q float64) (string, func(_, quotient float64) bool) {
	return fmt.Sprintf(">= %g", q), func(_, quotient float64) bool { return quotient >= q }
}

// result of one row. Ours and Peer are medians in messages per second, Quotient is the
// median of the quotients of the pairs: two runs side by side share the noise of
// their moment, two medians do not.
type result struct {
	Name     string    `json:"name"`
	Peer     string    `json:"peer"`
	What     string    `json:"what"`
	Ours     float64   `json:"ours_per_s"`
	PeerRate float64   `json:"peer_per_s"`
	Quotient float64   `json:"quotient"`
	Min      float64   `json:"min"`
	Max      float64   `json:"max"`
	Pairs    int       `json:"pairs"`
	Bar      string    `json:"bar"`
	Met      bool      `json:"met"`
	OursCPU  float64   `json:"ours_cpu_ns"`
	PeerCPU  float64   `json:"peer_cpu_ns"`
	OursAll  []float64 `json:"ours_all"`
	PeerAll  []float64 `json:"peer_all"`
}

// play runs pairs of samples, ours and peer in turn, each pair in the order opposite to
// the last, so that neither side always follows the other's garbage and page cache.
func play(ctx context.Context, r row, pairs int, d time.Duration, progress io.Writer) (result, error) {
	res := result{Name: r.name, Peer: r.peer, What: r.what, Pairs: pairs, Bar: r.bar}
	m, err := r.prepare(ctx, d)
	if err != nil {
		return res, fmt.Errorf("%s: prepare: %w", r.name, err)
	}
	if m.end != nil {
		defer m.end(context.WithoutCancel(ctx))
	}
	var quotients, oursCPU, peerCPU []float64
	for i := range pairs {
		ours, peer, err := m.pair(ctx, d, i%2 == 1)
		if err != nil {
			return res, fmt.Errorf("%s: pair %d: %w", r.name, i+1, err)
		}
		res.OursAll, res.PeerAll = append(res.OursAll, ours.rate()), append(res.PeerAll, peer.rate())
		oursCPU, peerCPU = append(oursCPU, ours.cpuNanos()), append(peerCPU, peer.cpuNanos())
		quotients = append(quotients, ours.rate()/peer.rate())
		_, _ = fmt.Fprintf(progress, "  %s pair %d/%d: ours %.0f/s, %s %.0f/s, quotient %.2f (CPU %.0f and %.0f ns)\n", r.name, i+1, pairs,
			ours.rate(), r.peer, peer.rate(), quotients[i], oursCPU[i], peerCPU[i])
	}
	res.OursCPU, res.PeerCPU = median(oursCPU), median(peerCPU)
	res.Ours, res.PeerRate, res.Quotient = median(res.OursAll), median(res.PeerAll), median(quotients)
	res.Min, res.Max = slices.Min(quotients), slices.Max(quotients)
	res.Met = r.met(res.Ours, res.Quotient)
	return res, nil
}

// pair takes one sample of each side.
func (m *match) pair(ctx context.Context, d time.Duration, peerFirst bool) (ours, peer measure, err error) {
	one := func(side string, s sampler) (got measure) {
		if err == nil && m.between != nil {
			err = m.between(ctx)
		}
		if err != nil {
			return got
		}
		runtime.GC() // what the other side left is not this one's to collect
		pprof.Do(ctx, pprof.Labels("side", side), func(ctx context.Context) { got, err = s(ctx, d) })
		if err == nil && got.messages == 0 {
			err = errors.New("nothing went through")
		}
		return got
	}
	if peerFirst {
		peer = one("peer", m.peer)
		ours = one("ours", m.ours)
		return ours, peer, err
	}
	ours = one("ours", m.ours)
	peer = one("peer", m.peer)
	return ours, peer, err
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	n := len(s)
	if n == 0 {
		return 0
	}
	if n%2 == 1 {
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}
