package faultnet

import (
	"context"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// connectTimeout bounds what the proxy itself waits for: the onward connection and
// the SOCKS5 greeting.
const connectTimeout = 10 * time.Second

// Proxy is a listener on 127.0.0.1 whose connections a Net governs.
type Proxy struct {
	*Net
	l net.Listener
}

// Addr is where clients connect, "127.0.0.1:port".
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// Listen starts a proxy in front of target ("host:port"), which need not be up yet.
func Listen(target string) (*Proxy, error) {
	if _, _, err := net.SplitHostPort(target); err != nil {
		return nil, fmt.Errorf("faultnet: target %q is not host:port: %w", target, err)
	}
	return listen(func(n *Net, c *net.TCPConn) { n.forward(c, target) })
}

// ListenSOCKS5 starts a SOCKS5 proxy (CONNECT, no authentication), for clients
// whose broker advertises addresses of its own. Its Counts include every address.
func ListenSOCKS5() (*Proxy, error) { return listen((*Net).socks) }

func listen(serve func(*Net, *net.TCPConn)) (*Proxy, error) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("faultnet: listen: %w", err)
	}
	n := New()
	n.closers = append(n.closers, l)
	n.wg.Add(1)
	go n.accept(l, serve)
	return &Proxy{Net: n, l: l}, nil
}

func (n *Net) accept(l net.Listener, serve func(*Net, *net.TCPConn)) {
	defer n.wg.Done()
	for {
		c, err := l.Accept()
		if err != nil {
			select {
			case <-n.done:
				return
			case <-time.After(5 * time.Millisecond): // out of descriptors: try again
				continue
			}
		}
		t, ok := c.(*net.TCPConn)
		if !ok || !n.hold(t) {
			reset(c)
			continue
		}
		n.wg.Go(func() { // the accept loop's own Add keeps Wait from passing
			serve(n, t)
		})
	}
}

// hold keeps an accepted connection where Cut and Close find it.
func (n *Net) hold(c net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.waiting[c] = struct{}{}
	return true
}

func (n *Net) release(c net.Conn) {
	n.mu.Lock()
	delete(n.waiting, c)
	n.mu.Unlock()
}

// admit applies the Mode to a new connection and counts.
func (n *Net) admit() Mode {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch n.mode {
	case Refuse:
		n.counts.Refused++
	case Silent:
		n.counts.Silent++
	}
	return n.mode
}

func (n *Net) forward(c *net.TCPConn, target string) {
	switch n.admit() {
	case Refuse:
		n.release(c)
		reset(c)
	case Silent:
		n.silent(c)
	default:
		server, err := n.connect(context.Background(), "tcp", target)
		n.release(c)
		if err != nil {
			reset(c)
			return
		}
		n.relay(c, server, target)
	}
}

// silent leaves a connection open and unanswered: what the client sends fills the
// socket's buffers. It stays in waiting, so Cut and Close end it.
func (n *Net) silent(c *net.TCPConn) {
	// No goroutine needs to stay: the map holds the socket open.
	_ = c.SetKeepAlive(false)
}

// connect dials onward and gives up when the Net is closed.
func (n *Net) connect(ctx context.Context, network, addr string) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	n.wg.Go(func() {
		select {
		case <-n.done:
			cancel()
		case <-stop:
		}
	})
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	t, ok := c.(*net.TCPConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("faultnet: network %q is not TCP", network)
	}
	return t, nil
}

// dialed is the client's end of a hooked connection. It names the real target, so
// that a client which looks at RemoteAddr sees what it dialled.
type dialed struct {
	*net.TCPConn
	remote net.Addr
}

// RemoteAddr returns the address of the target, not of the relay.
func (d dialed) RemoteAddr() net.Addr { return d.remote }

// DialContext connects to addr through the Net; it has the form of an adapter's
// Config.Dial. The bytes pass a pair of loopback sockets, so every fault acts as it
// does in a Proxy. Refuse gives ECONNREFUSED, Silent a connection nobody answers.
func (n *Net) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil, &net.OpError{Op: "dial", Net: network, Err: net.ErrClosed}
	}
	n.wg.Add(1)
	n.mu.Unlock()
	defer n.wg.Done()

	mode := n.admit()
	if mode == Refuse {
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	var server *net.TCPConn
	var remote net.Addr = hostPort(addr)
	if mode == Pass {
		var err error
		if server, err = n.connect(ctx, network, addr); err != nil {
			return nil, err
		}
		remote = server.RemoteAddr()
	}
	ours, theirs, err := socketPair(ctx)
	if err != nil {
		if server != nil {
			reset(server)
		}
		return nil, err
	}
	if mode == Silent {
		if !n.hold(theirs) {
			reset(theirs)
		}
	} else {
		n.relay(theirs, server, addr)
	}
	return dialed{ours, remote}, nil
}

type hostPort string

func (h hostPort) Network() string { return "tcp" }
func (h hostPort) String() string  { return string(h) }

// socketPair returns two connected loopback sockets.
func socketPair(ctx context.Context) (ours, theirs *net.TCPConn, err error) {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, nil, fmt.Errorf("faultnet: listen: %w", err)
	}
	defer func() { _ = l.Close() }()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp4", l.Addr().String())
	if err != nil {
		return nil, nil, fmt.Errorf("faultnet: loopback: %w", err)
	}
	ours = c.(*net.TCPConn)
	for {
		_ = l.SetDeadline(time.Now().Add(connectTimeout))
		if theirs, err = l.AcceptTCP(); err != nil {
			reset(ours)
			return nil, nil, fmt.Errorf("faultnet: loopback: %w", err)
		}
		// Anyone on this machine may connect to an open port; only our own socket
		// is the other half.
		if theirs.RemoteAddr().String() == ours.LocalAddr().String() {
			return ours, theirs, nil
		}
		reset(theirs)
	}
}
