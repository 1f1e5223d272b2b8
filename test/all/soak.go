package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Messages of the soak: what is promised of a CI run, and a tenth where somebody waits.
const (
	soakInCI   = 5_000_000
	soakBeside = 500_000
)

// soak sends millions of messages through the memory broker while members are killed.
func (s *session) soak() {
	n := soakBeside
	if s.ci {
		n = soakInCI
	}
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Minute)
	defer cancel()
	begun := time.Now()
	what := fmt.Sprintf("varal bench soak --messages %d", n)
	out, err := s.command(ctx, s.root, []string{"VARAL_URL="}, "go", "run", "./cmd/varal", "bench", "soak", "--messages", strconv.Itoa(n), "--json").CombinedOutput()
	var r struct {
		Rate       float64 `json:"rate"`
		Messages   int     `json:"messages"`
		Violations *int64  `json:"violations"`
		Lost       *int64  `json:"lost"`
		Attempts   int64   `json:"attempts"`
		Kills      int64   `json:"kills"`
	}
	bad := json.Unmarshal([]byte(lastLines(strings.TrimSpace(string(out)), 1)), &r)
	switch {
	case err != nil || bad != nil || r.Violations == nil || r.Lost == nil:
		s.fail(what, fmt.Sprintf("%v, %v\n%s", err, bad, out))
	case r.Messages != n || *r.Violations+*r.Lost > 0 || r.Kills == 0:
		s.fail(what, string(out))
	default:
		s.pass(what, time.Since(begun), fmt.Sprintf("%.0f msg/s, %d attempts judged, %d kills, 0 violations, 0 lost", r.Rate, r.Attempts, r.Kills))
	}
}
