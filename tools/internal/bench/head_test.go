package bench

import (
	"bufio"
	"strings"
	"testing"
)

func TestPlainHead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok":                               true,
		"HTTP/1.1 200 OK\r\ncontent-LENGTH:2\r\nX: y\r\n\r\nok":                        true,
		"POST /a?b=c HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok":               true,
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n":                                     false, // there is more to come
		"HTTP/1.1 200 OK\r\n\r\nok":                                                    false, // until the connection ends
		"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok":                              false,
		"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nok":                               false,
		"HTTP/1.1 100 Continue\r\nContent-Length: 0\r\n\r\n":                           false,
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok":          false,
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok": false,
	} {
		r := bufio.NewReader(strings.NewReader(text))
		if _, err := r.Peek(1); err != nil {
			t.Fatal(err)
		}
		h, ok := plainHead(r)
		left := r.Buffered()
		switch {
		case ok != want:
			t.Errorf("%q: %v", text, ok)
		case ok && (h.length != 2 || left != 2):
			t.Errorf("%q: length %d, %d bytes left", text, h.length, left)
		case !ok && left != len(text):
			t.Errorf("%q: %d bytes left of %d", text, left, len(text))
		}
	}
}

func TestHeadFields(t *testing.T) {
	t.Parallel()
	h := head{first: []byte("HTTP/1.1 404 Not Found"), fields: []byte("A: 1\r\nAB:  2 \r\nA: 3")}
	if v, ok := h.field("ab"); !ok || string(v) != "2" || h.status() != 404 {
		t.Errorf("ab %q, status %d", v, h.status())
	}
	if v, ok := h.field("a"); !ok || string(v) != "1" {
		t.Errorf("a %q", v)
	}
	if _, ok := h.field("b"); ok {
		t.Error("b was found")
	}
	if h := (head{first: []byte("PUT /a?b HTTP/1.1")}); string(h.path()) != "/a?b" || h.status() != 0 {
		t.Errorf("path %q, status %d", h.path(), h.status())
	}
}
