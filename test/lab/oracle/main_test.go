package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/varal-go/varal/test/lab/check"
	"github.com/varal-go/varal/test/lab/history"
	"github.com/varal-go/varal/test/lab/oracle/control"
	"github.com/varal-go/varal/test/lab/oracle/judge"
	"github.com/varal-go/varal/test/lab/oracle/record"
)

// The test binary is the oracle, or a member, of its own tests.
const (
	asOracle = "VARAL_TEST_ORACLE=1"
	asMember = "VARAL_TEST_MEMBER"

	// The race detector makes a process wait a second before it exits.
	noWait = "GORACE=atexit_sleep_ms=0"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv("VARAL_TEST_ORACLE") != "":
		main()
	case os.Getenv(asMember) != "":
		flood(os.Getenv(asMember))
	default:
		goleak.VerifyTestMain(m)
	}
}

// oracle starts one and returns it with its file.
func oracle(t *testing.T) (*process, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "run.jsonl")
	p, err := startProcess(context.Background(), file, asOracle, noWait)
	if err != nil {
		t.Fatal(err)
	}
	return p, file
}

// seeds is how many a test tries: all, fewer in a short run.
func seeds(n uint64) uint64 {
	if testing.Short() {
		return max(n/10, 1)
	}
	return n
}

var tables = struct {
	sync.Mutex
	all map[string]played
}{all: map[string]played{}}

// Every wrong control is caught by the check that names it and by no other, with every
// seed; over the right ones nothing is broken with any.
func TestControls(t *testing.T) {
	t.Parallel()
	t.Run("all", func(t *testing.T) {
		for _, c := range control.All() {
			t.Run(c.Name, func(t *testing.T) {
				t.Parallel()
				n := seeds(5)
				if c.Right() {
					n = seeds(50)
				}
				testControl(t, c, n)
			})
		}
	})
	var b bytes.Buffer
	if err := table(&b, tables.all); err != nil {
		t.Fatal(err)
	}
	t.Logf("one seed of each:\n%s", &b)
	caught := map[string]bool{}
	for _, c := range control.All() {
		for _, id := range c.Must {
			caught[id] = true
		}
	}
	for _, id := range judge.IDs() {
		if !caught[id] {
			t.Errorf("no control has to be caught by %s: it proves nothing", id)
		}
	}
}

// testControl plays several seeds at once: a run mostly waits, for leases, for commits.
func testControl(t *testing.T, c control.Control, n uint64) {
	dir := t.TempDir()
	next := make(chan uint64)
	var players sync.WaitGroup
	for range 10 {
		players.Go(func() {
			for seed := range next {
				testSeed(t, c, seed, dir)
			}
		})
	}
	for seed := uint64(0); seed < n && !t.Failed(); seed++ {
		next <- seed
	}
	close(next)
	players.Wait()
}

func testSeed(t *testing.T, c control.Control, seed uint64, dir string) {
	r, err := playControl(t.Context(), c, seed, dir, asOracle, noWait)
	if err != nil {
		t.Errorf("seed %d: %v", seed, err)
		return
	}
	tables.Lock()
	tables.all[c.Name] = r
	tables.Unlock()
	if len(r.wrong) > 0 {
		var b strings.Builder
		_ = r.Text(&b)
		t.Errorf("seed %d: %s\n%s", seed, strings.Join(r.wrong, "; "), b.String())
	}
}

// verify must be able to fail: a right control held against what a wrong one must get.
func TestVerifyFails(t *testing.T) {
	t.Parallel()
	var right, wrong control.Control
	for _, c := range control.All() {
		switch c.Name {
		case "right: keyed queue":
			right = c
		case "drop on full":
			wrong = c
		}
	}
	r, err := playControl(t.Context(), wrong, 1, t.TempDir(), asOracle, noWait)
	if err != nil {
		t.Fatal(err)
	}
	if got := verify(right, &r.Report); len(got) == 0 {
		t.Error("a control that drops messages passes for a right one")
	}
	r.Report.Verdicts = nil
	if got := verify(wrong, &r.Report); len(got) != len(wrong.Must) {
		t.Errorf("no verdicts at all: %q", got)
	}
}

