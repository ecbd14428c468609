package embedpg

import (
	"context"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// childAttributes ignores orphaned: macOS has no parent-death signal, and the
// next Start stops what an earlier owner left running.
func childAttributes(credential *syscall.Credential, _ syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: credential}
}

// commandLine returns the arguments of a live process, split at spaces; nil
// when there is none, or only a zombie that nobody has reaped.
func commandLine(pid int) []string {
	line := ps("-o", "command=", "-p", strconv.Itoa(pid))
	if strings.Contains(line, "<defunct>") {
		return nil
	}
	return strings.Fields(line)
}

// children lists the processes whose parent is pid.
func children(pid int) []int {
	var list []int
	for line := range strings.Lines(ps("-A", "-o", "pid=,ppid=")) {
		fields := strings.Fields(line)
		if len(fields) != 2 || fields[1] != strconv.Itoa(pid) {
			continue
		}
		if child, err := strconv.Atoi(fields[0]); err == nil {
			list = append(list, child)
		}
	}
	return list
}

func ps(args ...string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "ps", args...).Output()
	if err != nil {
		return ""
	}
	return string(out)
}
