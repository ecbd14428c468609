package spool

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
)

// TestTheNameStaysWithTheDirectory opens a directory again and again.
func TestTheNameStaysWithTheDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := func() uuid.UUID {
		t.Helper()
		s, err := Open(Config{Dir: dir, Logger: discard})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}()
		id, err := s.ID()
		again, errAgain := s.ID()
		if err != nil || errAgain != nil || id == uuid.Nil || again != id {
			t.Fatalf("%v %v, then %v %v", id, err, again, errAgain)
		}
		return id
	}
	first := name()
	if second := name(); second != first {
		t.Errorf("the second time it is %v, the first time it was %v", second, first)
	}
	path := filepath.Join(dir, idName)
	if err := os.WriteFile(path, []byte("what is this\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	third := name()
	if third == first {
		t.Error("a name that cannot be read was read")
	}
	if fourth := name(); fourth != third {
		t.Errorf("after damage it is %v, then %v", third, fourth)
	}
}
