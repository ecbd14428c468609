package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestBundleIsJSON(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "new", "openapi.json")
	if err := run([]string{"bundle", "-o", file}, nil, t.Output()); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var printed bytes.Buffer
	if err := run([]string{"bundle"}, &printed, t.Output()); err != nil {
		t.Fatal(err)
	}
	if !json.Valid(written) || !bytes.Equal(written, printed.Bytes()) {
		t.Error("the written bundle is not JSON, or not what is printed")
	}
}

func TestDocsCheckFindsWhatDocsWrites(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	var out bytes.Buffer
	check := []string{"docs", "-check", "-root", root}
	if err := run(check, &out, t.Output()); !errors.Is(err, errFound) || !bytes.Contains(out.Bytes(), []byte("docs/reference/queue.md is not")) {
		t.Errorf("an empty folder: %v, %s", err, out.String())
	}
	if err := run([]string{"docs", "-root", root}, &out, t.Output()); err != nil {
		t.Fatal(err)
	}
	if err := run(check, &out, t.Output()); err != nil {
		t.Errorf("after writing: %v, %s", err, out.String())
	}
	if _, err := os.Stat(filepath.Join(root, "bin", "reference.html")); err != nil {
		t.Error(err)
	}
}

func TestUnknownCommandsAreRefused(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"draw"}, {"lint", "extra"}} {
		if err := run(args, t.Output(), t.Output()); err == nil || errors.Is(err, errFound) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
