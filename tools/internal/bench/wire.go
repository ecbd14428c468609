package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"
)

// producer builds the push bodies of one connection. Everything that does not change from message to message is
// rendered once, so that a body costs a few appends.
type producer struct {
	partitions []string // rendered item starts: `{"queue":"…","partition":"…","transactionId":"<worker>-`
	next       int      // index of the partition that is used next
	spreadItem bool
	pad        string // what follows the transactionId (and the send time), to the end of the item
	stamped    bool
	sequence   int64
	body       []byte
}

// newProducer prepares the producer of one worker. run makes transactionIds unique between runs.
func newProducer(cfg Config, run string, worker, workers int, stamped bool) *producer {
	p := &producer{spreadItem: cfg.SpreadItem, stamped: stamped, next: worker * cfg.Partitions / workers}
	filler := cfg.Payload - 2
	if stamped {
		filler -= stampDigits
	}
	p.pad = strings.Repeat("x", filler) + `"}`
	for i := range cfg.Partitions {
		p.partitions = append(p.partitions, `{"queue":`+quote(cfg.Queue)+`,"partition":"p-`+strconv.Itoa(i)+
			`","transactionId":"`+run+"-"+strconv.Itoa(worker)+"-")
	}
	return p
}

// push renders a push of n messages, valid until the next call.
func (p *producer) push(n int) []byte {
	b := append(p.body[:0], `{"items":[`...)
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, p.partitions[p.next]...)
		b = strconv.AppendInt(b, p.sequence, 10)
		p.sequence++
		b = append(b, `","payload":"`...)
		if p.stamped {
			b = strconv.AppendInt(b, time.Now().UnixNano(), 10)
		}
		b = append(b, p.pad...)
		if p.spreadItem || i == n-1 {
			p.next = (p.next + 1) % len(p.partitions)
		}
	}
	p.body = append(b, `]}`...)
	return p.body
}

// countStatuses adds up the item statuses of a push answer. The answer holds only what this package sent, so counting
// the bytes of each status is exact.
func countStatuses(answer []byte) Statuses {
	count := func(status string) int64 { return int64(bytes.Count(answer, []byte(`"status":"`+status+`"`))) }
	return Statuses{Queued: count("queued"), Duplicate: count("duplicate"), Buffered: count("buffered"), Failed: count("failed")}
}

// popped is what a consumer needs of a pop answer. The byte slices point into the answer.
type popped struct {
	leaseID        []byte
	transactionIDs [][]byte
	partitionIDs   [][]byte
	data           [][]byte
}

var errPopAnswer = errors.New("pop answer not understood")

// parse reads a pop answer by searching for its keys. Payloads and ids are this package's own and contain neither
// quotes nor escapes, so a search finds each key exactly once per message. Decoding the JSON instead would cost the
// load generator about as much as the broker spends on producing it.
func (p *popped) parse(answer []byte) error {
	p.transactionIDs, p.partitionIDs, p.data = p.transactionIDs[:0], p.partitionIDs[:0], p.data[:0]
	p.leaseID, _, _ = stringAfter(answer, `"leaseId":"`)
	_, messages, ok := bytes.Cut(answer, []byte(`"messages":[`))
	if !ok {
		return errPopAnswer
	}
	p.transactionIDs = appendStrings(p.transactionIDs, messages, `"transactionId":"`)
	p.partitionIDs = appendStrings(p.partitionIDs, messages, `"partitionId":"`)
	p.data = appendStrings(p.data, messages, `"data":"`)
	if n := len(p.transactionIDs); n == 0 || len(p.partitionIDs) < n || len(p.data) != n {
		return errPopAnswer
	}
	return nil
}

// ack renders the acknowledgement of everything popped, valid while p is not parsed again.
func (p *popped) ack(b []byte, group string, mode AckMode) (body []byte, items int) {
	b = append(b[:0], '{')
	if group != "" {
		b = append(append(b, `"consumerGroup":`...), quote(group)...)
		b = append(b, ',')
	}
	b = append(b, `"acknowledgments":[`...)
	for i, id := range p.transactionIDs {
		// Messages of one partition stand together, so the last of each is where the partition changes.
		last := i == len(p.transactionIDs)-1 || !bytes.Equal(p.partitionIDs[i], p.partitionIDs[i+1])
		if mode == AckLast && !last {
			continue
		}
		if items > 0 {
			b = append(b, ',')
		}
		items++
		b = append(append(b, `{"transactionId":"`...), id...)
		b = append(append(b, `","partitionId":"`...), p.partitionIDs[i]...)
		b = append(append(b, `","leaseId":"`...), p.leaseID...)
		b = append(b, `","status":"completed"}`...)
	}
	return append(b, `]}`...), items
}

func appendStrings(to [][]byte, in []byte, key string) [][]byte {
	for {
		value, rest, ok := stringAfter(in, key)
		if !ok {
			return to
		}
		to, in = append(to, value), rest
	}
}

func stringAfter(in []byte, key string) (value, rest []byte, ok bool) {
	_, tail, ok := bytes.Cut(in, []byte(key))
	if !ok {
		return nil, nil, false
	}
	return bytes.Cut(tail, []byte{'"'})
}

// sentAt reads the send time that an e2e payload starts with.
func sentAt(data []byte) (time.Time, bool) {
	if len(data) < stampDigits {
		return time.Time{}, false
	}
	n, err := strconv.ParseInt(string(data[:stampDigits]), 10, 64)
	return time.Unix(0, n), err == nil
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always marshals
	}
	return string(b)
}
