// Package seal encrypts payloads at rest, with AES-256-GCM.
//
// An envelope:
//
//	+---------+---------+----------+--------------------------+
//	| version | key id  | nonce    | ciphertext and tag       |
//	| 1 byte  | 8 bytes | 12 bytes | payload size + 16 bytes  |
//	+---------+---------+----------+--------------------------+
//
// Promises: each message is encrypted under a key of its own, derived from the operator's and the message's
// id, so that no number of messages wears a key out. Queue, partition and message id are authenticated with it:
// an envelope that is moved to another message does not open. The key id is a fingerprint of the key, so
// that it does not matter what the operator calls it, and rotation needs no more than the old key beside the new.
//
// Assumes: keys are 256 random bits. Names and ids stay visible, and so does the size of a payload.
//
// Fails: Open with ErrUnknownKey when no key has the envelope's id, else with ErrDamaged.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

const (
	keySize   = 32
	version   = 1
	idSize    = 8
	nonceSize = 12
	tagSize   = 16
	headSize  = 1 + idSize + nonceSize

	// Overhead is how much longer an envelope is than its payload, in bytes.
	Overhead = headSize + tagSize
)

// The reasons why an envelope does not open.
var (
	ErrUnknownKey = errors.New("it was encrypted with a key that is not configured")
	ErrDamaged    = errors.New("it was altered, or belongs to another message")
)

// Binding is what an envelope belongs to.
type Binding struct {
	Queue, Partition string
	MessageID        [16]byte
}

// Keys are an operator's keys. They are safe for concurrent use.
type Keys struct {
	active key
	byID   map[[idSize]byte]key
}

type key struct {
	name   string
	id     [idSize]byte
	secret []byte
}

// Parse reads a key of 64 hexadecimal digits, and a list of named ones, "k2:…,k1:…". The first of the list
// encrypts, or the single one if there is no list; all of them decrypt. Both may be empty: then there are no
// keys, and the result is nil. The error never shows a key.
func Parse(single, list string) (*Keys, error) {
	var all []key
	if strings.TrimSpace(list) != "" {
		for i, entry := range strings.Split(list, ",") {
			name, digits, ok := strings.Cut(strings.TrimSpace(entry), ":")
			if !ok || name == "" {
				return nil, fmt.Errorf("key %d of the list is not name:key", i+1)
			}
			k, err := parseKey(name, digits)
			if err != nil {
				// The name stays out of it: it may be the key, when the two were swapped.
				return nil, fmt.Errorf("key %d of the list %w", i+1, err)
			}
			all = append(all, k)
		}
	}
	if single != "" {
		k, err := parseKey("default", single)
		if err != nil {
			return nil, fmt.Errorf("the key %w", err)
		}
		all = append(all, k)
	}
	if len(all) == 0 {
		return nil, nil
	}
	keys := &Keys{active: all[0], byID: map[[idSize]byte]key{}}
	for _, k := range all {
		if other, ok := keys.byID[k.id]; ok && other.name != "default" && k.name != "default" {
			return nil, fmt.Errorf("the keys %s and %s are the same", other.name, k.name)
		}
		keys.byID[k.id] = k
	}
	return keys, nil
}

func parseKey(name, digits string) (key, error) {
	secret, err := hex.DecodeString(digits)
	if err != nil || len(secret) != keySize {
		return key{}, fmt.Errorf("must be exactly %d hexadecimal digits", 2*keySize)
	}
	k := key{name: name, secret: secret}
	fingerprint := sha256.Sum256(append([]byte("posthorn key id\x00"), secret...))
	copy(k.id[:], fingerprint[:])
	return k, nil
}

// Active is the name of the key that encrypts: "default" for the single one.
func (k *Keys) Active() string { return k.active.name }

// Seal appends the envelope of a payload to dst.
func (k *Keys) Seal(dst []byte, b Binding, payload []byte) ([]byte, error) {
	aead, err := k.active.cipher(b)
	if err != nil {
		return nil, err
	}
	var nonce [nonceSize]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return nil, fmt.Errorf("mint a nonce: %w", err)
	}
	dst = append(dst, version)
	dst = append(dst, k.active.id[:]...)
	dst = append(dst, nonce[:]...)
	return aead.Seal(dst, nonce[:], payload, b.data()), nil
}

// Open returns the payload of an envelope. A nil Keys opens nothing.
func (k *Keys) Open(b Binding, envelope []byte) ([]byte, error) {
	if len(envelope) < Overhead || envelope[0] != version {
		return nil, ErrDamaged
	}
	if k == nil {
		return nil, ErrUnknownKey
	}
	with, ok := k.byID[[idSize]byte(envelope[1:1+idSize])]
	if !ok {
		return nil, ErrUnknownKey
	}
	aead, err := with.cipher(b)
	if err != nil {
		return nil, err
	}
	payload, err := aead.Open([]byte{}, envelope[1+idSize:headSize], envelope[headSize:], b.data())
	if err != nil {
		return nil, ErrDamaged
	}
	return payload, nil
}

// KeyID is the id of the key that an envelope was made with, in hexadecimal digits; "" when it is no envelope.
func KeyID(envelope []byte) string {
	if len(envelope) < Overhead || envelope[0] != version {
		return ""
	}
	return hex.EncodeToString(envelope[1 : 1+idSize])
}

// cipher is the one of the message: its key is derived from the operator's.
func (k key) cipher(b Binding) (cipher.AEAD, error) {
	derived, err := hkdf.Expand(sha256.New, k.secret, "posthorn message key\x00"+string(b.MessageID[:]), keySize)
	if err != nil {
		return nil, fmt.Errorf("derive a key: %w", err)
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, fmt.Errorf("derive a key: %w", err)
	}
	return cipher.NewGCM(block)
}

// data is authenticated with the payload. Lengths keep the names apart.
func (b Binding) data() []byte {
	out := make([]byte, 0, 4+len(b.Queue)+len(b.Partition)+len(b.MessageID))
	out = binary.BigEndian.AppendUint32(out, uint32(len(b.Queue)))
	out = append(out, b.Queue...)
	out = append(out, b.MessageID[:]...)
	return append(out, b.Partition...)
}
