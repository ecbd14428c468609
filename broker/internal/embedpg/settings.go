//go:build linux || darwin

package embedpg

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// defaultSettings suit a broker that shares a developer's machine: full
// durability, checkpoints far enough apart that their full page images do not
// dominate the log, no compilation of its short statements.
func defaultSettings() map[string]string {
	return map[string]string{
		"listen_addresses":        "",
		"port":                    socketPort,
		"unix_socket_permissions": "0700",
		"max_connections":         "100",

		"fsync":              "on",
		"synchronous_commit": "on",
		"full_page_writes":   "on",

		"shared_buffers":               sharedBuffers(machineMemory()),
		"max_wal_size":                 "2GB",
		"checkpoint_timeout":           "15min",
		"checkpoint_completion_target": "0.9",
		"wal_compression":              "on",
		"jit":                          "off",

		"timezone":          "UTC",
		"log_timezone":      "UTC",
		"lc_messages":       "C", // busyPattern reads them
		"log_destination":   "stderr",
		"logging_collector": "off",
		"log_line_prefix":   "%m [%p] ",
	}
}

// sharedBuffers is 256 MB, or an eighth of the memory of a machine with less
// than 2 GB; memory is in bytes, 0 = unknown.
func sharedBuffers(memory uint64) string {
	const usual = 256 << 20
	buffers := uint64(usual)
	if memory != 0 {
		buffers = min(usual, max(memory/8, 16<<20))
	}
	return fmt.Sprintf("%dMB", buffers>>20)
}

// machineMemory is what this machine, or the container around us, has in bytes;
// 0 where the system does not tell through files.
func machineMemory() uint64 {
	var memory uint64
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		// "MemTotal:       24659512 kB" is the first line.
		fields := bytes.Fields(text)
		if len(fields) > 1 && string(fields[0]) == "MemTotal:" {
			kib, _ := strconv.ParseUint(string(fields[1]), 10, 64)
			memory = kib << 10
		}
	}
	if text, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil {
		limit, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64)
		if err == nil && (memory == 0 || limit < memory) {
			memory = limit
		}
	}
	return memory
}
