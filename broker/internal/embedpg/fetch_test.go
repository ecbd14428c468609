//go:build linux || darwin

package embedpg

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func writeProgram(t *testing.T, path, body string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// repository serves one archive as the library expects it, and counts how often.
type repository struct {
	*httptest.Server
	downloads atomic.Int64
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	txz, err := os.ReadFile(filepath.Join("testdata", "archive.txz"))
	if err != nil {
		t.Fatal(err)
	}
	var jar bytes.Buffer
	z := zip.NewWriter(&jar)
	w, err := z.Create("postgres.txz")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(txz); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	r := &repository{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if strings.HasSuffix(req.URL.Path, ".sha256") {
			sum := sha256.Sum256(jar.Bytes())
			_, _ = w.Write([]byte(hex.EncodeToString(sum[:])))
			return
		}
		r.downloads.Add(1)
		_, _ = w.Write(jar.Bytes())
	}))
	t.Cleanup(r.Close)
	return r
}

func fetchConfig(t *testing.T, repository string) Config {
	t.Helper()
	cfg := fast("unused")
	cfg.CacheDir = filepath.Join(tempDir(t), "cache")
	cfg.skipInstalled = true
	cfg.repository = repository
	cfg, err := cfg.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestArchiveIsFetchedOnce(t *testing.T) {
	t.Parallel()
	source := newRepository(t)
	cfg := fetchConfig(t, source.URL)

	// What a killed fetch leaves, and a result that cannot be run.
	if err := os.MkdirAll(filepath.Join(cfg.CacheDir, "fetch-1.tmp", "tree"), 0o755); err != nil {
		t.Fatal(err)
	}

	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			bin, err := locate(deadline(t), cfg, "", 0)
			if err != nil {
				t.Error(err)
			} else if bin.major != fetchedMajor {
				t.Errorf("major %d, want %d", bin.major, fetchedMajor)
			}
		})
	}
	group.Wait()
	if n := source.downloads.Load(); n != 1 {
		t.Errorf("%d downloads, want 1", n)
	}

	bin, err := locate(deadline(t), cfg, "", fetchedMajor)
	if err != nil {
		t.Fatal(err)
	}
	link, err := os.Readlink(filepath.Join(bin.dir, "..", "lib", "libpq.so"))
	if err != nil || link != "libpq.so.5" {
		t.Errorf("libpq.so leads to %q, %v", link, err)
	}
	entries, err := os.ReadDir(cfg.CacheDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), ".tmp") {
			t.Errorf("left behind: %s", entry.Name())
		}
	}

	// A cache that was damaged is fetched again.
	if err := os.Remove(filepath.Join(bin.dir, "postgres")); err != nil {
		t.Fatal(err)
	}
	if _, err := locate(deadline(t), cfg, "", 0); err != nil {
		t.Fatal(err)
	}
	if n := source.downloads.Load(); n != 2 {
		t.Errorf("%d downloads, want 2", n)
	}
}

func TestNothingFoundAndNothingFetched(t *testing.T) {
	empty := httptest.NewServer(http.NotFoundHandler())
	defer empty.Close()
	cfg := fetchConfig(t, empty.URL)
	t.Setenv("PATH", tempDir(t))
	_, err := locate(deadline(t), cfg, "", 0)
	if !errors.Is(err, ErrNoBinaries) {
		t.Fatalf("locate: %v, want ErrNoBinaries", err)
	}
	for _, part := range []string{"PostgreSQL 14 or newer", BinDirVariable, "archive:", "no npm client on PATH"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the message does not say %q: %v", part, err)
		}
	}
}

// TestPackageWithAnotherChecksum has an npm client that delivers something else
// than what was published.
func TestPackageWithAnotherChecksum(t *testing.T) {
	empty := httptest.NewServer(http.NotFoundHandler())
	defer empty.Close()
	cfg := fetchConfig(t, empty.URL)
	dir := tempDir(t)
	writeProgram(t, filepath.Join(dir, "npm"), `echo forged > forged.tgz`)
	t.Setenv("PATH", dir)
	_, err := locate(deadline(t), cfg, "", 0)
	if !errors.Is(err, ErrNoBinaries) || !strings.Contains(err.Error(), "forged.tgz does not have the expected checksum") {
		t.Fatalf("locate: %v", err)
	}
}

