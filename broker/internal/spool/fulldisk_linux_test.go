package spool

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// diskDir names the environment variable that tells TestAFullDisk that it runs in a mount namespace of
// its own, and where it may mount.
const diskDir = "POSTHORN_SPOOL_TEST_DISK"

// TestAFullDisk fills a real file system of 1 MiB, drains it, and fills it again. It runs itself in a
// namespace in which everybody may mount one, and which takes it along when it ends.
func TestAFullDisk(t *testing.T) {
	if disk := os.Getenv(diskDir); disk != "" {
		if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"); err != nil {
			t.Skipf("mount a small file system: %v", err)
		}
		fillADisk(t, disk)
		return
	}
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAFullDisk$", "-test.v")
	cmd.Env = append(os.Environ(), diskDir+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		t.Errorf("%v\n%s", err, out)
	case err != nil:
		t.Skipf("this system has no namespaces for everybody: %v", err)
	case !bytes.Contains(out, []byte("--- PASS: TestAFullDisk")):
		t.Skipf("%s", out)
	}
}

func fillADisk(t *testing.T, disk string) {
	t.Helper()
	s := open(t, Config{Dir: filepath.Join(disk, "spool"), MaxSegmentBytes: 200_000})
	t.Cleanup(func() { s.Close() })
	for range 3 {
		stored, refused := 0, 0
		for i := 0; refused < 5; i++ {
			err := s.Append(t.Context(), Record{Lane: "a", Data: fmt.Appendf(nil, "record %0990d", i)})
			switch {
			case err == nil:
				stored++
			case errors.Is(err, ErrFull) && errors.Is(err, syscall.ENOSPC) && !errors.Is(err, ErrUncertain):
				refused++
			default:
				t.Fatal(err)
			}
		}
		if stored < 500 {
			t.Errorf("only %d records of 1 kB fit", stored)
		}
		wantConsistent(t, s)
		s = reopen(t, s)
		all := entries(t, s)
		if len(all) != stored || s.Stats().Failed != 0 {
			t.Fatalf("%d were stored, %d are there, %+v", stored, len(all), s.Stats())
		}
		// A full disk has no room for marks either; whole files go all the same.
		if err := s.Done(all[:400]...); err != nil && !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		put(t, s, record(0))
		for all := entries(t, s); len(all) > 0; all = all[min(100, len(all)):] {
			if err := s.Done(all[:min(100, len(all))]...); err != nil {
				t.Fatal(err)
			}
		}
		if st := s.Stats(); st.Files != 0 {
			t.Errorf("%+v", st)
		}
	}
}
