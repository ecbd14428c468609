package bench

import (
	"bufio"
	"bytes"
	"strconv"
)

// head is the head of a message as nearly all have it. It costs a tenth of what net/http needs to parse one, processor time
// that the measured broker gets instead.
type head struct {
	first  []byte // the request line or status line
	fields []byte // the lines after it
	length int64  // of the body
}

// plainHead takes the head of the next message from a reader, if all of it has come, its body has a length, and nothing
// in it calls for more: no transfer coding, no end of the connection, no interim answer. Otherwise it takes nothing. The
// head is valid until the reader is read again.
func plainHead(r *bufio.Reader) (head, bool) {
	buffered, _ := r.Peek(r.Buffered()) // never more than there is
	text, _, ok := bytes.Cut(buffered, []byte("\r\n\r\n"))
	if !ok {
		return head{}, false
	}
	var h head
	h.first, h.fields, _ = bytes.Cut(text, []byte("\r\n"))
	length, ok := h.field("content-length")
	if !ok || bytes.HasPrefix(h.first, []byte("HTTP/1.1 1")) {
		return head{}, false
	}
	var err error
	if h.length, err = strconv.ParseInt(string(length), 10, 64); err != nil || h.length < 0 {
		return head{}, false
	}
	for _, name := range []string{"transfer-encoding", "connection", "expect"} {
		if _, found := h.field(name); found {
			return head{}, false
		}
	}
	_, _ = r.Discard(len(text) + 4)
	return h, true
}

// field is the first value of a field, whose name is given in lower case.
func (h head) field(name string) ([]byte, bool) {
	for line := range bytes.SplitSeq(h.fields, []byte("\r\n")) {
		if len(line) > len(name) && line[len(name)] == ':' && bytes.EqualFold(line[:len(name)], []byte(name)) {
			return bytes.TrimSpace(line[len(name)+1:]), true
		}
	}
	return nil, false
}

// status is that of an answer, 0 when there is none.
func (h head) status() int {
	if len(h.first) < len("HTTP/1.1 200") || !bytes.HasPrefix(h.first, []byte("HTTP/1.")) {
		return 0
	}
	n, err := strconv.Atoi(string(h.first[9:12]))
	if err != nil {
		return 0
	}
	return n
}

// path is that of a request, with its query.
func (h head) path() []byte {
	_, rest, _ := bytes.Cut(h.first, []byte{' '})
	path, _, _ := bytes.Cut(rest, []byte{' '})
	return path
}
