package pg

import (
	"strings"
	"syscall"
	"time"
)

// tcpUserTimeout is TCP_USER_TIMEOUT of linux/tcp.h, which package syscall
// lacks on some architectures.
const tcpUserTimeout = 0x12

// userTimeoutControl makes the kernel give a connection up when sent data is
// not acknowledged for d; without it a write into a dead network blocks for up
// to a quarter of an hour.
func userTimeoutControl(d time.Duration) func(network, address string, raw syscall.RawConn) error {
	return func(network, _ string, raw syscall.RawConn) error {
		if !strings.HasPrefix(network, "tcp") {
			return nil
		}
		var optErr error
		err := raw.Control(func(fd uintptr) {
			optErr = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(d.Milliseconds()))
		})
		if err != nil {
			return err
		}
		return optErr
	}
}
