// Command spec checks the API description and makes things of it.
//
//	spec lint              checks the description and what must agree with it in the code
//	spec bundle [-o FILE]  writes the bundled description as JSON
//	spec docs [-check]     writes docs/reference/ and bin/reference.html, or compares docs/reference/ with them
//
// It runs in the checkout. It exits with 0 when all is well, 1 when a check found something, 2 when it could not run.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/posthorn/posthorn/openapi"
	"github.com/posthorn/posthorn/tools/internal/drift"
	"github.com/posthorn/posthorn/tools/internal/reference"
)

func main() {
	err := run(os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, errFound):
		os.Exit(1)
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "spec:", err)
		os.Exit(2)
	}
}

// errFound says that a check found something, which has been printed.
var errFound = errors.New("found problems")

func run(args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return errors.New("want lint, bundle or docs")
	}
	fs := flag.NewFlagSet("spec "+args[0], flag.ContinueOnError)
	fs.SetOutput(stderr)
	root := fs.String("root", "", "checkout (default: where go.work is)")
	out := fs.String("o", "", "bundle: file to write (default standard output)")
	check := fs.Bool("check", false, "docs: compare instead of writing")
	if err := fs.Parse(args[1:]); err != nil {
		return err //nolint:wrapcheck // the flag package has said it all
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if *root == "" {
		found, err := checkout()
		if err != nil {
			return err
		}
		*root = found
	}
	switch args[0] {
	case "lint":
		return lint(*root, stdout)
	case "bundle":
		return bundle(*out, stdout)
	case "docs":
		return docs(*root, *check, stdout)
	}
	return fmt.Errorf("unknown command %q: want lint, bundle or docs", args[0])
}

// checkout is the directory of the go.work file.
func checkout() (string, error) {
	out, err := exec.Command("go", "env", "GOWORK").Output() //nolint:noctx // answers at once
	if err != nil {
		return "", fmt.Errorf("go env GOWORK: %w", err)
	}
	file := strings.TrimSpace(string(out))
	if file == "" || file == "off" {
		return "", errors.New("no go.work: run inside the checkout or give -root")
	}
	return filepath.Dir(file), nil
}

func lint(root string, stdout io.Writer) error {
	subject, err := drift.Load(root)
	if err != nil {
		return err
	}
	problems, err := drift.Check(subject)
	if err != nil {
		return err
	}
	for _, p := range problems {
		fmt.Fprintln(stdout, p)
	}
	fmt.Fprintf(stdout, "%d operations, %d requirements, %d problems\n", len(subject.Document.Operations()), len(subject.Requirements), len(problems))
	if len(problems) > 0 {
		return errFound
	}
	return nil
}

func bundle(file string, stdout io.Writer) error {
	spec, err := openapi.Load()
	if err != nil {
		return fmt.Errorf("load the API description: %w", err)
	}
	if file == "" {
		_, err := stdout.Write(spec.JSON())
		return err //nolint:wrapcheck // the caller's writer
	}
	return write(file, spec.JSON())
}

func docs(root string, check bool, stdout io.Writer) error {
	subject, err := drift.Load(root)
	if err != nil {
		return err
	}
	pages, err := reference.Pages(subject.Document, subject.Requirements)
	if err != nil {
		return err //nolint:wrapcheck // says the operation
	}
	dir := filepath.Join(root, "docs", "reference")
	stale, err := reference.Compare(dir, pages)
	if err != nil {
		return err //nolint:wrapcheck // says the file
	}
	if check {
		for _, name := range stale {
			fmt.Fprintf(stdout, "docs/reference/%s is not what the description says: run make docs\n", name)
		}
		if len(stale) > 0 {
			return errFound
		}
		return nil
	}
	if err := reference.Write(dir, pages); err != nil {
		return err //nolint:wrapcheck // says the file
	}
	html, err := reference.HTML(pages)
	if err != nil {
		return err //nolint:wrapcheck // says the page
	}
	fmt.Fprintf(stdout, "%d pages in docs/reference, %d changed\n", len(pages), len(stale))
	return write(filepath.Join(root, "bin", "reference.html"), html)
}

func write(file string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // build artefacts are no secrets
		return fmt.Errorf("make the folder: %w", err)
	}
	if err := os.WriteFile(file, content, 0o644); err != nil { //nolint:gosec // build artefacts are no secrets
		return fmt.Errorf("write: %w", err)
	}
	return nil
}