// flood is a member that reports for ever, and says on standard output what the oracle
// has acknowledged. It ends with SIGKILL.
func flood(addr string) {
	c, err := record.Dial(context.Background(), addr, record.Options{Proc: "victim", Buffer: 64})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	var out sync.Mutex
	for w := range 8 {
		go func() {
			for i := 1; ; i++ {
				id := strconv.Itoa(w) + "." + strconv.Itoa(i)
				if c.Record(history.Event{Op: history.OpStart, ID: id, Key: "k" + strconv.Itoa(w), N: i}) != nil {
					return
				}
				out.Lock()
				fmt.Println(id)
				out.Unlock()
			}
		}()
	}
	select {}
}

// A member that is killed loses nothing that it was told is in the file; and the file
// is whole: no torn line, no gap.
func TestKilledMemberLosesNothing(t *testing.T) {
	t.Parallel()
	p, file := oracle(t)
	lab, err := record.Dial(t.Context(), p.Addr, record.Options{Proc: "lab"})
	if err != nil {
		t.Fatal(err)
	}
	acked := map[string]bool{}
	const kills = 5
	for gen := 1; gen <= kills; gen++ {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), asMember+"="+p.Addr)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			acked[strconv.Itoa(gen)+"/"+lines.Text()] = true
			if n == 200*gen {
				lab.Emit(history.Event{Op: history.OpFault, Outcome: history.FaultKill, Dest: "victim", N: gen})
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the member was not killed")
		}
	}
	if err := errors.Join(lab.Close(), p.Stop()); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var events []history.Event
	rep, err := history.Read(bytes.NewReader(raw), func(e history.Event) error {
		events = append(events, e)
		delete(acked, strconv.Itoa(e.Gen)+"/"+e.ID)
		return nil
	})
	if err != nil || rep.Bad > 0 || rep.Torn {
		t.Fatalf("%+v, %v", rep, err)
	}
	for id := range acked {
		if !strings.HasSuffix(id, ".") && strings.Count(id, ".") == 1 {
			t.Errorf("%s was acknowledged and is not in the file (%d of %d events)", id, len(acked), len(events))
			break
		}
	}
	if h := history.New(events); len(h.Problems) > 0 {
		t.Error(h.Problems)
	}
	t.Logf("%d events, %d kills", len(events), kills)
}

// The clock and the order of the file are those of the oracle.
func TestFileIsInOrder(t *testing.T) {
	t.Parallel()
	p, file := oracle(t)
	var members sync.WaitGroup
	for i := range 4 {
		members.Go(func() {
			c, err := record.Dial(t.Context(), p.Addr, record.Options{Proc: "m" + strconv.Itoa(i)})
			if err != nil {
				t.Error(err)
				return
			}
			for n := range 200 {
				c.Emit(history.Event{Op: history.OpTick, N: n, T: 1 << 60})
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	members.Wait()
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, last := 0, int64(0)
	if _, err := history.Read(f, func(e history.Event) error {
		if n++; e.T <= last || e.T > int64(time.Hour) {
			return fmt.Errorf("event %d has time %d after %d", n, e.T, last)
		}
		last = e.T
		return nil
	}); err != nil {
		t.Error(err)
	}
	if n != 4*202 {
		t.Errorf("%d events, want %d", n, 4*202)
	}
}

func write(t *testing.T, events ...history.Event) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "h.jsonl")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := range events {
		events[i].T = int64(i+1) * 1e6
	}
	if err := history.Write(f, events); err != nil {
		t.Fatal(err)
	}
	return path
}

// overlapping is the smallest history in which V1 is broken and nothing else.
func overlapping() []history.Event {
	e := func(proc string, op history.Op, id string, n int, outcome string) history.Event {
		return history.Event{Proc: proc, Gen: 1, Op: op, ID: id, Key: "k", N: n, Outcome: outcome}
	}
	return []history.Event{
		e("lab", history.OpPub, "p.1", 1, ""), e("lab", history.OpPubd, "p.1", 1, "ok"),
		e("a", history.OpStart, "p.1", 1, ""), e("b", history.OpStart, "p.1", 1, ""),
		e("a", history.OpEnd, "p.1", 1, "ok"), e("b", history.OpEnd, "p.1", 1, "ok"),
		{Proc: "lab", Gen: 1, Op: history.OpDrained, Outcome: "ok"},
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	bad := write(t, overlapping()...)
	good := slices.DeleteFunc(overlapping(), func(e history.Event) bool { return e.Proc == "b" })
	forged := overlapping()
	for i := range forged {
		forged[i].Key = "k\nV1 held"
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"broken", []string{bad}, exitBroken, []string{"V1   BROKEN", "p.1 started at b while p.1 ran at a", "a/1 start p.1", "b/1 start p.1", "rule: at most one handler"}},
		{"held", []string{"--only", "V1,V3", write(t, good...)}, exitOK, []string{": held", "V1   held", "V3   held"}},
		{"inconclusive", []string{write(t, good...)}, exitInconclusive, []string{"V4   inconclusive", "never happened"}},
		{"the worst of two", []string{"--only", "V1", write(t, good...), bad}, exitBroken, nil},
		{"an empty file", []string{write(t)}, exitInconclusive, nil},
		{"control characters", []string{"--only", "V1", write(t, forged...)}, exitBroken, []string{`\nV1 held`}},
		{"no file", nil, exitUsage, nil},
		{"a file that is not there", []string{"nowhere.jsonl"}, exitUsage, nil},
		{"no such check", []string{"--only", "V11", bad}, exitUsage, nil},
		{"no such flag", []string{"--fast", bad}, exitUsage, nil},
	} {
		var out strings.Builder
		code, err := runJudge(c.args, &out)
		if code != c.code || (err != nil) != (code == exitUsage) {
			t.Errorf("%s: code %d, %v; want %d", c.name, code, err, c.code)
		}
		for _, w := range c.want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s: %q is not in\n%s", c.name, w, out.String())
			}
		}
		if strings.Contains(out.String(), "\nV1 held") {
			t.Errorf("%s: a history has forged a line of the report", c.name)
		}
	}
}

