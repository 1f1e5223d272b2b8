package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// MaxLine is the most bytes of one line, its newline included. One write of so
// much to a pipe is atomic on every system we run on, so a kill cannot tear it and
// two writers cannot mix.
const MaxLine = 4096

// ErrTooLong is the error of Emit for an event that does not fit MaxLine. It was
// not written.
var ErrTooLong = errors.New("history: event is longer than 4096 bytes as a line: shorten ID, Key or Class")

// Writer writes the events of one process. Safe for concurrent use; the order of
// lines is the order of Seq and of T.
type Writer struct {
	mu    sync.Mutex
	w     io.Writer
	proc  string
	gen   int
	clock func() int64
	seq   int
}

// NewWriter returns a Writer that stamps events with proc, gen, a Seq and the
// clock's time (ns, never going back). A nil clock counts from now, monotonic.
func NewWriter(w io.Writer, proc string, gen int, clock func() int64) *Writer {
	if clock == nil {
		start := time.Now()
		clock = func() int64 { return int64(time.Since(start)) }
	}
	return &Writer{w: w, proc: proc, gen: gen, clock: clock}
}

// Emit stamps e and writes it with one Write. It fails with ErrTooLong, or with
// the error of the underlying writer.
func (w *Writer) Emit(e Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	// Stamp and write under one lock: with the stamp outside, two callers could
	// write in the other order than they were stamped, and Seq would lie.
	e.Proc, e.Gen, e.Seq, e.T = w.proc, w.gen, w.seq+1, w.clock()
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	if len(line)+1 > MaxLine {
		return ErrTooLong
	}
	w.seq++
	if _, err = w.w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("history: write: %w", err)
	}
	return nil
}

// Report says how well a log could be read.
type Report struct {
	Lines int  // read as events
	Bad   int  // lines that are no event, the last one excepted
	Torn  bool // the last line has no newline, or is cut: normal after a kill
	First int  // number of the first bad line, from 1; 0 = none
}

// Read calls each for every event of a log until its end or until each returns an
// error, which Read returns. It is total: any bytes give events and a Report. A
// line that is not an event is counted and skipped, unknown fields are ignored,
// and a torn last line is only reported.
func Read(r io.Reader, each func(Event) error) (Report, error) {
	var rep Report
	br := bufio.NewReaderSize(r, 16*MaxLine)
	for n := 1; ; n++ {
		line, long, err := readLine(br)
		if err != nil && !errors.Is(err, io.EOF) {
			return rep, fmt.Errorf("history: read: %w", err)
		}
		last := err != nil
		if blank := len(bytes.TrimSpace(line)) == 0 && !long; !blank {
			e, ok := parse(line, long)
			switch {
			case ok && !last:
				rep.Lines++
				if err := each(e); err != nil {
					return rep, err
				}
			case last:
				// Without its newline even a line that parses may have lost
				// digits of its last number; it is not used.
				rep.Torn = true
			default:
				if rep.Bad++; rep.First == 0 {
					rep.First = n
				}
			}
		}
		if last {
			return rep, nil
		}
	}
}

// readLine returns the next line; long when it did not fit the buffer (the rest of
// it is skipped).
func readLine(br *bufio.Reader) (line []byte, long bool, err error) {
	line, err = br.ReadSlice('\n')
	for errors.Is(err, bufio.ErrBufferFull) {
		long = true
		_, err = br.ReadSlice('\n')
	}
	return line, long, err
}

func parse(line []byte, long bool) (e Event, ok bool) {
	if long || json.Unmarshal(line, &e) != nil || e.Op == "" {
		return Event{}, false
	}
	return e, true
}

// Write writes events as they are, unstamped: a merged history.
func Write(w io.Writer, events []Event) error {
	bw := bufio.NewWriter(w)
	enc := json.NewEncoder(bw)
	for i := range events {
		if err := enc.Encode(&events[i]); err != nil {
			return fmt.Errorf("history: write: %w", err)
		}
	}
	return bw.Flush()
}
