//go:build !linux

package pg

import (
	"syscall"
	"time"
)

// userTimeoutControl does nothing: only Linux has the option, elsewhere keep
// alive probes and statement deadlines have to do.
func userTimeoutControl(time.Duration) func(network, address string, raw syscall.RawConn) error {
	return nil
}
