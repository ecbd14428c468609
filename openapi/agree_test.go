package openapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// compiled lists the bodies that have a compiled check, each of which must agree with kin.
func compiled(t testing.TB) map[string]*body {
	t.Helper()
	spec, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	bodies := make(map[string]*body)
	known := make(map[any]bool) // error answers share their schemas
	for _, op := range spec.Operations() {
		if op.body != nil && op.body.node != nil {
			bodies[op.ID+" request"] = op.body
		}
		for status, r := range op.responses {
			if r.body != nil && r.body.node != nil && !known[r.body.schema] {
				known[r.body.schema] = true
				bodies[fmt.Sprint(op.ID, " ", status)] = r.body
			}
		}
	}
	return bodies
}

// agree fails when the compiled check and kin judge a body differently.
func agree(t testing.TB, name string, b *body, data []byte) (accepted bool) {
	t.Helper()
	got, want := b.check(data), b.spec.checkByKin(b.schema, data)
	if (got == nil) != (want == nil) {
		t.Errorf("%s: compiled says %v, kin says %v of\n%.2000q", name, got, want, data)
	}
	return got == nil
}

// fragments are the values that random bodies are made of.
var fragments = []string{
	`null`, `true`, `false`, `0`, `-0`, `1`, `-1`, `7`, `99999`, `100000`, `60001`, `2147483647`, `2147483648`, `-2147483649`,
	`9007199254740993`, `123456789012345678901234567890`, `1.0`, `1.5`, `1e2`, `1E400`, `1e-400`, `-1e400`, `1` + strings.Repeat("0", 400),
	`""`, `"q"`, `"orders.created"`, `"\u0026\/"`, `"\u0000"`, `"a\nb"`, `"\ud800"`, `"\udc00\ud800"`, `"\ud83d\ude00"`, `"\ud83dx"`, `"\u0080"`, `"` + "\u009f" + `"`, `"é"`, `"😀"`,
	`"queued"`, `"q\u0075eued"`, `"duplicate"`, `"Queued"`, `"healthy"`, `"connected"`, `"segments"`, `"ok"`, `"unhealthy"`, `"disconnected"`,
	`"pending"`, `"dead_letter"`, `"hybrid"`, `"Pending"`,
	`"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b83"`, `"0198F2C1-4D3A-7C10-9F2B-6A1E5D0C7B83"`, `"00000000-0000-0000-0000-000000000000"`, `"ffffffff-ffff-ffff-ffff-ffffffffffff"`,
	`"0198f2c1-4d3a-0c10-9f2b-6a1e5d0c7b83"`, `"0198f2c1-4d3a-9c10-9f2b-6a1e5d0c7b83"`, `"0198f2c1-4d3a-7c10-cf2b-6a1e5d0c7b83"`, `"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b8"`, `"0198f2c1x4d3a-7c10-9f2b-6a1e5d0c7b83"`, `"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b8g"`,
	`"2026-01-15T10:31:00.123456Z"`, `"2026-01-15T10:31:00.123Z"`, `"2026-01-15T10:31:00.123456+00:00"`, `"2026-01-15T10:31:00.123456Zx"`, `"２026-01-15T10:31:00.123456Z"`,
	`[]`, `[1,2,[3]]`, `{}`, `{"a":{"b":[null]}}`, `[{}]`, `[null]`, `{"queue":"q","payload":1}`, `{"items":[]}`,
	`"` + strings.Repeat("n", 511) + `"`, `"` + strings.Repeat("n", 512) + `"`, `"` + strings.Repeat("n", 513) + `"`, `"` + strings.Repeat("é", 256) + `"`, `"` + strings.Repeat("é", 257) + `"`,
	`"` + strings.Repeat(`\u00e9`, 256) + `"`, `"` + strings.Repeat(`\u0041`, 513) + `"`, `"` + strings.Repeat("t", 1024) + `"`, `"` + strings.Repeat("t", 1025) + `"`,
}

// odds are how odd random bodies are.
var odds = []int{1000, 200, 15}