func TestJudgeJSON(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if code, err := runJudge([]string{"--json", write(t, overlapping()...)}, &out); code != exitBroken || err != nil {
		t.Fatal(code, err)
	}
	var got struct {
		Schema string
		Files  []struct {
			Outcome  string
			Events   int
			Verdicts []struct {
				ID, Outcome, Why string
				Witness          []history.Event
			}
		}
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Schema != schema || len(got.Files) != 1 || got.Files[0].Outcome != "broken" || len(got.Files[0].Verdicts) != 7 {
		t.Fatalf("%+v", got)
	}
	v := got.Files[0].Verdicts[0]
	if v.ID != "V1" || v.Outcome != "broken" || len(v.Witness) != 3 || v.Witness[0].Proc != "a" || v.Witness[1].Proc != "b" || v.Witness[2].Op != history.OpEnd {
		t.Errorf("%+v", v)
	}
}

func TestUnsoundIsInconclusive(t *testing.T) {
	t.Parallel()
	events := append(overlapping(), history.Event{Proc: "c", Gen: 1, Seq: 7, Op: history.OpStart, ID: "p.1"})
	r, err := judge.File(write(t, events...), check.Params{})
	if err != nil || r.Outcome != check.Inconclusive || len(r.Problems) == 0 || len(r.Broken()) > 0 {
		t.Errorf("%v, %+v", err, r)
	}
}

func TestListenRefuses(t *testing.T) {
	t.Parallel()
	used := write(t, overlapping()...)
	fresh := filepath.Join(t.TempDir(), "x.jsonl")
	for _, args := range [][]string{
		{},
		{"--listen", "127.0.0.1:0"},
		{"--out", fresh},
		{"--listen", "0.0.0.0:0", "--out", fresh},
		{"--listen", ":0", "--out", fresh},
		{"--listen", "localhost", "--out", fresh},
		{"--listen", "127.0.0.1:0", "--out", used},
		{"--listen", "127.0.0.1:0", "--out", fresh, "more"},
		{"--listen", "127.0.0.1:0", "--out", t.TempDir()},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		code, err := run(ctx, args, strings.NewReader(""), io.Discard)
		cancel()
		if code != exitUsage || err == nil {
			t.Errorf("%q: code %d, %v", args, code, err)
		}
	}
}
