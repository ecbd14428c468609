//go:build !linux && !darwin && !freebsd && !netbsd && !openbsd

package spool

import (
	"errors"
	"os"
)

// lock returns errors.ErrUnsupported: on this system a second broker could not be kept out.
func lock(*os.File) (bool, error) { return false, errors.ErrUnsupported }

func unlock(*os.File) error { return errors.ErrUnsupported }