// grow makes a random body near n: about one in odd of its choices breaks a rule.
func grow(r *rand.Rand, n *node, out *bytes.Buffer, odd int) {
	if n == nil || r.IntN(odd) == 0 {
		out.WriteString(fragments[r.IntN(len(fragments))])
		return
	}
	if n.branches != nil {
		grow(r, n.branches[r.IntN(len(n.branches))], out, odd)
		return
	}
	switch {
	case n.kinds&kindObject != 0 && !n.raw:
		out.WriteByte('{')
		first := true
		put := func(name string, child *node) {
			if !first {
				out.WriteString([]string{",", " ,\n", ",\t"}[r.IntN(3)])
			}
			first = false
			switch r.IntN(2 * odd) {
			case 0:
				name = strings.ToUpper(name)
			case 1:
				name = fmt.Sprintf(`\u%04x`, name[0]) + name[1:]
			case 2:
				name = `\ud800`
			}
			out.WriteString(`"` + name + `": `)
			grow(r, child, out, odd)
		}
		for _, i := range r.Perm(len(n.props)) {
			p := n.props[i]
			if r.IntN(odd) == 0 {
				continue
			}
			put(p.name, p.node)
			if r.IntN(odd) == 0 {
				put(p.name, p.node)
			}
		}
		if r.IntN(odd) == 0 {
			put("unknown", nil)
		}
		out.WriteByte('}')
	case n.kinds&kindArray != 0 && !n.raw:
		out.WriteByte('[')
		for i := range r.IntN(4) {
			if i > 0 {
				out.WriteByte(',')
			}
			grow(r, n.items, out, odd)
		}
		out.WriteByte(']')
	case n.raw:
		out.WriteString(fragments[r.IntN(len(fragments))])
	case len(n.enum) > 0:
		fmt.Fprintf(out, "%q", n.enum[r.IntN(len(n.enum))])
	default:
		// Try a few for one that passes, so that whole bodies often do.
		for range 300 {
			f := fragments[r.IntN(len(fragments))]
			var s scanner
			s.begin([]byte(f))
			if s.check(n) == nil {
				out.WriteString(f)
				return
			}
		}
		out.WriteString(fragments[r.IntN(len(fragments))])
	}
}

// TestCompiledAgreesWithKin compares the verdicts on random bodies near each schema.
func TestCompiledAgreesWithKin(t *testing.T) {
	t.Parallel()
	for name, b := range compiled(t) {
		r := rand.New(rand.NewPCG(1, uint64(len(name))))
		accepted, refused := 0, 0
		for range 400 {
			var out bytes.Buffer
			grow(r, b.node, &out, odds[r.IntN(len(odds))])
			data := out.Bytes()
			switch r.IntN(40) {
			case 0:
				data = data[:r.IntN(len(data)+1)]
			case 1:
				data[r.IntN(len(data))] = byte(r.IntN(256))
			}
			if agree(t, name, b, data) {
				accepted++
			} else {
				refused++
			}
		}
		if accepted < 10 || refused < 10 {
			t.Errorf("%s: %d accepted, %d refused: the comparison is vacuous", name, accepted, refused)
		}
	}
}

// TestEachFragmentAgrees puts every fragment in place of every property.
func TestEachFragmentAgrees(t *testing.T) {
	t.Parallel()
	for name, b := range compiled(t) {
		n := b.node
		open, end := "", ""
		for n.branches != nil || n.items != nil {
			if n.branches != nil {
				n = n.branches[0]
				continue
			}
			n, open, end = n.items, open+"[", "]"+end
		}
		for _, f := range fragments {
			agree(t, name, b, []byte(open+f+end))
			for _, p := range n.props {
				agree(t, name, b, []byte(open+`{"`+p.name+`":`+f+`}`+end))
			}
		}
	}
}

func FuzzCompiledAgreesWithKin(f *testing.F) {
	bodies := compiled(f)
	for name, b := range bodies {
		r := rand.New(rand.NewPCG(2, uint64(len(name))))
		for range 20 {
			var out bytes.Buffer
			grow(r, b.node, &out, odds[r.IntN(len(odds))])
			f.Add(name, out.Bytes())
		}
	}
	f.Add("push request", []byte(`{"items":[{"queue":1}],"items":[]}`))
	f.Add("push request", []byte(`{"items":[{"queue":"q","queue":1,"payload":1}]}`))
	f.Add("push request", []byte(`{"items":[{"queue":1,"queue":"q","payload":1}]}`))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		if b := bodies[name]; b != nil {
			agree(t, name, b, data)
			return
		}
		agree(t, "push request", bodies["push request"], data)
	})
}

// scans says whether the scanner reads data as one JSON value.
func scans(data []byte) bool {
	var s scanner
	return s.begin(data) && s.pos < len(data) && s.skip() && s.end()
}

