package bench

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	pid, p, err := parseStat([]byte("4242 (postgres: a) b (c) S 17 4242 4242 0 -1 4194560 100 200 0 0 150 50 30 20 20 0 1 0 99 1 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := process{name: "postgres: a) b (c", parent: 17, own: 2 * time.Second, reaped: 500 * time.Millisecond}
	if pid != 4242 || p != want {
		t.Errorf("pid %d, %+v", pid, p)
	}
	for _, line := range []string{"", "1 (a", "x (a) S 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1", "1 (a) S 1", "1 (a) S 1 1 1 1 1 1 1 1 1 1 x 1 1 1 1"} {
		if _, _, err := parseStat([]byte(line)); err == nil {
			t.Errorf("%q was accepted", line)
		}
	}
}

func TestPostmasterIsTheRootOfThePostgresProcesses(t *testing.T) {
	t.Parallel()
	table := processTable{
		10: {name: "posthorn", parent: 1}, 11: {name: "sh", parent: 10}, 12: {name: "postgres", parent: 11}, 13: {name: "postgres", parent: 12},
		20: {name: "postgres", parent: 1},
	}
	if got := table.postmasterUnder(10); got != 12 {
		t.Errorf("postmaster %d, want 12", got)
	}
	if got := table.postmasterUnder(20); got != 0 {
		t.Errorf("postmaster %d below a process that has none", got)
	}
}

// TestListenersAreFound finds this process where a URL says that a database listens.
func TestListenersAreFound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var lc net.ListenConfig
	unix, err := lc.Listen(t.Context(), "unix", filepath.Join(dir, ".s.PGSQL.5433"))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close()
	tcp, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	port := strconv.Itoa(tcp.Addr().(*net.TCPAddr).Port)
	for url, want := range map[string]int{
		"postgres://u@/d?port=5433&host=" + dir:         os.Getpid(),
		"postgres://u@/d?port=5434&host=" + dir:         0,
		"postgres://u@127.0.0.1:" + port + "/d":         os.Getpid(),
		"postgres://u@/d?port=" + port + "&host=" + dir: 0,
		"": 0,
	} {
		if got := findProcesses(processes{broker: 1 << 30}, 0, url).postmaster; got != want {
			t.Errorf("%q: process %d, want %d", url, got, want)
		}
	}
}
