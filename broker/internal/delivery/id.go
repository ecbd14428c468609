package delivery

import (
	"encoding/hex"
	"errors"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// Prefixes of ids (publish contract, section 2).
const (
	messagePrefix  = "msg_"
	taskPrefix     = "tsk_"
	topicPrefix    = "tpc_"
	endpointPrefix = "ept_"
)

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

// MessageID spells the id of a message: msg_ and 32 hexadecimal digits.
func MessageID(id uuid.UUID) string { return messagePrefix + hex.EncodeToString(id[:]) }

// ParseMessageID reads what MessageID spells.
func ParseMessageID(s string) (uuid.UUID, bool) { return parseID(s, messagePrefix) }

// TopicID spells the id of a topic.
func TopicID(id uuid.UUID) string { return topicPrefix + hex.EncodeToString(id[:]) }

// EndpointID spells the id of an endpoint of a topic.
func EndpointID(id uuid.UUID) string { return endpointPrefix + hex.EncodeToString(id[:]) }

// TaskID spells the id of the delivery of a message to one of its targets: tsk_, the digits of the message and, after the
// first target, _ and its number.
func TaskID(message uuid.UUID, target int) string {
	id := taskPrefix + hex.EncodeToString(message[:])
	if target > 0 {
		id += "_" + strconv.Itoa(target)
	}
	return id
}

// ParseTaskID reads what TaskID spells.
func ParseTaskID(s string) (message uuid.UUID, target int, ok bool) {
	head, number, several := strings.Cut(strings.TrimPrefix(s, taskPrefix), "_")
	if several {
		n, err := strconv.ParseUint(number, 10, 15)
		if err != nil || n == 0 || strconv.FormatUint(n, 10) != number {
			return uuid.UUID{}, 0, false
		}
		target = int(n)
	}
	message, ok = parseID(taskPrefix+head, taskPrefix)
	return message, target, ok && strings.HasPrefix(s, taskPrefix)
}

var errIDs = errors.New("the ids of a publish are damaged")

func parseID(s, prefix string) (uuid.UUID, bool) {
	digits, ok := strings.CutPrefix(s, prefix)
	if !ok || len(digits) != 32 || strings.ToLower(digits) != digits {
		return uuid.UUID{}, false
	}
	var id uuid.UUID
	if _, err := hex.Decode(id[:], []byte(digits)); err != nil {
		return uuid.UUID{}, false
	}
	return id, true
}

// packIDs and unpackIDs are how the deduplication row keeps the ids of a publish.
func packIDs(ids []uuid.UUID) []byte {
	packed := make([]byte, 0, 16*len(ids))
	for _, id := range ids {
		packed = append(packed, id[:]...)
	}
	return packed
}

func unpackIDs(packed []byte) ([]uuid.UUID, error) {
	if len(packed)%16 != 0 {
		return nil, errIDs
	}
	ids := make([]uuid.UUID, 0, len(packed)/16)
	for len(packed) > 0 {
		ids = append(ids, uuid.UUID(packed[:16]))
		packed = packed[16:]
	}
	return ids, nil
}
