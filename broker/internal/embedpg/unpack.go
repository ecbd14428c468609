//go:build linux || darwin

package embedpg

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/xi2/xz"
)

// unpackLimit bounds what an archive may unpack to in bytes; a server takes
// less than 200 MB.
const unpackLimit = 1 << 30

func openGzip(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }

func openXZ(r io.Reader) (io.Reader, error) { return xz.NewReader(r, 0) }

// unpackFile unpacks a compressed tar file into the new directory dir: the
// entries whose names begin with prefix, without it. Nothing is written outside
// dir, whatever the names and links in the archive say.
func unpackFile(archive, dir, prefix string, open func(io.Reader) (io.Reader, error)) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	stream, err := open(bufio.NewReader(file))
	if err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(archive), err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := unpack(stream, dir, prefix, unpackLimit); err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(archive), err)
	}
	return nil
}

func unpack(stream io.Reader, dir, prefix string, limit int64) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()

	archive := tar.NewReader(stream)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name, ok := strings.CutPrefix(path.Clean(header.Name), prefix)
		if !ok || name == "." || name == "" {
			continue
		}
		if limit -= header.Size; limit < 0 {
			return errors.New("the archive is larger than PostgreSQL can be")
		}
		if err := unpackEntry(root, archive, header, name); err != nil {
			return fmt.Errorf("%s: %w", header.Name, err)
		}
	}
}

func unpackEntry(root *os.Root, archive *tar.Reader, header *tar.Header, name string) error {
	switch header.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeReg:
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		// Readable for all: as root, another user runs the programs.
		mode := fs.FileMode(0o644)
		if header.Mode&0o111 != 0 {
			mode = 0o755
		}
		file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return err
		}
		_, copyErr := io.Copy(file, archive)
		// Synced, because the rename that follows is taken for completeness.
		return errors.Join(copyErr, file.Chmod(mode), file.Sync(), file.Close())
	case tar.TypeSymlink:
		return placeSymlink(root, header.Linkname, name)
	default:
		return fmt.Errorf("entries of type %q are not expected", header.Typeflag)
	}
}

// placeSymlink makes a symlink name that leads to target, relative to the link,
// and refuses one that leads out of root.
func placeSymlink(root *os.Root, target, name string) error {
	if path.IsAbs(target) || !filepath.IsLocal(path.Join(path.Dir(name), target)) {
		return fmt.Errorf("symlink to %s leads out of the archive", target)
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	return root.Symlink(target, name)
}
