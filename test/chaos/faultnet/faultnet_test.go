package faultnet_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/varal-go/varal/test/chaos/faultnet"
)

func TestCutResetsBothSides(t *testing.T) {
	each(t, func(t *testing.T, l *link) {
		if n := l.Cut(); n != 1 {
			t.Errorf("cut %d connections", n)
		}
		isReset(t, l.client)
		isReset(t, l.server)
		if c := l.Counts(); c.Conns != 1 || c.Open != 0 || c.Cut != 1 || c.Up != 5 || c.Down != 7 {
			t.Errorf("counts %+v", c)
		}
	})
}

func TestCutOneAndRandom(t *testing.T) {
	each(t, func(t *testing.T, l *link) {
		c2, err := l.dial()
		if err != nil {
			t.Fatal(err)
		}
		defer c2.Close()
		s2 := l.s.next(t)
		l.say(t, c2, s2, "second")
		conns := l.Conns()
		if len(conns) != 2 || conns[0].ID != 1 || conns[1].Up != 6 || conns[1].Target != l.s.l.Addr().String() {
			t.Fatalf("conns %+v", conns)
		}
		if !l.CutOne(2) || l.CutOne(2) || l.CutOne(99) {
			t.Error("CutOne")
		}
		isReset(t, s2)
		l.say(t, l.client, l.server, "the first goes on")
		r := rand.New(rand.NewPCG(1, 1))
		if l.CutRandom(r) != 1 || l.CutRandom(r) != 0 {
			t.Error("CutRandom")
		}
		isReset(t, l.client)
	})
}

func TestHalfClose(t *testing.T) {
	each(t, func(t *testing.T, l *link) {
		l.HalfClose(faultnet.Up)
		if n, err := l.server.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Fatalf("server read %d, %v; want EOF", n, err)
		}
		l.say(t, l.server, l.client, "the other way goes on")
		if _, err := io.WriteString(l.client, "gone"); err != nil {
			t.Error(err)
		}
		eventually(t, "4 bytes swallowed", func() bool { return l.Counts().Swallowed == 4 })
	})
}

func TestBlackHoleSwallowsAndSpoils(t *testing.T) {
	each(t, func(t *testing.T, l *link) {
		l.BlackHole(faultnet.Down, true)
		if _, err := io.WriteString(l.server, "answer"); err != nil {
			t.Fatal(err)
		}
		silent(t, l.client)
		eventually(t, "6 bytes swallowed", func() bool { return l.Counts().Swallowed == 6 })
		l.say(t, l.client, l.server, "upwards nothing is wrong")
		_ = l.server.CloseWrite() // the FIN is swallowed too
		silent(t, l.client)
		l.BlackHole(faultnet.Down, false)
		isReset(t, l.client) // bytes are missing: it can't go on
	})
}

func TestBlackHoleLeavesIdleConnectionsAlone(t *testing.T) {
	each(t, func(t *testing.T, l *link) {
		l.BlackHole(faultnet.Both, true)
		l.BlackHole(faultnet.Both, false)
		l.say(t, l.client, l.server, "nothing was lost")
	})
}

func TestStallDeliversLater(t *testing.T) {
	each(t, func(t *testing.T, l *link) {
		l.Stall(faultnet.Up, true)
		if _, err := io.WriteString(l.client, "late"); err != nil {
			t.Fatal(err)
		}
		silent(t, l.server)
		l.Stall(faultnet.Up, false)
		l.say(t, l.client, l.server, "") // and in order:
		b := make([]byte, 4)
		if _, err := io.ReadFull(l.server, b); err != nil || string(b) != "late" {
			t.Fatalf("%q, %v", b, err)
		}
	})
}

func TestRefuse(t *testing.T) {
	each(t, func(t *testing.T, l *link) {
		l.SetMode(faultnet.Refuse)
		c, err := l.dial()
		if err == nil { // the plain proxy can only reset, which may come before dial returns
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			isReset(t, c)
		} else if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ECONNRESET) && !strings.Contains(err.Error(), "SOCKS5 reply 5") {
			t.Errorf("refused with %v", err)
		}
		l.say(t, l.client, l.server, "open ones go on")
		if l.Counts().Refused != 1 {
			t.Errorf("counts %+v", l.Counts())
		}
		l.Heal()
		c, err = l.dial()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		l.say(t, c, l.s.next(t), "healed")
	})
}

func TestAcceptThenSilent(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		if k.name == "socks5" { // its handshake is what stays unanswered: below
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			n, dial := k.open(t, s)
			defer n.Close()
			n.SetMode(faultnet.Silent)
			c, err := dial()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, "anyone?"); err != nil {
				t.Fatal(err)
			}
			silent(t, c)
			if got := n.Counts(); got.Silent != 1 || got.Conns != 0 {
				t.Errorf("counts %+v", got)
			}
			n.Cut()
			isReset(t, c)
		})
	}
	t.Run("socks5", func(t *testing.T) {
		t.Parallel()
		p, err := faultnet.ListenSOCKS5()
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		p.SetMode(faultnet.Silent)
		done := make(chan error, 1)
		go func() {
			_, err := socks(p.Addr(), "127.0.0.1:1")
			done <- err
		}()
		eventually(t, "one is silent", func() bool { return p.Counts().Silent == 1 })
		p.Cut()
		if err := <-done; err == nil {
			t.Error("the handshake was answered")
		}
	})
}

