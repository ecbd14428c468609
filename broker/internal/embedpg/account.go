//go:build linux || darwin

package embedpg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the unprivileged user that runs the server when we are root.
type account struct {
	uid, gid uint32
}

// chooseAccount returns nil when we are not root: the server then runs as us.
// The owner of existing data comes first, or its files could not be opened.
func chooseAccount(dirs ...string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if uid, gid := owner(info); uid != 0 {
			return &account{uid: uid, gid: gid}, nil
		}
	}
	for _, name := range []string{"postgres", "_postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if uidErr == nil && gidErr == nil && uid != 0 {
			return &account{uid: uint32(uid), gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("PostgreSQL does not run as root, and this machine has neither a user postgres nor nobody: run as an ordinary user, or create one")
}

func owner(info fs.FileInfo) (uid, gid uint32) {
	stat := info.Sys().(*syscall.Stat_t)
	return stat.Uid, stat.Gid
}

// name is what an error message calls the account.
func (a *account) name() string {
	if u, err := user.LookupId(strconv.FormatUint(uint64(a.uid), 10)); err == nil {
		return u.Username
	}
	return fmt.Sprintf("uid %d", a.uid)
}

// own gives path to the account; it does nothing when we are not root.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Lchown(path, int(a.uid), int(a.gid))
}

// ownTree gives dir and all it holds to the account when root owns dir, as
// after a restore from a backup.
func (a *account) ownTree(dir string) error {
	if a == nil {
		return nil
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if uid, _ := owner(info); uid == a.uid {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return a.own(path)
	})
}

// checkReach says which directory on the way to path, path included, the
// account cannot traverse.
func (a *account) checkReach(path string) error {
	if a == nil {
		return nil
	}
	for dir := path; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if !a.traverses(info) {
			return fmt.Errorf("user %s, which runs PostgreSQL because root may not, cannot enter %s (mode %04o), needed for %s: choose another directory, or allow it with chmod o+x",
				a.name(), dir, info.Mode().Perm(), path)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

func (a *account) traverses(info fs.FileInfo) bool {
	uid, gid := owner(info)
	mode := info.Mode().Perm()
	switch {
	case uid == a.uid:
		return mode&0o100 != 0
	case gid == a.gid:
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}

// credential is what a child process runs as; nil = as us.
func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid}
}
