package openapi

import (
	"bytes"
	"errors"
	"slices"
	"unsafe"
)

// PushItem is one item of a push body.
//
// Payload is a range of the body. TransactionID may share its memory with the body too: clone it before keeping it
// longer than the body. Queue and Partition are copies, one for each run of items that name the same.
type PushItem struct {
	Queue         string
	Partition     string // "" when omitted, empty or null
	TransactionID string // "" when omitted, empty or null
	Payload       []byte // the bytes of the JSON value, as sent
}

// CheckPush checks the body of a push, as [Operation.CheckRequest] does, and cuts it into its items, as [PushItems]
// does, in one pass. The error is nil or a *CheckError in body.
func (s *Spec) CheckPush(body []byte) ([]PushItem, error) {
	scan := scanners.Get().(*scanner)
	defer scan.release()
	scan.cutter = cutter{plan: s.push}
	if err := scan.whole(s.push.body, body); err != nil {
		err.In = "body"
		return nil, err
	}
	return scan.cutter.items, nil
}

// PushItems cuts the body of a push into its items, in request order, without decoding a payload. Escapes in names are
// decoded. Keys are read as [Operation.CheckRequest] reads them: exact case, the last one of a name counts.
//
// The body should have passed CheckRequest; what that refuses may come back as an error or as an item with empty
// fields. The body must not be changed while the items are in use.
func PushItems(body []byte) ([]PushItem, error) {
	scan := scanners.Get().(*scanner)
	defer scan.release()
	if !scan.begin(body) {
		return nil, scan.broken.in("body")
	}
	if scan.peek() != '{' {
		return nil, &CheckError{In: "body", Field: "body", Rule: "must be an object"}
	}
	if !scan.pushBody() || !scan.end() {
		return nil, scan.broken.in("body")
	}
	return scan.cutter.items, nil
}

func (e *CheckError) in(where string) *CheckError {
	e.In = where
	return e
}

// pushPlan says where the compiled body of a push has what a cutter takes.
type pushPlan struct {
	body, array, item                        *node
	queue, partition, transactionID, payload int // indexes of item's properties
}

func newPushPlan(body *node) (*pushPlan, error) {
	if body == nil {
		return nil, errors.New("the body of a push is not compiled")
	}
	items := body.property("items")
	if items < 0 || body.props[items].node.items == nil {
		return nil, errors.New("the body of a push has no array of items")
	}
	p := &pushPlan{body: body, array: body.props[items].node}
	p.item = p.array.items
	p.queue, p.partition = p.item.property("queue"), p.item.property("partition")
	p.transactionID, p.payload = p.item.property("transactionId"), p.item.property("payload")
	if p.queue < 0 || p.partition < 0 || p.transactionID < 0 || p.payload < 0 {
		return nil, errors.New("an item of a push lacks a property")
	}
	return p, nil
}

// property is the index of a property, -1 for none.
func (n *node) property(name string) int {
	return slices.IndexFunc(n.props, func(p property) bool { return p.name == name })
}

// cutter collects the items of a push while its body is scanned.
type cutter struct {
	plan  *pushPlan // nil: the body is not checked
	now   fields    // of the item at hand
	items []PushItem
}

// fields are where the values of an item stand in the body, the zero span for none.
type fields struct{ queue, partition, transactionID, payload span }

type span struct{ start, end int }

// mostItems bounds what PushItems holds of an array that no check has bounded, or that a later one replaces. It is above
// what the description admits.
const mostItems = 1 << 17

// restart drops what was collected: the array that begins now counts. rest is how many bytes may follow.
func (c *cutter) restart(rest int) {
	if c.items == nil {
		// An item is rarely shorter than this, and a guess too low only costs a copy.
		c.items = make([]PushItem, 0, min(1+rest/96, 128))
	}
	c.items = c.items[:0]
}

// note takes down a value that the check has accepted.
func (c *cutter) note(property, start, end int) {
	at := span{start, end}
	switch property {
	case c.plan.queue:
		c.now.queue = at
	case c.plan.partition:
		c.now.partition = at
	case c.plan.transactionID:
		c.now.transactionID = at
	case c.plan.payload:
		c.now.payload = at
	}
}

// cut makes an item of what was noted.
func (s *scanner) cut() {
	c := &s.cutter
	if len(c.items) == mostItems {
		return
	}
	var last PushItem
	if len(c.items) > 0 {
		last = c.items[len(c.items)-1]
	}
	item := PushItem{
		Queue:     s.name(c.now.queue, last.Queue),
		Partition: s.name(c.now.partition, last.Partition),
	}
	if content, escaped := s.between(c.now.transactionID); escaped {
		text, _ := s.text(content, true)
		item.TransactionID = string(text)
	} else if len(content) > 0 {
		item.TransactionID = unsafe.String(&content[0], len(content)) //nolint:gosec // the body is not changed while items are in use
	}
	if at := c.now.payload; at.end > 0 {
		item.Payload = s.data[at.start:at.end:at.end]
	}
	c.items = append(c.items, item)
}

// between is what stands between the quotes of a string, nothing for other values.
func (s *scanner) between(at span) (content []byte, escaped bool) {
	if at.end == 0 || s.data[at.start] != '"' {
		return nil, false
	}
	content = s.data[at.start+1 : at.end-1]
	return content, bytes.IndexByte(content, '\\') >= 0
}

// name returns a copy of a string's text, or last when that has the same text.
func (s *scanner) name(at span, last string) string {
	content, escaped := s.between(at)
	text, _ := s.text(content, escaped)
	if string(text) == last {
		return last
	}
	return string(text)
}

// pushBody consumes the body of a push without judging it.
func (s *scanner) pushBody() bool {
	more, ok := s.enter('}')
	for more && ok {
		name, escaped, keyOK := s.key()
		if !keyOK {
			return false
		}
		if string(s.known(name, escaped)) == "items" && s.peek() == '[' {
			ok = s.pushArray()
		} else {
			ok = s.skip()
		}
		if ok {
			more, ok = s.next('}')
		}
	}
	return ok
}

func (s *scanner) pushArray() bool {
	s.cutter.restart(len(s.data) - s.pos)
	more, ok := s.enter(']')
	for more && ok {
		s.cutter.now = fields{}
		if s.peek() == '{' {
			ok = s.pushItem()
		} else {
			ok = s.skip()
		}
		if !ok {
			return false
		}
		s.cut()
		more, ok = s.next(']')
	}
	return ok
}

func (s *scanner) pushItem() bool {
	now := &s.cutter.now
	more, ok := s.enter('}')
	for more && ok {
		name, escaped, keyOK := s.key()
		if !keyOK {
			return false
		}
		start := s.pos
		if !s.skip() {
			return false
		}
		at := span{start, s.pos}
		switch string(s.known(name, escaped)) {
		case "payload":
			now.payload = at
		case "queue":
			now.queue = at
		case "partition":
			now.partition = at
		case "transactionId":
			now.transactionID = at
		}
		more, ok = s.next('}')
	}
	return ok
}

// known is the text of a key, nil when it is none that PushItems looks for.
func (s *scanner) known(name []byte, escaped bool) []byte {
	if len(name) > 6*len("transactionId") {
		return nil
	}
	text, whole := s.text(name, escaped)
	if !whole {
		return nil
	}
	return text
}
