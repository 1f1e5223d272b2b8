package adapters_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeRedis answers each command of a connection by its name, and +OK where answers has
// none. What a Redis 7.0 says to the cases of badRedis is compared with a real one by
// TestRealRedisSaysTheSame.
func fakeRedis(t *testing.T, answers map[string]string) string {
	t.Helper()
	return serve(t, (&redisAnswers{answers}).serve)
}

// greeter says text to whoever has said something, and ends the connection.
func greeter(t *testing.T, text string) string {
	t.Helper()
	return serve(t, func(conn net.Conn) {
		if _, err := conn.Read(make([]byte, 512)); err == nil {
			_, _ = io.WriteString(conn, text)
		}
	})
}

// serve runs handle for every connection, until the test ends.
func serve(t *testing.T, handle func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{conns: map[net.Conn]struct{}{}}
	f.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if f.keep(conn) {
				f.wg.Go(func() {
					defer func() { _ = conn.Close() }()
					handle(conn)
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		f.end()
	})
	return l.Addr().String()
}

// fake is a server in this process.
type fake struct {
	wg sync.WaitGroup

	mu    sync.Mutex
	ended bool
	conns map[net.Conn]struct{}
}

// keep remembers a connection so that end can close it; false = it came too late.
func (f *fake) keep(conn net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		_ = conn.Close()
		return false
	}
	f.conns[conn] = struct{}{}
	return true
}

func (f *fake) end() {
	f.mu.Lock()
	f.ended = true
	for conn := range f.conns {
		_ = conn.Close()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

type redisAnswers struct{ answers map[string]string }

func (f *redisAnswers) serve(conn net.Conn) {
	in := bufio.NewReader(conn)
	for {
		words, err := command(in)
		if err != nil {
			return
		}
		if _, err := io.WriteString(conn, f.answer(words)); err != nil {
			return
		}
	}
}

// info is that of a server that keeps what it confirms.
const info = "redis_version:7.0.15\r\nredis_mode:standalone\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\ncluster_enabled:0\r\n"

func (f *redisAnswers) answer(words []string) string {
	name := strings.ToUpper(words[0])
	text, ok := f.answers[name]
	switch {
	case ok && (strings.HasPrefix(text, "-") || text == "*-1"):
		return text + "\r\n"
	case name == "INFO":
		if !ok {
			text = info
		}
		return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text)
	case name == "HELLO": // the adapter speaks the second version, and Redis before 6 had no HELLO
		return "-ERR unknown command 'HELLO'\r\n"
	case name == "PING":
		return "+PONG\r\n"
	case name == "HMGET":
		return stored(words[2:], ok)
	case name == "XADD":
		return "$3\r\n1-1\r\n"
	}
	return "+OK\r\n"
}

// nothing, as the answer to HMGET, says that no destination is there.
const nothing = "nothing"

// stored is a queue, as the adapter notes it beside its stream.
func stored(fields []string, missing bool) string {
	out := fmt.Sprintf("*%d\r\n", len(fields))
	for _, f := range fields {
		switch {
		case missing:
			out += "$-1\r\n"
		case f == "shape":
			out += "$5\r\nqueue\r\n"
		case f == "version":
			out += "$1\r\n1\r\n"
		default:
			out += "$-1\r\n"
		}
	}
	return out
}

// command reads *2\r\n$3\r\nGET\r\n$1\r\nk\r\n.
func command(in *bufio.Reader) ([]string, error) {
	n, err := length(in, '*')
	if err != nil {
		return nil, err
	}
	words := make([]string, n)
	for i := range words {
		size, err := length(in, '$')
		if err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(in, b); err != nil {
			return nil, err
		}
		words[i] = string(b[:size])
	}
	return words, nil
}

func length(in *bufio.Reader, mark byte) (int, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(line[1:]))
	if line[0] != mark || err != nil || n < 1 && mark == '*' || n < 0 || n > 1<<20 {
		return 0, fmt.Errorf("not a command: %q", line)
	}
	return n, nil
}

// try asks a real server one thing, as its default user, and returns the first line.
func (r realRedis) try(t *testing.T, words ...string) string {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.addr)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := fmt.Fprintf(conn, "AUTH admin\r\n%s\r\n", strings.Join(words, " ")); err != nil {
		return err.Error()
	}
	in := bufio.NewReader(conn)
	var line string
	for range 2 {
		if line, err = in.ReadString('\n'); err != nil {
			return err.Error()
		}
	}
	return strings.TrimSpace(line)
}

func (r realRedis) admin(t *testing.T, words ...string) {
	t.Helper()
	if got := r.try(t, words...); got != "+OK" {
		t.Fatalf("%v: %s", words, got)
	}
}

// goldenLine is what a golden file has for a case.
func goldenLine(t *testing.T, file, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut("\n"+string(b), "\n"+name+"\n    ")
	if !ok {
		t.Fatalf("%s has no case %q", file, name)
	}
	line, _, _ := strings.Cut(after, "\n")
	return line
}
