package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestExitStatusAndMessages(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"", 2, "name a mode"},
		{"-h", 0, "-partitions"},
		{"push -h", 0, "-baseline"},
		{"push -conns", 2, "flag needs an argument"},
		{"push -baseline env", 2, "DATABASE_URL is not set"},
		{"push extra", 2, `unexpected argument "extra"`},
		{"pull", 2, `mode "pull"`},
		{"pop -ack some", 2, `ack "some"`},
		{"push -url http://192.0.2.1:6632", 2, "only loopback targets are allowed"},
		{"push -url http://127.0.0.1:1", 2, "connection refused"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), strings.Fields(c.args), &stdout, &stderr)
		if code != c.code || !strings.Contains(stderr.String(), c.says) || stdout.Len() > 0 {
			t.Errorf("%q: exit %d, want %d; says %q, want %q; output %q", c.args, code, c.code, stderr.String(), c.says, stdout.String())
		}
	}
}
