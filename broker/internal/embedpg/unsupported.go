//go:build !linux && !darwin

package embedpg

import (
	"context"
	"errors"
	"fmt"
)

// Server is a running PostgreSQL; on this system there is none.
type Server struct{}

// Start returns errors.ErrUnsupported on this system.
func Start(context.Context, Config) (*Server, error) {
	return nil, fmt.Errorf("a managed PostgreSQL: %w on this system: give a database URL", errors.ErrUnsupported)
}

// URL names the database.
func (s *Server) URL() string { return "" }

// DataDir is empty.
func (s *Server) DataDir() string { return "" }

// Destroy returns errors.ErrUnsupported on this system.
func Destroy(context.Context, string) error { return errors.ErrUnsupported }

// Stop does nothing.
func (s *Server) Stop(context.Context) error { return nil }