func TestUnpackPackage(t *testing.T) {
	t.Parallel()
	archive, sum := packageFile(t, []entry{
		{name: "package/package.json", body: "{}"},
		{name: "package/native/bin/postgres", body: "#!/bin/sh\necho 'postgres (PostgreSQL) 17.10'\n", mode: 0o755},
		{name: "package/native/bin/initdb", body: "#!/bin/sh\n", mode: 0o700},
		{name: "package/native/lib/libpq.so.5.17", body: "library", mode: 0o600},
		{name: "package/native/pg-symlinks.json", body: `[{"source":"native/lib/libpq.so.5.17","target":"native/lib/libpq.so.5"},
			{"source":"native/lib/libpq.so.5.17","target":"native/lib/deep/er/libpq.so"}]`},
	})
	tree, err := unpackPackage(archive, tempDir(t), sum)
	if err != nil {
		t.Fatal(err)
	}
	if bin, err := inspect(context.Background(), filepath.Join(tree, "bin")); err != nil || bin.major != 17 {
		t.Errorf("unpacked programs: %+v, %v", bin, err)
	}
	for _, link := range []string{"lib/libpq.so.5", "lib/deep/er/libpq.so"} {
		if body, err := os.ReadFile(filepath.Join(tree, link)); err != nil || string(body) != "library" {
			t.Errorf("%s: %q, %v", link, body, err)
		}
	}
	for name, mode := range map[string]fs.FileMode{"bin/initdb": 0o755, "lib/libpq.so.5.17": 0o644} {
		if info, err := os.Stat(filepath.Join(tree, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want %04o", name, info, err, mode)
		}
	}
	if _, err := os.Stat(filepath.Join(tree, "package.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file from outside the prefix was unpacked: %v", err)
	}
}

type entry struct {
	name, body, link string
	kind             byte
	mode             int64
}

func tarOf(t *testing.T, entries []entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}
		if e.mode == 0 {
			e.mode = 0o644
		}
		header := &tar.Header{Name: e.name, Typeflag: e.kind, Mode: e.mode, Linkname: e.link, Size: int64(len(e.body))}
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func packageFile(t *testing.T, entries []entry) (path, sum string) {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(tarOf(t, entries)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(tempDir(t), "package.tgz")
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	digest := sha512.Sum512(out.Bytes())
	return path, base64.StdEncoding.EncodeToString(digest[:])
}

func TestHostileArchives(t *testing.T) {
	t.Parallel()
	cases := map[string][]entry{
		"parent":               {{name: "../outside", body: "x"}},
		"parent within":        {{name: "a/../../outside", body: "x"}},
		"absolute":             {{name: "/outside", body: "x"}},
		"link out":             {{name: "l", kind: tar.TypeSymlink, link: "../outside"}},
		"absolute link":        {{name: "l", kind: tar.TypeSymlink, link: "/etc"}},
		"through a link":       {{name: "l", kind: tar.TypeSymlink, link: ".."}, {name: "l/outside", body: "x"}},
		"over a link":          {{name: "a", body: "x"}, {name: "l", kind: tar.TypeSymlink, link: "a"}, {name: "l", body: "y"}},
		"hard link":            {{name: "l", kind: tar.TypeLink, link: "../outside"}},
		"device":               {{name: "d", kind: tar.TypeChar}},
		"twice the same":       {{name: "a", body: "x"}, {name: "a", body: "y"}},
		"more than the limit":  {{name: "a", body: strings.Repeat("x", 600)}, {name: "b", body: strings.Repeat("x", 600)}},
		"link to a link's end": {{name: "d/l", kind: tar.TypeSymlink, link: "../../outside"}},
	}
	for name, entries := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parent := tempDir(t)
			dir := filepath.Join(parent, "in")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := unpack(bytes.NewReader(tarOf(t, entries)), dir, "", 1000); err == nil {
				t.Error("unpacked without an error")
			}
			if _, err := os.Lstat(filepath.Join(parent, "outside")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("written outside: %v", err)
			}
		})
	}

	archive, sum := packageFile(t, []entry{{
		name: "package/native/pg-symlinks.json",
		body: `[{"source":"../../../etc/passwd","target":"native/lib/x"}]`,
	}})
	if _, err := unpackPackage(archive, tempDir(t), sum); err == nil || !strings.Contains(err.Error(), "leads out of the archive") {
		t.Errorf("a symlink list that leads out: %v", err)
	}
}

