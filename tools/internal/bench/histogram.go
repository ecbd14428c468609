package bench

import (
	"math/bits"
	"time"
)

// subBits sets the precision of a Histogram: 2^7 buckets for each power of two, so that a bucket is at most 1/128
// (0.8 %) of its value wide.
const subBits = 7

// Histogram counts durations in buckets of constant relative width. It needs the same memory for any number of
// samples (about 58 KiB), which bounds what a long run costs. The zero value is empty and ready. Not safe for
// concurrent use: each worker has its own, and they are merged afterwards.
type Histogram struct {
	counts [(64 - subBits) << subBits]int64
	total  int64
	max    time.Duration
}

// Record adds one duration. Negative durations count as zero.
func (h *Histogram) Record(d time.Duration) {
	d = max(d, 0)
	h.counts[bucketOf(uint64(d))]++
	h.total++
	h.max = max(h.max, d)
}

// Merge adds all samples of other.
func (h *Histogram) Merge(other *Histogram) {
	for i, n := range other.counts {
		h.counts[i] += n
	}
	h.total += other.total
	h.max = max(h.max, other.max)
}

// Max returns the largest sample, exact; 0 when there is none.
func (h *Histogram) Max() time.Duration { return h.max }

// Quantile returns the smallest duration that at least the fraction q (0 to 1) of the samples do not exceed, rounded
// up to its bucket and never above Max; 0 when there is no sample.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.total == 0 {
		return 0
	}
	rank := int64(q * float64(h.total))
	if float64(rank) < q*float64(h.total) {
		rank++
	}
	rank = min(max(rank, 1), h.total)
	var seen int64
	for i, n := range h.counts {
		seen += n
		if seen >= rank {
			return min(upperBound(i), h.max)
		}
	}
	return h.max
}

// bucketOf maps a value to its bucket. Values below 2^subBits have a bucket each; above, the bucket is the exponent
// followed by the subBits bits after the leading one.
func bucketOf(v uint64) int {
	if v < 1<<subBits {
		return int(v)
	}
	shift := bits.Len64(v) - subBits - 1
	return shift<<subBits + int(v>>shift)
}

// upperBound is the largest value of a bucket, the inverse of bucketOf.
func upperBound(bucket int) time.Duration {
	if bucket < 1<<(subBits+1) {
		return time.Duration(bucket)
	}
	shift := bucket>>subBits - 1
	mantissa := uint64(bucket) - uint64(shift)<<subBits
	return time.Duration((mantissa+1)<<shift - 1)
}
