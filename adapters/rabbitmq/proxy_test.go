package rabbitmq_test

import (
	"net"
	"net/url"
	"sync"
	"testing"
)

// tcpProxy forwards to the broker and can stop: bytes stay where they are, the
// sockets stay open, as with a frozen process or a dropped route.
type tcpProxy struct {
	url   string
	mu    sync.Mutex
	cond  *sync.Cond
	stop  bool
	over  bool
	old   map[net.Conn]bool // of these nothing is passed on any more, not even the end
	conns []net.Conn
	wg    sync.WaitGroup
}

func newTCPProxy(t *testing.T, target string) *tcpProxy {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := u.Host
	u.Host, u.RawQuery = l.Addr().String(), ""
	p := &tcpProxy{url: u.String()}
	p.cond = sync.NewCond(&p.mu)
	p.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", addr)
			if err != nil {
				_ = in.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			p.wg.Go(func() { p.pipe(in, out) })
			p.wg.Go(func() { p.pipe(out, in) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		p.over = true
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.cond.Broadcast()
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

func (p *tcpProxy) pipe(from, to net.Conn) {
	defer func() {
		p.wait(from)
		_ = from.Close()
		_ = to.Close()
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.wait(from)
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *tcpProxy) freeze(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop = on
	p.cond.Broadcast()
}

func (p *tcpProxy) wait(from net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for (p.stop || p.old[from]) && !p.over {
		p.cond.Wait()
	}
}

// freezeOld freezes the connections there are; new ones pass.
func (p *tcpProxy) freezeOld() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.old = map[net.Conn]bool{}
	for _, c := range p.conns {
		p.old[c] = true
	}
}
