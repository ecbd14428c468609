// Command posthorn-sdk-peer is the program peer of the Go client library, for
// posthorn-conformance run --through ./posthorn-sdk-peer. It reads calls on standard input and writes replies on
// standard output; CONFORMANCE_TARGET is the broker's base URL, CONFORMANCE_TOKEN the token that it is shown.
package main

import (
	"context"
	"fmt"
	"os"

	sdkgo "github.com/posthorn/posthorn/conformance/adapters/sdk-go"
	"github.com/posthorn/posthorn/conformance/suite"
)

func main() {
	target := os.Getenv(suite.TargetVariable)
	if target == "" {
		fmt.Fprintf(os.Stderr, "posthorn-sdk-peer: %s is not set\n", suite.TargetVariable)
		os.Exit(1)
	}
	if err := sdkgo.Serve(context.Background(), target, os.Getenv(suite.TokenVariable), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "posthorn-sdk-peer: %v\n", err)
		os.Exit(1)
	}
}
