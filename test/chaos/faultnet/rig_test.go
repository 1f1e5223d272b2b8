package faultnet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/varal-go/varal/test/chaos/faultnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a TCP server whose connections the test holds.
type server struct {
	l     net.Listener
	conns chan *net.TCPConn
	wg    sync.WaitGroup
}

func serve(t *testing.T) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{l: l, conns: make(chan *net.TCPConn, 64)}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(s.conns)
				return
			}
			s.conns <- c.(*net.TCPConn)
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		s.wg.Wait()
		for c := range s.conns {
			_ = c.Close()
		}
	})
	return s
}

func (s *server) next(t *testing.T) *net.TCPConn {
	t.Helper()
	select {
	case c := <-s.conns:
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		t.Cleanup(func() { _ = c.Close() })
		return c
	case <-time.After(10 * time.Second):
		t.Fatal("no connection arrived")
		return nil
	}
}

// kind is a way of passing the Net: each fault is tried through all three.
type kind struct {
	name string
	open func(t *testing.T, s *server) (*faultnet.Net, func() (net.Conn, error))
}

var kinds = []kind{
	{"proxy", func(t *testing.T, s *server) (*faultnet.Net, func() (net.Conn, error)) {
		p, err := faultnet.Listen(s.l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return p.Net, func() (net.Conn, error) { return net.Dial("tcp", p.Addr()) }
	}},
	{"socks5", func(t *testing.T, s *server) (*faultnet.Net, func() (net.Conn, error)) {
		p, err := faultnet.ListenSOCKS5()
		if err != nil {
			t.Fatal(err)
		}
		return p.Net, func() (net.Conn, error) { return socks(p.Addr(), s.l.Addr().String()) }
	}},
	{"dial", func(_ *testing.T, s *server) (*faultnet.Net, func() (net.Conn, error)) {
		n := faultnet.New()
		return n, func() (net.Conn, error) { return n.DialContext(context.Background(), "tcp", s.l.Addr().String()) }
	}},
}

// socks is a SOCKS5 client with a domain name for an address.
func socks(proxy, target string) (net.Conn, error) {
	c, err := net.Dial("tcp", proxy)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	host, port, _ := net.SplitHostPort(target)
	var p int
	_, _ = fmt.Sscan(port, &p)
	b := []byte{5, 1, 0, 5, 1, 0, 3, byte(len(host))}
	b = append(b, host...)
	b = append(b, byte(p>>8), byte(p))
	if _, err := c.Write(b); err != nil {
		return nil, err
	}
	var answer [12]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		_ = c.Close()
		return nil, err
	}
	if answer[3] != 0 {
		_ = c.Close()
		return nil, fmt.Errorf("SOCKS5 reply %d", answer[3])
	}
	_ = c.SetDeadline(time.Time{})
	return c, nil
}

// link is one open connection through a Net.
type link struct {
	*faultnet.Net
	s      *server
	dial   func() (net.Conn, error)
	client net.Conn
	server *net.TCPConn
}

func each(t *testing.T, f func(t *testing.T, l *link)) {
	t.Helper()
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			n, dial := k.open(t, s)
			t.Cleanup(func() { _ = n.Close() })
			c, err := dial()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			l := &link{n, s, dial, c, s.next(t)}
			l.say(t, l.client, l.server, "hello")
			l.say(t, l.server, l.client, "welcome")
			f(t, l)
		})
	}
}

// say sends text from one end and expects it whole at the other.
func (l *link) say(t *testing.T, from, to net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(from, text); err != nil {
		t.Fatalf("write %q: %v", text, err)
	}
	b := make([]byte, len(text))
	if _, err := io.ReadFull(to, b); err != nil || string(b) != text {
		t.Fatalf("read %q, %v; want %q", b, err, text)
	}
}

// silent expects that nothing arrives at c for a while, not even an end.
func silent(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(60 * time.Millisecond))
	n, err := c.Read(make([]byte, 1))
	var ne net.Error
	if n != 0 || !errors.As(err, &ne) || !ne.Timeout() {
		t.Fatalf("read %d, %v; want silence", n, err)
	}
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
}

// isReset expects an RST.
func isReset(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := io.Copy(io.Discard, c); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("read ended with %v, want a connection reset", err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}
