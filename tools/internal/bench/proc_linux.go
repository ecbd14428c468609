package bench

import (
	"bytes"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of times in /proc/PID/stat: USER_HZ, which is 100 on every Linux that Go runs on.
const tick = time.Second / 100

// findProcesses completes the process ids that were not given. The broker is the process that listens on the target's
// port. The postmaster is a descendant of the broker (a managed PostgreSQL) or the process that listens where the
// database URL says.
func findProcesses(given processes, brokerPort int, databaseURL string) processes {
	table := readProcesses()
	if given.broker == 0 {
		given.broker = owner(tcpListeners(brokerPort))
	}
	if given.postmaster == 0 && given.broker != 0 {
		given.postmaster = table.postmasterUnder(given.broker)
	}
	if given.postmaster != 0 {
		return given
	}
	if socket, port := databaseAddress(databaseURL); socket != "" {
		given.postmaster = owner(unixListeners(socket))
	} else if port != 0 {
		given.postmaster = owner(tcpListeners(port))
	}
	return given
}

// read takes the processor time used so far.
func (p processes) read() CPU {
	var c CPU
	table := readProcesses()
	if s, ok := table[p.broker]; ok {
		c.Broker = seconds(s.own)
	}
	if s, ok := table[p.postmaster]; ok {
		sum := s.own + s.reaped
		for _, child := range table {
			if child.parent == p.postmaster {
				sum += child.own
			}
		}
		c.Postgres = seconds(sum)
	}
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err == nil {
		c.Bench = seconds(time.Duration(u.Utime.Nano() + u.Stime.Nano()))
	}
	return c
}

// process is one line of /proc/PID/stat.
type process struct {
	name   string
	parent int
	own    time.Duration // user and system time
	reaped time.Duration // the same of children that have ended and were waited for
}

type processTable map[int]process

func readProcesses() processTable {
	table := processTable{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return table // the pattern is constant
	}
	for _, path := range stats {
		line, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		if pid, p, err := parseStat(line); err == nil {
			table[pid] = p
		}
	}
	return table
}

// parseStat reads a stat line: "PID (NAME) STATE PPID …", where NAME may contain spaces and parentheses. Times are
// the 14th to 17th field.
func parseStat(line []byte) (int, process, error) {
	open, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if open < 1 || end < open {
		return 0, process{}, fmt.Errorf("stat line %q has no name", line)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(line[:open])))
	if err != nil {
		return 0, process{}, fmt.Errorf("stat line: %w", err)
	}
	fields := strings.Fields(string(line[end+1:])) // fields[0] is the 3rd field
	if len(fields) < 15 {
		return 0, process{}, fmt.Errorf("stat line of %d is short", pid)
	}
	var n [17]int64
	for _, i := range []int{1, 11, 12, 13, 14} {
		if n[i], err = strconv.ParseInt(fields[i], 10, 64); err != nil {
			return 0, process{}, fmt.Errorf("stat line of %d: %w", pid, err)
		}
	}
	return pid, process{
		name:   string(line[open+1 : end]),
		parent: int(n[1]),
		own:    time.Duration(n[11]+n[12]) * tick,
		reaped: time.Duration(n[13]+n[14]) * tick,
	}, nil
}

// postmasterUnder finds the postgres process below ancestor that is no child of another one.
func (t processTable) postmasterUnder(ancestor int) int {
	for pid, p := range t {
		if p.name != "postgres" || t[p.parent].name == "postgres" {
			continue
		}
		for up, hops := p.parent, 0; up > 1 && hops < 32; up, hops = t[up].parent, hops+1 {
			if up == ancestor {
				return pid
			}
		}
	}
	return 0
}

// tcpListeners are the inodes of the sockets that listen on a TCP port of this machine.
func tcpListeners(port int) []string {
	var inodes []string
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		const listening = "0A"
		for f := range socketLines(table) {
			if len(f) > 9 && f[3] == listening && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				inodes = append(inodes, f[9])
			}
		}
	}
	return inodes
}

// unixListeners are the inodes of the Unix sockets that listen at a path.
func unixListeners(path string) []string {
	var inodes []string
	const listening = "00010000" // __SO_ACCEPTCON
	for f := range socketLines("/proc/net/unix") {
		if len(f) > 7 && f[3] == listening && f[7] == path {
			inodes = append(inodes, f[6])
		}
	}
	return inodes
}

// socketLines yields the fields of each line of a table of sockets; none when the kernel has no such table.
func socketLines(table string) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		lines, err := os.ReadFile(table)
		if err != nil {
			return
		}
		for line := range strings.Lines(string(lines)) {
			if !yield(strings.Fields(line)) {
				return
			}
		}
	}
}

// owner returns the process that holds one of the sockets, 0 when none is found (or when it belongs to another user).
func owner(inodes []string) int {
	if len(inodes) == 0 {
		return 0
	}
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return 0
	}
	found := 0
	for _, link := range links {
		to, err := os.Readlink(link)
		if err != nil {
			continue
		}
		inode, isSocket := strings.CutPrefix(to, "socket:[")
		if !isSocket || !slices.Contains(inodes, strings.TrimSuffix(inode, "]")) {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(link, "/")[2])
		// A child may have inherited the socket: the listener itself is the older process.
		if err == nil && (found == 0 || pid < found) {
			found = pid
		}
	}
	return found
}
