package rabbitmq

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/varal-go/varal/adapters/internal/deadline"
	"github.com/varal-go/varal/adapters/internal/sdktext"
	"github.com/varal-go/varal/adapters/internal/tlsconf"
	"github.com/varal-go/varal/core/driver"
)

// stuckFor is how long a write may outlive the context of its call before the
// connection is closed under it. Calls end within 500 ms of their ctx.
const stuckFor = 250 * time.Millisecond

// session is one generation of one connection. Channels, delivery tags and
// confirmations never outlive it.
type session struct {
	conn *amqp.Connection
	sock *socket
	down chan struct{} // closed when the connection is gone

	mu      sync.Mutex
	clear   chan struct{} // closed while the broker takes publishes
	blocked bool
	outlets map[string]*outlet // by exchange; the publish connection only
}

func (s *session) alive() bool {
	select {
	case <-s.down:
		return false
	default:
		return !s.conn.IsClosed()
	}
}

// unblocked returns a channel that is closed while the broker takes publishes.
func (s *session) unblocked() (<-chan struct{}, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clear, s.blocked
}

// guard closes the connection when ctx ends and the caller is still in its write 250 ms
// later; the client ignores ctx there. The caller calls the returned function after the
// write. A healthy write takes microseconds, so a cancelled caller does not cost the
// others their connection.
func (s *session) guard(ctx context.Context) func() {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		t := time.NewTimer(stuckFor)
		defer t.Stop()
		select {
		case <-done:
		case <-t.C:
			_ = s.sock.Close()
		}
	})
	return func() { close(done); stop() }
}

// scratch runs f on a channel of its own: a failed declare closes its channel.
func (s *session) scratch(f func(*amqp.Channel) error) error {
	ch, err := s.conn.Channel()
	if err != nil {
		return err
	}
	err = f(ch)
	if cerr := ch.Close(); err == nil && cerr != nil && !errors.Is(cerr, amqp.ErrClosed) {
		return cerr
	}
	return err
}

// end closes the connection: politely while ctx lasts, unless the broker has stopped
// reading from it; then the socket.
func (s *session) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, blocked := s.unblocked(); !blocked && s.alive() {
		_, _, wait := deadline.Do(ctx, s.conn.Close, nil)
		_ = s.sock.Close()
		wait()
	}
	_ = s.sock.Close()
	<-s.down
}

// link is one of the two connections of a Driver: it holds the live session and makes
// the next one when somebody needs it.
type link struct {
	cfg  *settings
	role string // "publish" or "consume"

	turn chan struct{} // capacity 1: who dials
	wg   sync.WaitGroup

	mu       sync.Mutex
	cur      *session
	next     int // index of the URL to try
	attempts uint64
	last     error
	hooks    map[int]func(driver.Event) // of subscriptions
	hookID   int
	closed   bool
}

func newLink(cfg *settings, role string) *link {
	l := &link{cfg: cfg, role: role, turn: make(chan struct{}, 1), hooks: map[int]func(driver.Event){}}
	return l
}

func (l *link) live() *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cur != nil && l.cur.alive() {
		return l.cur
	}
	return nil
}

func (l *link) tries() (uint64, error, bool) { //nolint:revive // the error is one value of a snapshot, not a failure of this call
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.attempts, l.last, l.closed
}

// session returns the live session or dials: one caller at a time, each URL once. Who
// waited while another one failed takes that failure: 64 publishers do not dial 64
// times.
func (l *link) session(ctx context.Context) (*session, error) {
	if s := l.live(); s != nil {
		return s, nil
	}
	before, _, _ := l.tries()
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if s := l.live(); s != nil {
		return s, nil
	}
	now, last, closed := l.tries()
	if closed {
		return nil, errClosed(l.role)
	}
	if now > before && last != nil {
		return nil, last
	}
	s, err := l.dialAny(ctx)
	l.mu.Lock()
	l.attempts++
	l.last = err
	if l.closed && s != nil {
		l.mu.Unlock()
		s.end(ended)
		return nil, errClosed(l.role)
	}
	if err == nil {
		l.cur = s
	}
	l.mu.Unlock()
	if err == nil {
		l.notify(driver.Event{Kind: driver.Connected})
	}
	return s, err
}

