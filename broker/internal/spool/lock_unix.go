//go:build linux || darwin || freebsd || netbsd || openbsd

package spool

import (
	"errors"
	"os"
	"syscall"
)

// lock takes the file's lock for this process, or reports false if another one has it. The kernel
// releases it when the process ends, however it ends.
func lock(file *os.File) (bool, error) {
	for {
		switch err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		default:
			return err == nil, err
		}
	}
}

// unlock gives the lock back. Closing the file is not enough: a program that is being started elsewhere in
// this process shares the file until it runs.
func unlock(file *os.File) error { return syscall.Flock(int(file.Fd()), syscall.LOCK_UN) }
