package openapi

import "unsafe"

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

// mostItems bounds what PushItems holds of an array that no check has bounded, or that a later one replaces. It is above
// what the description admits.
const mostItems = 1 << 17

// PushItems cuts the body of a push into its items, in request order, without decoding a payload. Escapes in names are
// decoded. Keys are read as [Operation.CheckRequest] reads them: exact case, the last one of a name counts.
//
// The body should have passed CheckRequest; what that refuses may come back as an error or as an item with empty
// fields. The body must not be changed while the items are in use.
func PushItems(body []byte) ([]PushItem, error) {
	s := scanners.Get().(*scanner)
	items, err := s.pushItems(body)
	s.release()
	return items, err
}

func (s *scanner) pushItems(body []byte) ([]PushItem, error) {
	if !s.begin(body) {
		return nil, s.broken
	}
	var items []PushItem
	if s.peek() != '{' {
		return nil, &CheckError{In: "body", Field: "body", Rule: "must be an object"}
	}
	more, ok := s.enter('}')
	for more && ok {
		var name []byte
		var escaped bool
		if name, escaped, ok = s.key(); !ok {
			break
		}
		if string(s.known(name, escaped)) == "items" && s.peek() == '[' {
			items, ok = s.pushArray(items[:0])
		} else {
			ok = s.skip()
		}
		if ok {
			more, ok = s.next('}')
		}
	}
	if !ok || !s.end() {
		return nil, s.broken
	}
	return items, nil
}

func (s *scanner) pushArray(items []PushItem) ([]PushItem, bool) {
	if items == nil {
		// An item is rarely shorter than this, and a guess too low only costs a copy.
		items = make([]PushItem, 0, min(1+(len(s.data)-s.pos)/96, 128))
	}
	more, ok := s.enter(']')
	for more && ok {
		var item, last PushItem
		if len(items) > 0 {
			last = items[len(items)-1]
		}
		if !s.pushItem(&item, last) {
			return items, false
		}
		if len(items) < mostItems {
			items = append(items, item)
		}
		more, ok = s.next(']')
	}
	return items, ok
}

func (s *scanner) pushItem(item *PushItem, last PushItem) bool {
	if s.peek() != '{' {
		return s.skip()
	}
	more, ok := s.enter('}')
	for more && ok {
		name, escaped, keyOK := s.key()
		if !keyOK {
			return false
		}
		switch string(s.known(name, escaped)) {
		case "payload":
			start := s.pos
			ok = s.skip()
			item.Payload = s.data[start:s.pos:s.pos]
		case "queue":
			item.Queue, ok = s.name(last.Queue)
		case "partition":
			item.Partition, ok = s.name(last.Partition)
		case "transactionId":
			item.TransactionID, ok = s.alias()
		default:
			ok = s.skip()
		}
		if ok {
			more, ok = s.next('}')
		}
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

// name consumes a string and returns a copy of its text, or last when that has the same text. What is no string is "".
func (s *scanner) name(last string) (string, bool) {
	if s.peek() != '"' {
		return "", s.skip()
	}
	content, escaped, ok := s.str()
	if !ok {
		return "", false
	}
	text, _ := s.text(content, escaped)
	if string(text) == last {
		return last, true
	}
	return string(text), true
}

// alias consumes a string and returns its text, in the memory of the body when there is no escape in it.
func (s *scanner) alias() (string, bool) {
	if s.peek() != '"' {
		return "", s.skip()
	}
	content, escaped, ok := s.str()
	if !ok || len(content) == 0 {
		return "", ok
	}
	if escaped {
		text, _ := s.text(content, true)
		return string(text), true
	}
	return unsafe.String(&content[0], len(content)), true
}
