package queue

import "testing"

func TestTraceParent(t *testing.T) {
	t.Parallel()
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if c := ParseTraceParent(good); string(c.AppendTraceParent(nil)) != good || c.Flags != 1 {
		t.Errorf("%s became %s", good, c.AppendTraceParent(nil))
	}
	if c := ParseTraceParent("01" + good[2:] + "-more"); string(c.AppendTraceParent(nil)) != good {
		t.Errorf("a later version became %s", c.AppendTraceParent(nil))
	}
	for _, bad := range []string{
		"", "00", good[:54], good + "0", good + "-more", "ff" + good[2:], "0x" + good[2:], "01" + good[2:] + "more",
		"00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g",
		"00-00000000000000000000000000000000-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
		"00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	} {
		if c := ParseTraceParent(bad); !c.IsZero() {
			t.Errorf("%q became %s", bad, c.AppendTraceParent(nil))
		}
	}
}