func (l *link) dialAny(ctx context.Context) (*session, error) {
	var first error
	for i := range l.cfg.ends {
		e := l.cfg.ends[l.next%len(l.cfg.ends)]
		// A share of the time for each: a node that does not answer must not use up what
		// the next one needs.
		limit := l.cfg.ConnectTimeout
		if end, ok := ctx.Deadline(); ok {
			limit = min(limit, time.Until(end)/time.Duration(len(l.cfg.ends)-i))
		}
		s, err := l.dial(ctx, e, limit)
		if err == nil {
			return s, nil
		}
		l.next++
		if first == nil {
			first = classify("connect to "+e.addr(), err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

func (l *link) dial(ctx context.Context, e endpoint, limit time.Duration) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	raw, err := l.cfg.Dial(ctx, "tcp", e.addr())
	if err != nil {
		return nil, sdktext.Mark(err)
	}
	if e.tls {
		conf, err := l.tlsConfig(e)
		if err != nil {
			_ = raw.Close()
			return nil, driver.Errorf("connect to "+e.addr(), driver.Denied, "%w", err)
		}
		secure := tls.Client(raw, conf)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			if refusedCertificate(err) {
				return nil, driver.Errorf("connect to "+e.addr(), driver.Denied, "%w", sdktext.Mark(err))
			}
			return nil, sdktext.Mark(err)
		}
		raw = secure
	}
	return l.login(ctx, e, newSocket(raw))
}

func (l *link) tlsConfig(e endpoint) (*tls.Config, error) {
	t := TLS{}
	if l.cfg.TLS != nil {
		t = *l.cfg.TLS
	}
	return t.Config(e.host)
}

func (l *link) login(ctx context.Context, e endpoint, sock *socket) (*session, error) {
	// A fresh SASL object each time: the client clears the password in it.
	auth := []amqp.Authentication{&amqp.PlainAuth{Username: e.user, Password: e.password}}
	if l.cfg.TLS != nil && l.cfg.TLS.Cert != "" && !e.hasUser {
		auth = []amqp.Authentication{&amqp.ExternalAuth{}}
	}
	props := amqp.NewConnectionProperties()
	props.SetClientConnectionName(l.cfg.ConnectionName + " " + l.role)
	var conn *amqp.Connection
	err, _, wait := deadline.Do(ctx, func() (err error) {
		conn, err = amqp.Open(sock, amqp.Config{SASL: auth, Vhost: e.vhost, Heartbeat: l.cfg.Heartbeat, Locale: "en_US", Properties: props})
		return err
	}, nil)
	if err != nil {
		hungUp := sock.hungUp.Load()
		_ = sock.Close()
		wait()
		if read := sock.readErr.Load(); read != nil && refusedCertificate(*read) {
			// TLS 1.3: the peer judges our certificate after the handshake.
			return nil, driver.Errorf("connect to "+e.addr(), driver.Denied, "the broker refused tls.cert: %w", sdktext.Mark(*read))
		}
		return nil, loginError(e, sdktext.Mark(err), time.Duration(hungUp-sock.opened.UnixNano()))
	}
	s := &session{conn: conn, sock: sock, down: make(chan struct{}), clear: make(chan struct{}), outlets: map[string]*outlet{}}
	close(s.clear)
	closes := conn.NotifyClose(make(chan *amqp.Error, 1))
	blocks := conn.NotifyBlocked(make(chan amqp.Blocking, 16))
	l.wg.Go(func() { l.watch(s, closes, blocks) })
	return s, nil
}

// refusedCertificate reports a TLS alert about our certificate. crypto/tls has no
// exported type for an alert received over TCP, hence the text.
func refusedCertificate(err error) bool {
	s := err.Error()
	return tlsconf.IsCertificateError(err) || strings.Contains(s, "remote error: tls:") && strings.Contains(s, "certificate")
}

// silence is how long RabbitMQ waits before it hangs up on wrong credentials without a
// word (3 s; the client does not ask for the reply). The client calls every hang-up
// during the login "credentials", also that of a broker going down, which is at once.
const silence = 900 * time.Millisecond

func loginError(e endpoint, err error, hungUpAfter time.Duration) error {
	reply, ok := errors.AsType[*amqp.Error](err)
	switch {
	case ok && reply.Server:
		return err
	case errors.Is(err, amqp.ErrCredentials) && hungUpAfter >= silence:
		return driver.Errorf("connect to "+e.addr(), driver.Denied, "user or password was not accepted: %w", err)
	case errors.Is(err, amqp.ErrSASL):
		return driver.Errorf("connect to "+e.addr(), driver.Denied, "the broker does not offer this login (PLAIN, or EXTERNAL with a client certificate): %w", err)
	case ok:
		return fmt.Errorf("the connection ended during the login: %w", sdktext.Mark(errors.New(reply.Reason)))
	}
	return err
}

// watch follows one session until it is gone. It ends with the connection, and Close
// waits for it.
func (l *link) watch(s *session, closes <-chan *amqp.Error, blocks <-chan amqp.Blocking) {
	for {
		select {
		case b, ok := <-blocks:
			if !ok {
				blocks = nil
				continue
			}
			l.setBlocked(s, b)
		case e := <-closes: // nil after a Close of ours
			close(s.down)
			_ = s.sock.Close()
			ev := driver.Event{Kind: driver.Disconnected}
			if e != nil {
				ev.Err = e
			}
			l.notify(ev)
			return
		}
	}
}

func (l *link) setBlocked(s *session, b amqp.Blocking) {
	s.mu.Lock()
	if b.Active != s.blocked {
		if s.blocked = b.Active; b.Active {
			s.clear = make(chan struct{})
		} else {
			close(s.clear)
		}
	}
	s.mu.Unlock()
	if b.Active {
		l.notify(driver.Event{Kind: driver.Blocked, Err: fmt.Errorf("the broker takes no publishes: %s", b.Reason)})
	} else {
		l.notify(driver.Event{Kind: driver.Unblocked})
	}
}

func (l *link) notify(e driver.Event) {
	if l.cfg.Notify != nil {
		l.cfg.Notify(e)
	}
	l.mu.Lock()
	hooks := make([]func(driver.Event), 0, len(l.hooks))
	for _, h := range l.hooks {
		hooks = append(hooks, h)
	}
	l.mu.Unlock()
	for _, h := range hooks {
		h(e)
	}
}

// listen adds a subscription's Notify and returns how to remove it.
func (l *link) listen(h func(driver.Event)) func() {
	if h == nil {
		return func() {}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	id := l.hookID
	l.hookID++
	l.hooks[id] = h
	return func() { l.mu.Lock(); delete(l.hooks, id); l.mu.Unlock() }
}

func (l *link) close(ctx context.Context) {
	l.mu.Lock()
	l.closed = true
	s := l.cur
	l.mu.Unlock()
	if s != nil {
		s.end(ctx)
	}
	l.wg.Wait()
}

// jitter is the pause before attempt n (from 0): 100 ms doubling to 5 s, half of it
// random either way. With the cap at 30 s a broker that was away for half a minute
// answered for up to 17 s before anybody asked: each attempt that fails late in the
// outage draws from the whole range. So at most 7.5 s, one attempt per 5 s on average.
func jitter(n int) time.Duration {
	mean := 5 * time.Second
	if n < 6 {
		mean = min(mean, 100*time.Millisecond<<n)
	}
	return mean/2 + time.Duration(rand.Int64N(int64(mean)))
}
