package posthorn

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// ZeroID is the message id of a duplicate whose original can no longer be read.
const ZeroID = "00000000-0000-0000-0000-000000000000"

// NewTransactionID mints a UUIDv7 (RFC 9562, section 5.7): 48 bits of Unix milliseconds, then 74
// random bits. [Client.Push] uses it for items without a transaction id; use it yourself to store
// the id before you push.
func NewTransactionID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // documented never to fail
	millis := uint64(time.Now().UnixMilli())
	binary.BigEndian.PutUint16(id[0:], uint16(millis>>32))
	binary.BigEndian.PutUint32(id[2:], uint32(millis))
	id[6] = id[6]&0x0f | 0x70 // version 7
	id[8] = id[8]&0x3f | 0x80 // variant 10

	var text [36]byte
	hex.Encode(text[0:8], id[0:4])
	text[8] = '-'
	hex.Encode(text[9:13], id[4:6])
	text[13] = '-'
	hex.Encode(text[14:18], id[6:8])
	text[18] = '-'
	hex.Encode(text[19:23], id[8:10])
	text[23] = '-'
	hex.Encode(text[24:], id[10:16])
	return string(text[:])
}
