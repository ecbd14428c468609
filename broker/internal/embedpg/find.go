//go:build linux || darwin

package embedpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// binaries is one installation of the PostgreSQL server.
type binaries struct {
	dir   string // symlinks resolved, so that initdb finds postgres and share beside it
	major int
}

// packageDirs are the places where packages put the server programs without
// putting them on PATH: Debian, PGDG for Fedora and RHEL, Fedora and Alpine,
// Homebrew on Apple silicon and on Intel, Postgres.app.
var packageDirs = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/libexec/postgresql*",
	"/usr/bin",
	"/usr/local/pgsql/bin",
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// locate chooses the programs for a data directory that major initialised, 0
// for a new one. A new directory takes the newest version installed.
func locate(ctx context.Context, cfg Config, dataDir string, major int) (binaries, error) {
	if cfg.BinDir != "" {
		bin, err := inspect(ctx, cfg.BinDir)
		if err != nil {
			return binaries{}, fmt.Errorf("PostgreSQL programs in %s: %w", cfg.BinDir, err)
		}
		if major != 0 && bin.major != major {
			return binaries{}, &VersionError{Dir: dataDir, Major: major, Available: []int{bin.major}}
		}
		if bin.major < MinMajor {
			return binaries{}, fmt.Errorf("%w: %s holds PostgreSQL %d, Posthorn needs %d or newer",
				ErrNoBinaries, bin.dir, bin.major, MinMajor)
		}
		return bin, nil
	}

	var found []binaries
	if !cfg.skipInstalled {
		found = installed(ctx)
	}
	if bin, ok := choose(found, major); ok {
		return bin, nil
	}

	available := availableMajors(found)
	if major != 0 && major != fetchedMajor {
		return binaries{}, &VersionError{Dir: dataDir, Major: major, Available: append(available, fetchedMajor)}
	}
	bin, err := fetched(ctx, cfg)
	if err != nil {
		return binaries{}, fmt.Errorf("%w: found on this machine: %s; Posthorn needs %s; set %s to the directory of its programs, or give a database URL: %w",
			ErrNoBinaries, majors(available), needed(major), BinDirVariable, err)
	}
	return bin, nil
}

func needed(major int) string {
	if major != 0 {
		return fmt.Sprintf("PostgreSQL %d for this data directory", major)
	}
	return fmt.Sprintf("PostgreSQL %d or newer", MinMajor)
}

// choose picks the one of the wanted major version, or the newest for 0.
func choose(found []binaries, major int) (binaries, bool) {
	best := binaries{}
	for _, bin := range found {
		if bin.major < MinMajor || (major != 0 && bin.major != major) {
			continue
		}
		if bin.major > best.major {
			best = bin
		}
	}
	return best, best.dir != ""
}

func availableMajors(found []binaries) []int {
	var list []int
	for _, bin := range found {
		list = append(list, bin.major)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// installed lists the complete installations on PATH and in packageDirs, PATH
// first.
func installed(ctx context.Context) []binaries {
	var dirs []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(dir) {
			dirs = append(dirs, dir)
		}
	}
	for _, pattern := range packageDirs {
		matches, err := filepath.Glob(pattern)
		if err != nil {
			continue // the patterns are constants; a bad one matches nothing
		}
		dirs = append(dirs, matches...)
	}

	var found []binaries
	seen := map[string]bool{}
	for _, dir := range dirs {
		resolved, err := resolve(dir)
		if err != nil || seen[resolved] {
			continue
		}
		seen[resolved] = true
		if bin, err := inspect(ctx, resolved); err == nil {
			found = append(found, bin)
		}
	}
	return found
}

// resolve returns the directory where the postgres program of dir really lies:
// distributions and administrators put symlinks on PATH, and PostgreSQL finds
// its siblings beside the real file.
func resolve(dir string) (string, error) {
	path, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
	if err != nil {
		return "", err
	}
	return filepath.Dir(path), nil
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// inspect checks that dir holds postgres and initdb and asks for the version.
func inspect(ctx context.Context, dir string) (binaries, error) {
	dir, err := resolve(dir)
	if err != nil {
		return binaries{}, err
	}
	for _, name := range []string{"postgres", "initdb"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return binaries{}, fmt.Errorf("no program %s: %w", name, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version")
	cmd.Env = serverEnvironment()
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return binaries{}, fmt.Errorf("postgres --version: %w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return binaries{}, fmt.Errorf("postgres --version: %w", err)
	}
	match := versionPattern.FindSubmatch(out)
	if match == nil {
		return binaries{}, fmt.Errorf("postgres --version answered %q", out)
	}
	major, err := strconv.Atoi(string(match[1]))
	if err != nil {
		return binaries{}, fmt.Errorf("postgres --version answered %q: %w", out, err)
	}
	return binaries{dir: dir, major: major}, nil
}

// serverEnvironment is what the server's programs get to see: nothing of the
// caller's PG* variables or locale, which would change how they behave.
func serverEnvironment() []string {
	return []string{
		"PATH=/usr/local/bin:/usr/bin:/bin",
		"LC_ALL=C",
		"LANG=C",
		"TZ=UTC",
	}
}
