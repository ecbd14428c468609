//go:build linux || darwin

package embedpg

import (
	"context"
	"errors"
)

const fetchedMajor = 17

func fetched(ctx context.Context, cfg Config) (binaries, error) {
	return binaries{}, errors.New("cannot fetch")
}