// TestRealFetch downloads from the network when POSTHORN_TEST_FETCH is set, and
// runs what it got.
func TestRealFetch(t *testing.T) {
	if os.Getenv("POSTHORN_TEST_FETCH") == "" {
		t.Skip("POSTHORN_TEST_FETCH is not set")
	}
	cfg := fast(dataDir(t))
	cfg.skipInstalled = true
	cfg.CacheDir = filepath.Join(tempDir(t), "cache")
	s := start(t, cfg)
	if s.bin.major != fetchedMajor || !strings.HasPrefix(s.bin.dir, cfg.CacheDir) {
		t.Errorf("runs PostgreSQL %d of %s", s.bin.major, s.bin.dir)
	}
	checkAnswers(t, s)
}

func TestFindPrograms(t *testing.T) {
	real := filepath.Join(tempDir(t), "lib", "15", "bin")
	if err := os.MkdirAll(real, 0o755); err != nil {
		t.Fatal(err)
	}
	writeProgram(t, filepath.Join(real, "postgres"), `echo "postgres (PostgreSQL) 15.13 (Some 15.13-1)"`)
	writeProgram(t, filepath.Join(real, "initdb"), `exit 0`)
	links := tempDir(t)
	if err := os.Symlink(filepath.Join(real, "postgres"), filepath.Join(links, "postgres")); err != nil {
		t.Fatal(err)
	}
	old := tempDir(t)
	writeProgram(t, filepath.Join(old, "postgres"), `echo "postgres (PostgreSQL) 13.9"`)
	writeProgram(t, filepath.Join(old, "initdb"), `exit 0`)
	client := tempDir(t) // a package without initdb
	writeProgram(t, filepath.Join(client, "postgres"), `echo "postgres (PostgreSQL) 18.1"`)
	beta := tempDir(t)
	writeProgram(t, filepath.Join(beta, "postgres"), `echo "postgres (PostgreSQL) 19beta1"`)
	writeProgram(t, filepath.Join(beta, "initdb"), `exit 0`)

	ctx := context.Background()
	if bin, err := inspect(ctx, links); err != nil || bin != (binaries{dir: resolved(t, real), major: 15}) {
		t.Errorf("symlink: %+v, %v", bin, err)
	}
	if bin, err := inspect(ctx, beta); err != nil || bin.major != 19 {
		t.Errorf("beta: %+v, %v", bin, err)
	}
	if _, err := inspect(ctx, client); err == nil || !strings.Contains(err.Error(), "no program initdb") {
		t.Errorf("without initdb: %v", err)
	}

	cfg := fast("unused")
	cfg.BinDir = old
	if _, err := locate(ctx, cfg, "", 0); !errors.Is(err, ErrNoBinaries) || !strings.Contains(err.Error(), "PostgreSQL 13, Posthorn needs 14 or newer") {
		t.Errorf("old programs: %v", err)
	}
	t.Setenv(BinDirVariable, real)
	withEnv, err := fast("unused").withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if bin, err := locate(ctx, withEnv, "", 0); err != nil || bin.dir != resolved(t, real) {
		t.Errorf("%s: %+v, %v", BinDirVariable, bin, err)
	}

	t.Setenv("PATH", strings.Join([]string{client, links, old, beta, links}, string(os.PathListSeparator)))
	var majors []int
	for _, bin := range installed(ctx) {
		majors = append(majors, bin.major)
	}
	if len(majors) < 3 || majors[0] != 15 || majors[1] != 13 || majors[2] != 19 {
		t.Errorf("installed: %v, want 15 13 19 first", majors)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	found := []binaries{{"a", 13}, {"b", 15}, {"c", 17}, {"d", 17}, {"e", 16}}
	for major, want := range map[int]string{0: "c", 15: "b", 17: "c", 13: "", 18: ""} {
		if bin, ok := choose(found, major); bin.dir != want || ok != (want != "") {
			t.Errorf("choose(%d) = %+v, %v; want %q", major, bin, ok, want)
		}
	}
}

func resolved(t *testing.T, path string) string {
	t.Helper()
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		t.Fatal(err)
	}
	return real
}
