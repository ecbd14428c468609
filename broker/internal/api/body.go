package api

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

const (
	// stallTimeout is how long a client may take for the next bodyPiece of a request body, and how
	// long beyond minBodyRate for an answer. With it a body moves at 35 KiB/s at least.
	stallTimeout = 30 * time.Second
	bodyPiece    = 1 << 20
	minBodyRate  = 64 << 10 // bytes per second
	// firstPiece is the first buffer of a body of unknown length.
	firstPiece = 64 << 10
	// lingerTimeout is how long what nobody reads of a request is taken in after its answer.
	lingerTimeout = 10 * time.Second
)

// budget bounds the request body bytes that all exchanges hold together.
type budget struct {
	limit int64
	used  atomic.Int64
}

func (b *budget) take(n int64) bool {
	if b.used.Add(n) <= b.limit {
		return true
	}
	b.used.Add(-n)
	return false
}

func (b *budget) give(n int64) { b.used.Add(-n) }

// armBody starts the time that the first piece of a request body may take. It also bounds how long
// net/http waits for a body that nobody reads.
func (e *edge) armBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(e.stall))
	}
}

// readBody reads a whole request body, at most Config.MaxBody bytes, into one buffer of its size. A
// declared length that is too large is refused before a byte is read. The bytes count against the
// budget until the exchange ends.
func (e *edge) readBody(w http.ResponseWriter, r *http.Request, ex *exchange) ([]byte, error) {
	n := r.ContentLength
	if n > e.cfg.MaxBody {
		return nil, errTooLarge
	}
	if n == 0 {
		return nil, nil
	}
	rc := http.NewResponseController(w)
	paced := &pacedReader{rc: rc, from: r.Body, stall: e.stall}
	var body []byte
	var err error
	if n > 0 {
		body, err = e.readSized(paced, n, ex)
	} else {
		body, err = e.readUnsized(paced, ex)
	}
	ex.bytesIn = int64(len(body))
	ex.unread = errors.Is(err, errTooLarge) || errors.Is(err, errBusy)
	switch {
	case err == nil:
		// net/http notices a client that leaves by reading from the connection: a deadline left behind
		// would look like one.
		_ = rc.SetReadDeadline(time.Time{})
		return body, nil
	case ex.unread:
		return nil, err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, errSlowBody
	default:
		return nil, errCutBody
	}
}

// discardBody reads what was sent to an operation that takes no body, and keeps none of it: until it is
// read, net/http does not notice a client that leaves. A body that does not end in time, or is longer
// than any may be, never makes a complete request: that is errIncomplete, which is not answered.
func (e *edge) discardBody(w http.ResponseWriter, r *http.Request, ex *exchange) error {
	if r.ContentLength == 0 {
		return nil
	}
	if r.ContentLength > e.cfg.MaxBody {
		return errIncomplete
	}
	rc := http.NewResponseController(w)
	paced := &pacedReader{rc: rc, from: r.Body, stall: e.stall}
	n, err := io.Copy(io.Discard, io.LimitReader(paced, e.cfg.MaxBody+1))
	ex.bytesIn, ex.unread = n, false
	if err != nil || n > e.cfg.MaxBody {
		return errIncomplete
	}
	_ = rc.SetReadDeadline(time.Time{}) // as in readBody
	return nil
}

// linger takes in what was not read of a request that has its answer, and keeps none of it. A client that
// sends its whole body before it reads would not see the answer otherwise: a connection that is closed
// with bytes unread is reset, and what the client has not read yet is lost. Whoever sends more than
// twice the largest body, or longer than lingerTimeout, is cut off. A client that awaits a 100 Continue
// has sent nothing.
func (e *edge) linger(w http.ResponseWriter, r *http.Request, ex *exchange) {
	if !ex.unread || !ex.replied || r.Header.Get("Expect") != "" {
		return
	}
	rc := http.NewResponseController(w)
	if rc.Flush() != nil || rc.SetReadDeadline(time.Now().Add(min(e.stall, lingerTimeout))) != nil {
		return // the client is gone
	}
	_, _ = io.CopyN(io.Discard, r.Body, 2*e.cfg.MaxBody) // the answer stands whatever comes of it
}

func (e *edge) hold(ex *exchange, n int64) error {
	if !e.bodies.take(n) {
		return errBusy
	}
	ex.held += n
	return nil
}

// pacedReader gives a client some time for each bodyPiece.
type pacedReader struct {
	rc    *http.ResponseController
	from  io.Reader
	stall time.Duration
	left  int // bytes until the deadline moves
}

func (p *pacedReader) Read(b []byte) (int, error) {
	if p.left <= 0 {
		_ = p.rc.SetReadDeadline(time.Now().Add(p.stall))
		p.left = bodyPiece
	}
	n, err := p.from.Read(b[:min(len(b), p.left)])
	p.left -= n
	return n, err
}

func (e *edge) readSized(from io.Reader, n int64, ex *exchange) ([]byte, error) {
	if err := e.hold(ex, n); err != nil {
		return nil, err
	}
	buf := make([]byte, n)
	at, err := io.ReadFull(from, buf)
	return buf[:at], err
}

// readUnsized reads a chunked body. The buffer doubles, but passes the limit by no more than the one
// byte that proves a body too large.
func (e *edge) readUnsized(from io.Reader, ex *exchange) ([]byte, error) {
	most := int(e.cfg.MaxBody + 1)
	var buf []byte
	at := 0
	for {
		if at == most {
			return nil, errTooLarge
		}
		if at == len(buf) {
			size := min(max(2*len(buf), firstPiece), most)
			if err := e.hold(ex, int64(size-len(buf))); err != nil {
				return nil, err
			}
			grown := make([]byte, size)
			copy(grown, buf)
			buf = grown
		}
		n, err := from.Read(buf[at:])
		at += n
		if err == io.EOF && at < most {
			return buf[:at], nil
		}
		if err != nil && at < most {
			return buf[:at], err
		}
	}
}
