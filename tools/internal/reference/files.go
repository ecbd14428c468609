package reference

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Compare returns the names of the files in dir that differ from pages: changed, missing, or left over from a surface
// that no longer exists. dir holds generated pages only.
func Compare(dir string, pages []Page) ([]string, error) {
	var stale []string
	wanted := map[string]bool{}
	for _, p := range pages {
		wanted[p.Name] = true
		have, err := os.ReadFile(filepath.Join(dir, p.Name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read a reference page: %w", err)
		}
		if err != nil || !bytes.Equal(have, p.Text) {
			stale = append(stale, p.Name)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the reference: %w", err)
	}
	for _, e := range entries {
		if !wanted[e.Name()] {
			stale = append(stale, e.Name())
		}
	}
	slices.Sort(stale)
	return stale, nil
}

// Write makes dir hold exactly pages.
func Write(dir string, pages []Page) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // documentation is for everyone
		return fmt.Errorf("make the reference's folder: %w", err)
	}
	stale, err := Compare(dir, pages)
	if err != nil {
		return err
	}
	for _, p := range pages {
		if err := os.WriteFile(filepath.Join(dir, p.Name), p.Text, 0o644); err != nil { //nolint:gosec // as above
			return fmt.Errorf("write a reference page: %w", err)
		}
		stale = slices.DeleteFunc(stale, func(name string) bool { return name == p.Name })
	}
	for _, name := range stale {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("remove an old reference page: %w", err)
		}
	}
	return nil
}