func TestLatencyKeepsRateAndOrder(t *testing.T) {
	each(t, func(t *testing.T, l *link) {
		l.Latency(faultnet.Up, 30*time.Millisecond, 20*time.Millisecond, 7)
		start := time.Now()
		text := strings.Repeat("0123456789", 3000)
		l.say(t, l.client, l.server, text)
		if d := time.Since(start); d < 10*time.Millisecond || d > 5*time.Second {
			t.Errorf("took %s", d)
		}
		l.Latency(faultnet.Up, 0, 0, 0)
		l.say(t, l.client, l.server, "off")
	})
}

func TestBandwidth(t *testing.T) {
	each(t, func(t *testing.T, l *link) {
		l.Bandwidth(faultnet.Down, 10_000)
		start := time.Now()
		l.say(t, l.server, l.client, strings.Repeat("x", 1500))
		if d := time.Since(start); d < 120*time.Millisecond {
			t.Errorf("1,500 bytes at 10,000/s took %s", d)
		}
	})
}

func TestSlices(t *testing.T) {
	each(t, func(t *testing.T, l *link) {
		l.Slice(faultnet.Both, 1)
		l.say(t, l.client, l.server, strings.Repeat("abc", 100))
		l.say(t, l.server, l.client, strings.Repeat("xyz", 100))
	})
}

// Exactly n bytes arrive, then a reset: every crash point of the wire can be hit.
func TestCutAfter(t *testing.T) {
	each(t, func(t *testing.T, l *link) {
		for _, n := range []int{0, 1, 7, 4096, 40_000} {
			c, err := l.dial()
			if err != nil {
				t.Fatal(err)
			}
			s := l.s.next(t)
			l.CutAfter(faultnet.Up, int64(n))
			if _, err := c.Write(bytes.Repeat([]byte{'x'}, 50_000)); err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
				t.Fatal(err)
			}
			got, err := io.ReadAll(s)
			if len(got) != n || !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("cut after %d: %d bytes, %v", n, len(got), err)
			}
			_ = c.Close()
		}
		l.say(t, l.client, l.server, "the other connection goes on, and it works once")
	})
}

func TestFlipBit(t *testing.T) {
	each(t, func(t *testing.T, l *link) {
		l.FlipBit(faultnet.Down, 3)
		if _, err := io.WriteString(l.server, "aaaaaa"); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 6)
		if _, err := io.ReadFull(l.client, b); err != nil || string(b) != "aaa`aa" {
			t.Fatalf("%q, %v", b, err)
		}
		l.say(t, l.server, l.client, "once")
	})
}

func TestEndsArePassedOn(t *testing.T) {
	each(t, func(t *testing.T, l *link) {
		_ = l.server.SetLinger(0)
		_ = l.server.Close()
		isReset(t, l.client)
		c, err := l.dial()
		if err != nil {
			t.Fatal(err)
		}
		s := l.s.next(t)
		l.say(t, c, s, "x")
		_ = c.Close()
		if n, err := s.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Fatalf("server read %d, %v; want EOF", n, err)
		}
		_ = s.Close()
		eventually(t, "all closed", func() bool { return l.Counts().Open == 0 })
		if got := l.Counts().Cut; got != 0 {
			t.Errorf("%d cuts counted, none was ours", got)
		}
	})
}

func TestTargetDown(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	n := faultnet.New()
	if _, err := n.DialContext(context.Background(), "tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial: %v", err)
	}
	_ = n.Close()
	if _, err := n.DialContext(context.Background(), "tcp", addr); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := faultnet.Listen("no port"); err == nil {
		t.Error("a target without a port was taken")
	}
	p, err := faultnet.ListenSOCKS5()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := socks(p.Addr(), addr); err == nil || !strings.Contains(err.Error(), "reply 5") {
		t.Errorf("socks: %v", err)
	}
}

// Faults switched by many while bytes flow: for the race detector, and Close joins
// whatever state things are in.
func TestManyFaultsAtOnceAndClose(t *testing.T) {
	each(t, func(t *testing.T, l *link) {
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				c, err := l.dial()
				if err != nil {
					return
				}
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(10 * time.Second))
				for range 200 {
					if _, err := c.Write(make([]byte, 100)); err != nil {
						return
					}
				}
				_ = i
			})
			wg.Go(func() {
				r := rand.New(rand.NewPCG(1, uint64(i)))
				for range 100 {
					switch r.IntN(7) {
					case 0:
						l.BlackHole(faultnet.Both, r.IntN(2) == 0)
					case 1:
						l.Stall(faultnet.Up, r.IntN(2) == 0)
					case 2:
						l.CutRandom(r)
					case 3:
						l.Slice(faultnet.Both, r.IntN(3))
					case 4:
						l.Latency(faultnet.Both, time.Millisecond, time.Millisecond, 1)
					case 5:
						l.HalfClose(faultnet.Down)
					default:
						l.Conns()
						l.Counts()
					}
				}
			})
		}
		wg.Wait()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if got := l.Counts().Open; got != 0 {
			t.Errorf("%d open after Close", got)
		}
	})
}
