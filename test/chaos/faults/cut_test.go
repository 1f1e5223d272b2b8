//go:build unix

package faults

import (
	"testing"
	"time"

	"github.com/varal-go/varal/test/chaos"
	"github.com/varal-go/varal/test/internal/brokers"
	"github.com/varal-go/varal/test/lab/history"
)

// testCut: the connections of a consumer and of a publisher are reset again and again,
// swallowed both ways for 20 s, and one way each. Another publisher, untouched, shows
// when consuming resumes.
func testCut(t *testing.T, r brokers.Report, keyed bool) {
	s := newScene(t, r, keyed)
	rate := 40
	if r.Broker == "sqs" {
		rate = 8 // an emulator that would take longer to catch up than it was out of reach
	}
	c := s.consumer("c1", consumerArgs{target: target{Net: true}, Hold: 5 * time.Millisecond})
	hurt := []*chaos.Proc{c, s.publisher("pf", publisherArgs{target: target{Net: true}, Keys: 16, Rate: rate})}
	s.publisher("p1", publisherArgs{Keys: 16, Rate: rate})
	s.resumed("the start")
	var heals []string
	heal := func(name string) {
		s.resumed(name)
		heals = append(heals, name)
	}
	for range 8 {
		for _, p := range hurt {
			s.command(p, history.OpFault, history.FaultCut, "cut")
		}
		s.pass(200*time.Millisecond + time.Duration(s.rng.IntN(400))*time.Millisecond)
	}
	for _, p := range hurt { // no fault to end: it marks the moment
		s.command(p, history.OpHeal, history.FaultCut, "heal")
	}
	heal("resume after 8 resets")
	for _, f := range []struct {
		name, cmd string
		lasts     time.Duration
	}{
		{"resume after a black hole of 20 s", "hole", 20 * time.Second},
		{"resume after 8 s without answers", "deaf", 8 * time.Second},
		{"resume after 8 s without being heard", "mute", 8 * time.Second},
	} {
		for _, p := range hurt {
			s.command(p, history.OpFault, history.FaultBlackHole, f.cmd)
		}
		s.pass(f.lasts)
		for _, p := range hurt {
			s.command(p, history.OpHeal, history.FaultBlackHole, "heal")
		}
		heal(f.name)
	}
	s.drain(60 * time.Second)
	h := s.judge()
	t.Logf("measured: publishes through the faults: %s", outcomes(h, "pf"))
	i := 0
	for j := range h.Events {
		// The last of the two heals of a phase is the publisher's.
		if e := &h.Events[j]; e.Op == history.OpHeal && e.Dest == "pf" {
			s.measureResume(h, heals[i], e)
			i++
		}
	}
}
