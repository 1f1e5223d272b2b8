package soak

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/varal-go/varal/cmd/varal/internal/ticket"
)

// A member that is a process of its own writes what it sees to its standard output, nine
// bytes an event, and waits for the answer before it goes on: a count of the events that
// the judge has taken. On its standard input come its configuration as a line of JSON, then
// those counts, and the word to leave.
const (
	eventSize = 9 // kind, session, number
	wordSize  = 5 // kind, count

	kindBegin  = 'b'
	kindFailed = 'f'
	kindDone   = 'd'
	kindDead   = 'x'
	kindLost   = 'l'

	wordTaken = 't'
	wordLeave = 'q'
)

var kinds = [...]byte{failed: kindFailed, done: kindDone, dead: kindDead}

// Member runs a member in this process, for the one that started it. in and out are its
// standard streams. It returns when it has been told to leave, and has drained.
func Member(in io.Reader, out io.Writer) error {
	r := bufio.NewReader(in)
	line, err := r.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("the configuration: %w", err)
	}
	var c memberConfig
	if err := json.Unmarshal(line, &c); err != nil {
		return fmt.Errorf("the configuration: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	m := &remote{more: sync.NewCond(&sync.Mutex{}), out: out}
	go m.listen(r, cancel) // ends with the stream, which ends with this process or the other
	err = c.consume(ctx, m, nil)
	return errors.Join(err, m.broken())
}

// remote reports to a judge in another process.
type remote struct {
	more *sync.Cond // guards what follows
	buf  []byte     // not written yet
	sent uint32     // events so far
	got  uint32     // of those, taken by the judge
	busy bool       // somebody writes
	err  error
	out  io.Writer
}

// listen takes what the other side says, until it says no more: then nobody is there any
// longer to judge, and this process ends.
func (m *remote) listen(r io.Reader, leave func()) {
	var word [wordSize]byte
	for {
		if _, err := io.ReadFull(r, word[:]); err != nil {
			m.more.L.Lock()
			m.err = fmt.Errorf("the judge is gone: %w", err)
			m.more.L.Unlock()
			m.more.Broadcast()
			leave()
			return
		}
		if word[0] == wordLeave {
			leave()
			continue
		}
		m.more.L.Lock()
		m.got = binary.LittleEndian.Uint32(word[1:])
		m.more.L.Unlock()
		m.more.Broadcast()
	}
}

func (m *remote) broken() error {
	m.more.L.Lock()
	defer m.more.L.Unlock()
	return m.err
}

// tell writes an event and waits until it has been taken. Whoever finds nobody writing
// writes for all who wait.
func (m *remote) tell(kind byte, t ticket.Ticket) error {
	m.more.L.Lock()
	defer m.more.L.Unlock()
	m.buf = append(m.buf, kind)
	m.buf = binary.LittleEndian.AppendUint32(m.buf, t.Session)
	m.buf = binary.LittleEndian.AppendUint32(m.buf, t.N)
	m.sent++
	mine := m.sent
	for m.err == nil && int32(m.got-mine) < 0 { //nolint:gosec // the counts wrap together
		if m.busy || len(m.buf) == 0 {
			m.more.Wait()
			continue
		}
		m.busy = true
		b := m.buf
		m.buf = nil
		m.more.L.Unlock()
		_, err := m.out.Write(b)
		m.more.L.Lock()
		m.busy = false
		if err != nil {
			m.err = err
		}
		m.more.Broadcast()
	}
	return m.err
}

func (m *remote) begin(t ticket.Ticket) error { return m.tell(kindBegin, t) }

func (m *remote) end(t ticket.Ticket, o outcome) { _ = m.tell(kinds[o], t) } // with nobody to judge the next begin fails

func (m *remote) lost() { _ = m.tell(kindLost, ticket.Ticket{}) }

// process is a member as the one who started it sees it.
type process struct {
	j      *judge
	number int
	base   time.Time
	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr *tail
	ended  chan struct{} // closed when it is gone and all it said has been taken
	err    error

	mu     sync.Mutex // of in
	killed bool
}

// startProcess runs this program again as a member.
func startProcess(j *judge, c memberConfig, base time.Time, program []string) (*process, error) {
	cmd := exec.CommandContext(context.Background(), program[0], program[1:]...) //nolint:gosec // ourselves; it ends by kill or leave
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p := &process{j: j, number: j.join(), base: base, cmd: cmd, in: in, stderr: &tail{}, ended: make(chan struct{})}
	cmd.Stderr = p.stderr
	line, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a member: %w", err)
	}
	go p.follow(out)
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = in.Write(append(line, '\n')) // a process that is gone says so by its end
	return p, nil
}

// follow takes what the member says until it says no more, and waits for its end.
func (p *process) follow(out io.Reader) {
	defer close(p.ended)
	b := make([]byte, 1<<14*eventSize)
	have, taken := 0, uint32(0)
	for {
		n, err := out.Read(b[have:])
		have += n
		whole := have - have%eventSize
		for at := 0; at < whole; at += eventSize {
			p.take(b[at : at+eventSize])
			taken++
		}
		have = copy(b, b[whole:have])
		if whole > 0 {
			p.say(wordTaken, taken)
		}
		if err != nil {
			break
		}
	}
	err := p.cmd.Wait()
	p.mu.Lock()
	killed := p.killed
	p.mu.Unlock()
	if killed {
		p.j.buried(p.number)
		return
	}
	if err != nil {
		p.err = fmt.Errorf("a member ended with %w: %s", err, p.stderr)
		p.j.lostAll(p.number) // its last commits may have got lost with it
	}
}

func (p *process) take(b []byte) {
	t := ticket.Ticket{Session: binary.LittleEndian.Uint32(b[1:]), N: binary.LittleEndian.Uint32(b[5:])}
	switch b[0] {
	case kindBegin:
		p.j.begin(p.number, t, time.Since(p.base))
	case kindLost:
		p.j.lostAll(p.number)
	case kindDone:
		p.j.end(p.number, t, done)
	case kindDead:
		p.j.end(p.number, t, dead)
	case kindFailed:
		p.j.end(p.number, t, failed)
	default:
		p.j.violation("member %d said %q", p.number, b)
	}
}

func (p *process) say(word byte, n uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.in.Write(binary.LittleEndian.AppendUint32([]byte{word}, n)) // a process that is gone says so by its end
}

func (p *process) kill() error {
	p.mu.Lock()
	p.killed = true
	p.mu.Unlock()
	p.j.killed(p.number)
	return p.cmd.Process.Kill()
}

func (p *process) leave() { p.say(wordLeave, 0) }

func (p *process) done() <-chan struct{} { return p.ended }

func (p *process) wait() error {
	p.leave()
	select {
	case <-p.ended:
	case <-time.After(drainFor + 2*closeIn):
		p.err = errors.New("a member did not leave in time")
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	return p.err
}

// tail keeps the end of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if over := len(t.b) - 2000; over > 0 {
		t.b = t.b[over:]
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}

// self is how this program is run again as a member.
func self() ([]string, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the own program, to run members with it: %w", err)
	}
	return []string{path, "bench", "soak-member"}, nil
}
