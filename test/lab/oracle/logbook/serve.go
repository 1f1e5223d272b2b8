package logbook

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/varal-go/varal/test/lab/history"
)

// Answer is a line of the oracle to a member.
type Answer struct {
	Gen   int    `json:"gen,omitempty"`   // the incarnation that hello was taken for
	Ack   int    `json:"ack,omitempty"`   // events up to this Seq are in the file
	Error string `json:"error,omitempty"` // the last line: nothing behind the last ack is in the file
}

// answerWithin bounds the write of an answer to a member that does not read.
const answerWithin = 10 * time.Second

// Serve takes members from ln until ctx ends, then closes ln and all connections, waits
// for their goroutines and returns the error of the file, if it had one.
func (b *Book) Serve(ctx context.Context, ln net.Listener) error {
	var members sync.WaitGroup
	defer members.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	room := make(chan struct{}, MaxConns)
	for {
		conn, err := ln.Accept()
		switch {
		case ctx.Err() != nil:
			return b.Err()
		case err != nil:
			return fmt.Errorf("oracle: accept: %w", err)
		}
		select {
		case room <- struct{}{}:
		default:
			_ = conn.Close()
			continue
		}
		members.Go(func() {
			defer func() { <-room }()
			b.serve(ctx, conn)
		})
	}
}

func (b *Book) serve(ctx context.Context, conn net.Conn) {
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_ = b.Converse(conn, bounded{conn})
}

// bounded is a connection whose writes end.
type bounded struct{ net.Conn }

func (c bounded) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(answerWithin)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// Converse serves one member until it says bye, leaves, or breaks a rule. What it
// reads is not trusted: it keeps one buffer and the events of one write.
func (b *Book) Converse(r io.Reader, w io.Writer) error {
	t := &talk{book: b, in: bufio.NewReaderSize(r, 16*history.MaxLine), out: json.NewEncoder(w)}
	err := t.run()
	if t.proc != "" && !t.bye {
		_ = b.append(Self, 1, history.Event{Op: history.OpLog, ID: t.proc, N: t.gen, Class: "left without bye"})
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		_ = t.out.Encode(Answer{Error: err.Error()})
	}
	return err
}

// talk is one conversation.
type talk struct {
	book *Book
	in   *bufio.Reader
	out  *json.Encoder
	proc string
	gen  int
	seq  int
	bye  bool
}

func (t *talk) run() error {
	if err := t.greet(); err != nil {
		return err
	}
	events := make([]history.Event, 0, batch)
	for !t.bye {
		events = events[:0]
		for {
			e, err := t.next()
			if err != nil {
				// What came whole before it counts all the same.
				if len(events) > 0 {
					err = errors.Join(t.book.append(t.proc, t.gen, events...), err)
				}
				return err
			}
			events = append(events, e)
			if t.bye || len(events) == batch || !t.buffered() {
				break
			}
		}
		if err := t.book.append(t.proc, t.gen, events...); err != nil {
			return err
		}
		if err := t.out.Encode(Answer{Ack: t.seq}); err != nil {
			return err
		}
	}
	return nil
}

func (t *talk) greet() error {
	line, err := t.line()
	if err != nil {
		return err
	}
	e, err := greeting(line)
	if err != nil {
		return err
	}
	gen, err := t.book.enter(e.Proc, e.Gen)
	if err != nil {
		return err
	}
	t.proc, t.gen, t.seq = e.Proc, gen, 1
	if err := t.book.append(t.proc, gen, e); err != nil {
		return err
	}
	return t.out.Encode(Answer{Gen: gen, Ack: 1})
}

// next reads an event and holds it against the rules.
func (t *talk) next() (history.Event, error) {
	line, err := t.line()
	if err != nil {
		return history.Event{}, err
	}
	e, err := Decode(line)
	switch {
	case err != nil:
		return e, err
	case e.Seq != t.seq+1:
		return e, ErrSeq
	case e.Op == history.OpHello:
		return e, ErrBye
	}
	t.seq, t.bye = e.Seq, e.Op == history.OpBye
	return e, nil
}

// line returns the next whole line; one that a kill has torn is never used.
func (t *talk) line() ([]byte, error) {
	line, err := t.in.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, ErrLine
	case err != nil:
		return nil, err
	}
	return line[:len(line)-1], nil
}

// buffered reports whether another whole line is here already.
func (t *talk) buffered() bool {
	rest, _ := t.in.Peek(t.in.Buffered())
	return bytes.IndexByte(rest, '\n') >= 0
}
