package embedpg

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
)

// MinMajor is the oldest major version of PostgreSQL that Posthorn runs on.
const MinMajor = 14

// BinDirVariable is the environment variable that names the directory of the
// PostgreSQL programs when Config.BinDir is empty.
const BinDirVariable = "POSTHORN_PG_BIN"

// Config says which server to run and where. The zero value runs the default
// data directory on the programs found on this machine.
type Config struct {
	// DataDir holds everything the server writes; "" = DefaultDataDir(). It is
	// created when missing. As root, DataDir must be reachable by the
	// unprivileged user that runs the server.
	DataDir string

	// BinDir is the directory that holds postgres and initdb. "" = the
	// directory in POSTHORN_PG_BIN, else search PATH and the usual package
	// locations, else fetch into CacheDir.
	BinDir string

	// CacheDir keeps fetched programs; "" = DefaultCacheDir().
	CacheDir string

	// Settings are server parameters that override the defaults of this
	// package, e.g. {"max_connections": "200"}; nil = none. With fsync off the
	// initialisation skips syncing too.
	Settings map[string]string

	// Logger receives starts, stops and unexpected exits; nil = slog.Default().
	Logger *slog.Logger

	// Tests set these: skipInstalled passes over the programs of this machine,
	// repository is where the archive library fetches from; "" = its own.
	skipInstalled bool
	repository    string
}

// ErrNoBinaries says that no usable PostgreSQL was found on this machine and
// none could be fetched.
var ErrNoBinaries = errors.New("no usable PostgreSQL programs")

// InUseError says that another live process owns the data directory.
type InUseError struct {
	Dir string // the data directory
	PID int    // the owner's process id; 0 when it could not be read
}

func (e *InUseError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("data directory %s is in use by another Posthorn process", e.Dir)
	}
	return fmt.Sprintf("data directory %s is in use by another Posthorn process (pid %d)", e.Dir, e.PID)
}

// VersionError says that the data directory needs another major version of
// PostgreSQL than the ones available.
type VersionError struct {
	Dir       string // PostgreSQL's data directory
	Major     int    // the version that initialised it
	Available []int  // the versions that could be run
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("data directory %s was initialised by PostgreSQL %d, and only %s can be run here: install PostgreSQL %d, or point %s at its programs",
		e.Dir, e.Major, majors(e.Available), e.Major, BinDirVariable)
}

func majors(list []int) string {
	if len(list) == 0 {
		return "none"
	}
	names := make([]string, len(list))
	for i, major := range list {
		names[i] = fmt.Sprintf("PostgreSQL %d", major)
	}
	return strings.Join(names, ", ")
}

// DefaultDataDir is /var/lib/posthorn for root, else $XDG_DATA_HOME/posthorn,
// else ~/.local/share/posthorn.
func DefaultDataDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/posthorn", nil
	}
	// The XDG rules say that a relative path is invalid and to be ignored.
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "posthorn"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("choose a data directory: %w", err)
	}
	return filepath.Join(home, ".local", "share", "posthorn"), nil
}

// DefaultCacheDir is /var/cache/posthorn for root, where the unprivileged user
// that runs the server can read it, else posthorn in os.UserCacheDir().
func DefaultCacheDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/cache/posthorn", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("choose a cache directory: %w", err)
	}
	return filepath.Join(dir, "posthorn"), nil
}

// withDefaults returns a copy of c in which every zero has its meaning.
func (c Config) withDefaults() (Config, error) {
	if c.DataDir == "" {
		dir, err := DefaultDataDir()
		if err != nil {
			return c, err
		}
		c.DataDir = dir
	}
	dir, err := filepath.Abs(c.DataDir)
	if err != nil {
		return c, fmt.Errorf("resolve the data directory: %w", err)
	}
	c.DataDir = dir
	if c.CacheDir == "" {
		// Only a fetch needs the cache, so an account without a home directory
		// can still run installed programs: fetch reports the empty path.
		c.CacheDir, _ = DefaultCacheDir()
	}
	if c.BinDir == "" {
		c.BinDir = os.Getenv(BinDirVariable)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}
