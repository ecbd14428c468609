//go:build linux || darwin

package embedpg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

// socketPort is the number in the socket's name; by default no TCP port is
// opened.
const socketPort = "5432"

// port is the number in the socket's name, and of TCP when the settings open it.
func (s *Server) port() string {
	if port := s.cfg.Settings["port"]; port != "" {
		return port
	}
	return socketPort
}

// plainPath matches paths that need no quoting in a list of directories, here
// and in a connection string.
var plainPath = regexp.MustCompile(`^/[A-Za-z0-9/._-]*$`)

// maxSocketDir leaves room for the socket's name in the 104 bytes of the
// shortest address structure.
const maxSocketDir = 104 - len("/.s.PGSQL.65535.lock") - 1

// prepareSocketDir makes the directory for the socket: inside the data directory,
// unless the address of a socket could not hold that path.
func (s *Server) prepareSocketDir() error {
	dir := filepath.Join(s.cfg.DataDir, "run")
	if len(dir) > maxSocketDir || !plainPath.MatchString(dir) {
		temp, err := os.MkdirTemp("/tmp", "posthorn-")
		if err != nil {
			return fmt.Errorf("create a socket directory: %w", err)
		}
		dir, s.tempDir = temp, temp
	} else if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the socket directory: %w", err)
	}
	// Access to the socket is access to the data: the mode is the login.
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("protect the socket directory: %w", err)
	}
	if err := s.account.own(dir); err != nil {
		return fmt.Errorf("give the socket directory to the server's user: %w", err)
	}
	if err := s.account.checkReach(dir); err != nil {
		return err
	}
	s.socketDir = dir
	return nil
}

// removeSocket removes a dead server's socket and its lock file, which names a
// process id just as postmaster.pid does. The directory is ours alone.
func (s *Server) removeSocket() error {
	socket := filepath.Join(s.socketDir, ".s.PGSQL."+s.port())
	for _, path := range []string{socket, socket + ".lock"} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a dead server's socket: %w", err)
		}
	}
	return nil
}
