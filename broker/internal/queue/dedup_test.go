package queue

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// model is what dedup must behave like: every message, in a list.
type model struct {
	hashes  []uint64
	created []time.Time // zero: not settled
}

// TestDedupAgainstAModel runs random appends, rollbacks, foreign appends, thinning and expiry
// against a list that forgets nothing. Few distinct hashes make repetitions and collisions common.
func TestDedupAgainstAModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 1))
		d, m := &dedup{}, &model{}
		start := time.Unix(1_000_000, 0)
		now := start
		window := 60 * time.Second
		for step := range 2000 {
			now = now.Add(time.Duration(r.IntN(2000)) * time.Millisecond)
			base := int64(len(m.hashes))
			switch r.IntN(10) {
			case 0, 1, 2, 3: // a flush, that lands or does not
				n := 1 + r.IntN(5)
				var added []uint64
				for i := range n {
					hash := uint64(r.IntN(200))
					d.add(hash, base+int64(i))
					added = append(added, hash)
				}
				checkLookups(t, d, &model{append(slices.Clone(m.hashes), added...), append(slices.Clone(m.created), make([]time.Time, n)...)}, now.Add(-window))
				if r.IntN(3) == 0 {
					d.rollback()
					break
				}
				d.settle(base, int64(n), now)
				for _, hash := range added {
					m.hashes, m.created = append(m.hashes, hash), append(m.created, now)
				}
			case 4, 5: // another broker's
				var hashes []byte
				for range 1 + r.IntN(5) {
					hash := uint64(r.IntN(200))
					hashes = appendHash(hashes, hash)
					m.hashes, m.created = append(m.hashes, hash), append(m.created, now)
				}
				d.fold(hashes, base, now)
			case 6:
				if len(d.chunks) > 0 { // end the last chunk, as a full one would
					last := d.chunks[len(d.chunks)-1]
					if last.state == chunkExact && len(last.hashes) > 0 {
						d.chunks = append(d.chunks, &chunk{base: last.end, end: last.end})
					}
				}
			case 7:
				for i, c := range d.chunks[:max(0, len(d.chunks)-1)] {
					if c.state < chunkCold && len(c.marks) > 0 && r.IntN(2) == 0 {
						if i > 0 && d.chunks[i-1].state == chunkExact {
							break
						}
						d.thin(c)
					}
				}
			case 8:
				d.expire(now.Add(-window))
			}
			if step%10 == 0 {
				checkLookups(t, d, m, now.Add(-window))
			}
		}
	}
}

func checkLookups(t *testing.T, d *dedup, m *model, after time.Time) {
	t.Helper()
	for hash := range uint64(210) {
		var want []int64
		for i, known := range slices.Backward(m.hashes) {
			if known == hash && (m.created[i].IsZero() || m.created[i].After(after)) {
				want = append(want, int64(i))
			}
		}
		var got []int64
		covered := map[int64]bool{}
		for _, h := range d.lookup(hash, after) {
			if h.chunk == nil {
				got = append(got, h.offset)
				continue
			}
			for o := h.chunk.base; o < h.chunk.end; o++ {
				covered[o] = true
			}
		}
		for _, o := range want {
			if !slices.Contains(got, o) && !covered[o] {
				t.Fatalf("hash %d at offset %d is missed: got %v, want %v", hash, o, got, want)
			}
		}
		for _, o := range got {
			if !slices.Contains(want, o) {
				t.Fatalf("hash %d: offset %d is no occurrence: want %v", hash, o, want)
			}
		}
	}
}

func TestDedupForgetsWhatItCounts(t *testing.T) {
	t.Parallel()
	d := &dedup{}
	now := time.Unix(1_000_000, 0)
	for i := range int64(chunkMax + 100) {
		d.add(uint64(i%50_000), i)
	}
	d.settle(0, chunkMax+100, now)
	exact := d.measure()
	if !d.thin(d.chunks[0]) {
		t.Fatal("a full chunk was not thinned out")
	}
	if thinned := d.measure(); thinned > exact/3 {
		t.Fatalf("thinned out to %d bytes of %d", thinned, exact)
	}
	d.expire(now)
	if len(d.chunks) != 0 || len(d.index) != 0 || len(d.earlier) != 0 || d.exact != 0 {
		t.Fatalf("after everything expired: %d chunks, %d hashes, %d exact", len(d.chunks), len(d.index), d.exact)
	}
	if d.since != now {
		t.Fatalf("complete since %v, want %v", d.since, now)
	}
}
