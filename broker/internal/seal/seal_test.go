package seal

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

var (
	key1 = strings.Repeat("11", 32)
	key2 = strings.Repeat("2a", 32)
)

func parse(t testing.TB, single, list string) *Keys {
	t.Helper()
	k, err := Parse(single, list)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestSealAndOpen(t *testing.T) {
	t.Parallel()
	k := parse(t, key1, "")
	b := Binding{"orders", "customer-1", [16]byte{1, 2, 3}}
	for _, payload := range []string{"", "null", `{"a":1}`, strings.Repeat("x", 1<<20)} {
		envelope, err := k.Seal([]byte("before"), b, []byte(payload))
		if err != nil || len(envelope) != len("before")+len(payload)+Overhead || len(payload) > 3 && bytes.Contains(envelope, []byte(payload)) {
			t.Fatalf("%.20q: %d bytes, %v", payload, len(envelope), err)
		}
		opened, err := k.Open(b, envelope[len("before"):])
		if err != nil || string(opened) != payload || opened == nil {
			t.Errorf("%.20q opens as %.20q, %v", payload, opened, err)
		}
	}
	one, _ := k.Seal(nil, b, []byte("x"))
	two, _ := k.Seal(nil, b, []byte("x"))
	if bytes.Equal(one, two) {
		t.Error("a payload is sealed the same way twice")
	}
}

func TestEveryFlippedBitIsFound(t *testing.T) {
	t.Parallel()
	k := parse(t, key1, "")
	b := Binding{"orders", "p", [16]byte{1}}
	envelope, err := k.Seal(nil, b, []byte(`{"a":1}`))
	if err != nil {
		t.Fatal(err)
	}
	for i := range envelope {
		for bit := range 8 {
			damaged := bytes.Clone(envelope)
			damaged[i] ^= 1 << bit
			if got, err := k.Open(b, damaged); err == nil {
				t.Fatalf("byte %d, bit %d: opens as %q", i, bit, got)
			}
		}
		if _, err := k.Open(b, envelope[:i]); err == nil {
			t.Fatalf("the first %d bytes open", i)
		}
	}
	for name, other := range map[string]Binding{
		"queue": {"order", "sp", [16]byte{1}}, "partition": {"orders", "q", [16]byte{1}}, "message": {"orders", "p", [16]byte{2}},
		"border": {"ordersp", "", [16]byte{1}},
	} {
		if _, err := k.Open(other, envelope); !errors.Is(err, ErrDamaged) {
			t.Errorf("another %s: %v", name, err)
		}
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	b := Binding{"orders", "p", [16]byte{1}}
	old, err := parse(t, key1, "").Seal(nil, b, []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	for name, rotated := range map[string]*Keys{
		"list":          parse(t, "", "k2:"+key2+", k1:"+key1),
		"list and key":  parse(t, key1, "k2:"+key2),
		"key in both":   parse(t, key1, "k2:"+key2+",k1:"+key1),
		"another order": parse(t, "", "k1:"+key1+",k2:"+key2),
	} {
		if got, err := rotated.Open(b, old); err != nil || string(got) != "x" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	rotated := parse(t, "", "k2:"+key2+",k1:"+key1)
	fresh, err := rotated.Seal(nil, b, []byte("x"))
	if err != nil || rotated.Active() != "k2" || KeyID(fresh) == KeyID(old) {
		t.Errorf("active %s, %v", rotated.Active(), err)
	}
	if _, err := parse(t, key1, "").Open(b, fresh); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("without the new key: %v", err)
	}
	if _, err := (*Keys)(nil).Open(b, fresh); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("without keys: %v", err)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	if k, err := Parse("", " "); k != nil || err != nil {
		t.Errorf("%v, %v", k, err)
	}
	for _, bad := range [][2]string{
		{"short", ""},
		{key1 + "00", ""},
		{strings.Repeat("zz", 32), ""},
		{"", key1},
		{"", "k1:" + key1 + ",k2"},
		{"", ":" + key1},
		{"", "k1:" + key1 + ",k2:" + key1},
		{" " + key1, ""},
		{"", "k1:" + key1 + ","},
	} {
		k, err := Parse(bad[0], bad[1])
		if err == nil {
			t.Errorf("%q is accepted as %v", bad, k)
		} else if strings.Contains(err.Error(), key1) {
			t.Errorf("the error shows a key: %v", err)
		}
	}
}

func FuzzOpen(f *testing.F) {
	k := parse(f, key1, "")
	b := Binding{"q", "p", [16]byte{1}}
	good, err := k.Seal(nil, b, []byte("x"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte{version})
	f.Fuzz(func(t *testing.T, envelope []byte) {
		if got, err := k.Open(b, envelope); err == nil && !bytes.Equal(envelope, good) {
			t.Errorf("%x opens as %q", envelope, got)
		}
	})
}

func BenchmarkSeal(b *testing.B) {
	k := parse(b, key1, "")
	payload := make([]byte, 200)
	var dst []byte
	for b.Loop() {
		dst, _ = k.Seal(dst[:0], Binding{"orders", "p", [16]byte{1}}, payload)
	}
}
