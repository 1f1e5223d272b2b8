package rabbitmq

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// socket is the net.Conn under an AMQP connection. It exists because the client writes
// and reads through 4 KiB buffers and flushes after every message: with writes held
// back while a group is written, and larger reads, a message costs a fraction of a
// system call. And because closing it is the only way to end a call of the client that
// is stuck in a write.
type socket struct {
	net.Conn

	in   []byte // read ahead; the client's reader goroutine only
	r, w int

	mu   sync.Mutex
	held int    // groups being written
	out  []byte // written and not sent
	err  error  // of an earlier send: out is in an unknown state

	hungUp atomic.Int64 // when the peer closed, in Unix nanoseconds; 0 = it has not
	opened time.Time
	// readErr is the first-hand error: the client keeps its text only.
	readErr atomic.Pointer[error]
}

const (
	readAhead = 64 << 10
	holdMax   = 128 << 10 // what is held back at most
)

func newSocket(c net.Conn) *socket {
	return &socket{Conn: c, in: make([]byte, readAhead), opened: time.Now()}
}

func (s *socket) Read(p []byte) (int, error) {
	if s.r == s.w {
		n, err := s.Conn.Read(s.in)
		s.r, s.w = 0, n
		if n == 0 {
			if err != nil {
				s.readErr.CompareAndSwap(nil, &err)
				// RabbitMQ ends a refused login with a reset as often as with a close.
				if t, ok := errors.AsType[net.Error](err); !errors.Is(err, net.ErrClosed) && (!ok || !t.Timeout()) {
					s.hungUp.Store(time.Now().UnixNano())
				}
			}
			return 0, err
		}
	}
	n := copy(p, s.in[s.r:s.w])
	s.r += n
	return n, nil
}

func (s *socket) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	if s.held == 0 && len(s.out) == 0 {
		return s.Conn.Write(p)
	}
	s.out = append(s.out, p...)
	if len(s.out) >= holdMax {
		return len(p), s.flush()
	}
	return len(p), nil
}

// hold keeps writes back until send. Groups may overlap.
func (s *socket) hold() {
	s.mu.Lock()
	s.held++
	s.mu.Unlock()
}

// send ends a hold and sends what was held, of every group: an overlapping one must
// not keep this one waiting.
func (s *socket) send() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held--
	return s.flush()
}

func (s *socket) flush() error {
	if s.err != nil || len(s.out) == 0 {
		return s.err
	}
	_, s.err = s.Conn.Write(s.out)
	if s.out = s.out[:0]; cap(s.out) > 4*holdMax {
		s.out = nil
	}
	return s.err
}
