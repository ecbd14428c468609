package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"
)

// requestTimeout bounds one request, long polls included.
const requestTimeout = 30 * time.Second

// conn is one keep-alive HTTP/1.1 connection, used by one goroutine, one request at a time. It writes a request with
// one system call and parses the answer in the same goroutine: http.Transport would hand every request to two more
// goroutines, which on a machine with few cores costs the measured broker its processor time.
type conn struct {
	ctx    context.Context // of the run; ends only the opening of a connection, a request that was sent is awaited
	target Target
	nc     net.Conn
	reader *bufio.Reader
	out    []byte
	in     bytes.Buffer
}

func newConn(ctx context.Context, t Target) *conn { return &conn{ctx: ctx, target: t} }

// post sends body to path. The returned bytes are valid until the next request.
func (c *conn) post(path string, body []byte) (status int, answer []byte, err error) {
	c.out = append(c.out[:0], "POST "...)
	c.out = append(c.out, path...)
	c.out = append(c.out, " HTTP/1.1\r\nHost: "...)
	c.out = append(c.out, c.target.Host...)
	c.out = append(c.out, "\r\nContent-Type: application/json\r\nContent-Length: "...)
	c.out = strconv.AppendInt(c.out, int64(len(body)), 10)
	c.out = append(c.out, "\r\n"...)
	c.endHead()
	c.out = append(c.out, body...)
	return c.roundTrip()
}

// get requests path (with its query). The returned bytes are valid until the next request.
func (c *conn) get(path string) (status int, answer []byte, err error) {
	c.out = append(c.out[:0], "GET "...)
	c.out = append(c.out, path...)
	c.out = append(c.out, " HTTP/1.1\r\nHost: "...)
	c.out = append(c.out, c.target.Host...)
	c.out = append(c.out, "\r\n"...)
	c.endHead()
	return c.roundTrip()
}

// endHead ends the head of a request, with the token if there is one.
func (c *conn) endHead() {
	if c.target.Token != "" {
		c.out = append(c.out, "Authorization: Bearer "...)
		c.out = append(c.out, c.target.Token...)
		c.out = append(c.out, "\r\n"...)
	}
	c.out = append(c.out, "\r\n"...)
}

// roundTrip sends c.out. After an error the next request uses a new connection; nothing is sent twice.
func (c *conn) roundTrip() (int, []byte, error) {
	if c.nc == nil {
		d := net.Dialer{Timeout: 5 * time.Second}
		nc, err := d.DialContext(c.ctx, "tcp", c.target.Address.String())
		if err != nil {
			return 0, nil, fmt.Errorf("connect: %w", err)
		}
		c.nc, c.reader = nc, bufio.NewReaderSize(nc, 64<<10)
	}
	status, err := c.exchange()
	if err != nil {
		c.close()
		return 0, nil, err
	}
	return status, c.in.Bytes(), nil
}

func (c *conn) exchange() (int, error) {
	if err := c.nc.SetDeadline(time.Now().Add(requestTimeout)); err != nil {
		return 0, fmt.Errorf("set deadline: %w", err)
	}
	if _, err := c.nc.Write(c.out); err != nil {
		return 0, fmt.Errorf("send: %w", err)
	}
	c.in.Reset()
	if _, err := c.reader.Peek(1); err != nil {
		return 0, fmt.Errorf("receive: %w", err)
	}
	if h, ok := plainHead(c.reader); ok {
		status := h.status()
		if _, err := c.in.ReadFrom(io.LimitReader(c.reader, h.length)); err != nil {
			return 0, fmt.Errorf("receive: %w", err)
		}
		if int64(c.in.Len()) < h.length {
			return 0, fmt.Errorf("receive: %w", io.ErrUnexpectedEOF)
		}
		return status, nil
	}
	resp, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return 0, fmt.Errorf("receive: %w", err)
	}
	defer resp.Body.Close()
	if _, err := c.in.ReadFrom(resp.Body); err != nil {
		return 0, fmt.Errorf("receive: %w", err)
	}
	if resp.Close {
		c.close()
	}
	return resp.StatusCode, nil
}

func (c *conn) close() {
	if c.nc != nil {
		_ = c.nc.Close() // the connection is given up whatever Close says
		c.nc = nil
	}
}

// errorKind names a failed request by its cause, so that a report stays short however many requests failed.
func errorKind(err error) string {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "timeout"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "connection reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "connection closed"
	}
	return err.Error()
}
