//go:build linux || darwin

package embedpg

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// logLimit is the size at which the log is moved aside. Two of these hold weeks
// of an ordinary server, and hours of one that logs an error per statement.
const logLimit = 16 << 20

// serverLog is the file that the server's standard error is appended to. The
// server writes to it directly, not through us, so that nothing is lost when we
// die; hence it is rotated by copying and truncating.
type serverLog struct {
	file *os.File
}

func openLog(dataDir string, as *account) (*serverLog, error) {
	path := filepath.Join(dataDir, "postgres.log")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := as.own(path); err != nil {
		_ = file.Close()
		return nil, err
	}
	return &serverLog{file: file}, nil
}

// rotate moves the log aside when it has grown past limit bytes. Lines written
// during the copy may be lost.
func (l *serverLog) rotate(limit int64) error {
	info, err := l.file.Stat()
	if err != nil || info.Size() <= limit {
		return err
	}
	old := l.file.Name() + ".1"
	if err := os.Remove(old); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	out, err := os.OpenFile(old, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	// The newest limit bytes are kept, whatever the log grew to between checks.
	_, copyErr := io.Copy(out, io.NewSectionReader(l.file, info.Size()-limit, limit))
	return errors.Join(copyErr, out.Close(), l.file.Truncate(0))
}

// size is where the next line goes.
func (l *serverLog) size() int64 {
	info, err := l.file.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

// since returns the last lines written after offset from, at most n.
func (l *serverLog) since(from int64, n int) string {
	const most = 16 << 10
	from = max(from, l.size()-most)
	text, err := io.ReadAll(io.NewSectionReader(l.file, from, most))
	if err != nil {
		return ""
	}
	lines := strings.Split(string(bytes.TrimSpace(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func (l *serverLog) close() error { return l.file.Close() }