// FuzzScan compares the scanner with encoding/json: what is JSON, and what strings say.
func FuzzScan(f *testing.F) {
	for _, fragment := range fragments {
		f.Add([]byte(fragment))
	}
	for _, s := range []string{
		``, ` `, `{`, `[`, `"`, `"\`, `"\u`, `"\u12`, `"\x"`, `nul`, `truex`, `01`, `-`, `1.`, `.5`, `1e`, `1e+`, `+1`, `[1,]`, `{"a":1,}`, `{"a"}`, `{a:1}`, `{"a":1 "b":2}`, `[1 2]`,
		"\"\x01\"", "\"\xff\"", "[\"12345678\x1f\"]", `"1234567\"90"`, `"12345678\\"`, "\ufeff{}", `{} {}`, `[]]`, `"` + "\u2028" + `"`,
		strings.Repeat("[", 10000) + strings.Repeat("]", 10000), strings.Repeat("[", 10001) + strings.Repeat("]", 10001),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, want := scans(data), utf8.Valid(data) && json.Valid(data); got != want {
			t.Fatalf("scanner says %v, encoding/json says %v of %q", got, want, data)
		}
		var s scanner
		if !scans(data) || !s.begin(data) || s.peek() != '"' {
			return
		}
		content, escaped, _ := s.str()
		text, whole := s.text(content, escaped)
		if escaped && whole != wellFormed(content) {
			t.Fatalf("text and wellFormed disagree on %q", data)
		}
		var want string
		if err := json.Unmarshal(data, &want); err != nil {
			t.Fatal(err)
		}
		if whole && want != string(text) {
			t.Fatalf("text of %q is %q, want %q", data, text, want)
		}
		if !whole && !strings.Contains(want, "\ufffd") {
			t.Fatalf("%q has no lone surrogate", data)
		}
	})
}

// naiveItems reads a push body as a decoder does that keeps the last value of a repeated key.
func naiveItems(t testing.TB, data []byte) []PushItem {
	t.Helper()
	var body map[string]json.RawMessage
	var items []map[string]json.RawMessage
	if err := json.Unmarshal(data, &body); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(body["items"], &items); err != nil {
		t.Fatal(err)
	}
	list := make([]PushItem, 0, len(items))
	for _, in := range items {
		var item PushItem
		for name, field := range map[string]*string{"queue": &item.Queue, "partition": &item.Partition, "transactionId": &item.TransactionID} {
			if raw := in[name]; raw != nil {
				if err := json.Unmarshal(raw, field); err != nil {
					t.Fatal(err)
				}
			}
		}
		item.Payload = in["payload"]
		list = append(list, item)
	}
	return list
}

// sameItems compares both ways of cutting an accepted body with a decoder's.
func sameItems(t testing.TB, spec *Spec, data []byte) {
	t.Helper()
	want := naiveItems(t, data)
	got, err := PushItems(data)
	if err != nil {
		t.Fatalf("%v of an accepted body %q", err, data)
	}
	equalItems(t, data, got, want)
	if got, err = spec.CheckPush(data); err != nil {
		t.Fatalf("%v of an accepted body %q", err, data)
	}
	equalItems(t, data, got, want)
}

func equalItems(t testing.TB, data []byte, got, want []PushItem) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d items, want %d, of %q", len(got), len(want), data)
	}
	for i, g := range got {
		w := want[i]
		if g.Queue != w.Queue || g.Partition != w.Partition || g.TransactionID != w.TransactionID || !bytes.Equal(g.Payload, w.Payload) {
			t.Fatalf("item %d is %q, want %q", i, g, w)
		}
	}
}

// refusedItems cuts a body that the check refused: CheckPush says the same, PushItems may say anything but not panic.
func refusedItems(t testing.TB, spec *Spec, data []byte) {
	t.Helper()
	_, _ = PushItems(data)
	if items, err := spec.CheckPush(data); err == nil || items != nil {
		t.Fatalf("CheckPush takes %d items, %v of %q", len(items), err, data)
	}
}

func TestPushItemsAgree(t *testing.T) {
	t.Parallel()
	b := compiled(t)["push request"]
	r := rand.New(rand.NewPCG(3, 3))
	accepted := 0
	for range 6000 {
		var out bytes.Buffer
		grow(r, b.node, &out, odds[r.IntN(len(odds))])
		if b.check(out.Bytes()) != nil {
			refusedItems(t, b.spec, out.Bytes())
			continue
		}
		accepted++
		sameItems(t, b.spec, out.Bytes())
	}
	if accepted < 500 {
		t.Errorf("only %d bodies were accepted", accepted)
	}
}

func FuzzPushItems(f *testing.F) {
	b := compiled(f)["push request"]
	r := rand.New(rand.NewPCG(4, 4))
	for range 40 {
		var out bytes.Buffer
		grow(r, b.node, &out, odds[r.IntN(len(odds))])
		f.Add(out.Bytes())
	}
	f.Add([]byte(`{"items":[{"queue":"a","payload":1}],"items":[{"queue":"\u0071","pay\u006coad": [ 1 ] ,"transactionId":"\/"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if b.check(data) != nil {
			refusedItems(t, b.spec, data)
			return
		}
		sameItems(t, b.spec, data)
	})
}
