// Command posthorn runs the broker; posthorn help lists its commands and settings.
package main

import (
	"os"

	"github.com/posthorn/posthorn/broker/internal/app"
)

// version is set by release builds: -ldflags "-X main.version=1.2.3".
var version = ""

func main() {
	os.Exit(app.Program{
		Args:    os.Args[1:],
		Getenv:  os.Getenv,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
		Version: version,
	}.Main())
}
