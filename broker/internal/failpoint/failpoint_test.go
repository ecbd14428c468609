package failpoint_test

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/posthorn/posthorn/broker/internal/failpoint"
)

var (
	first  = failpoint.New("test.first")
	second = failpoint.New("test.second")
)

// armVariable makes the test binary a child that arms what it names and then passes the places.
const armVariable = "POSTHORN_FAILPOINT_TEST_ARM"

func TestMain(m *testing.M) {
	text, child := os.LookupEnv(armVariable)
	if !child {
		os.Exit(m.Run())
	}
	if err := failpoint.Arm(text); err != nil {
		panic(err)
	}
	for _, line := range []string{"a", "b", "c"} {
		first.Hit()
		_, _ = os.Stdout.WriteString(line)
		second.Hit()
	}
}

// TestArmedPlacesKill runs a child with places armed and looks how far it came.
func TestArmedPlacesKill(t *testing.T) {
	t.Parallel()
	for arm, want := range map[string]string{
		"":                              "abc",
		"test.first":                    "",
		"test.second":                   "a",
		" test.first:3 , test.second:3": "ab",
		"test.second:3,":                "abc",
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), armVariable+"="+arm)
		out, err := cmd.Output()
		if string(out) != want {
			t.Errorf("%q: it wrote %q, want %q", arm, out, want)
		}
		status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if killed := status.Signaled() && status.Signal() == syscall.SIGKILL; killed != (arm != "") {
			t.Errorf("%q: it ended with %v", arm, err)
		}
	}
}

func TestArmRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"test.third":                 "test.first, test.second",
		"test.first:0":               "above 0",
		"test.first:x":               "above 0",
		"test.first,test.second:-1":  "above 0",
		"test.first:1, test.unknown": "test.unknown",
	} {
		if err := failpoint.Arm(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	first.Hit() // the refused lists have armed nothing: this test lives on
	second.Hit()
}
