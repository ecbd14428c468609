package api

import (
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
)

// timeLayout is the only form of a time on the wire: ISO 8601, UTC, microseconds.
const timeLayout = "2006-01-02T15:04:05.000000Z"

func timeText(t time.Time) string { return t.UTC().Format(timeLayout) }

// optionalTime is nil for the zero time, which the wire shows as null.
func optionalTime(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	s := timeText(t)
	return &s
}

// appendString appends a JSON string. Strings inside the broker are valid UTF-8; one that is not
// would be sent with replacement characters.
func appendString(b []byte, s string) []byte {
	out, _ := jsontext.AppendQuote(b, s)
	return out
}

func appendUUID(b []byte, id uuid.UUID) []byte {
	b = append(b, '"')
	b = hex.AppendEncode(b, id[:4])
	for _, part := range [][]byte{id[4:6], id[6:8], id[8:10], id[10:]} {
		b = append(b, '-')
		b = hex.AppendEncode(b, part)
	}
	return append(b, '"')
}

func appendTime(b []byte, t time.Time) []byte {
	b = append(b, '"')
	b = t.UTC().AppendFormat(b, timeLayout)
	return append(b, '"')
}

func appendInt(b []byte, n int) []byte { return strconv.AppendInt(b, int64(n), 10) }

func appendBool(b []byte, v bool) []byte { return strconv.AppendBool(b, v) }

// encode answers a wire struct that carries no payload.
func encode(status int, v any) (answer, error) {
	b, err := json.Marshal(v, json.FormatNilSliceAsNull(false))
	if err != nil {
		return answer{}, err
	}
	return jsonAnswer(status, b), nil
}

// decode reads a body that carries no payload: exact-case keys, unknown keys ignored, the last of
// duplicate keys wins, null leaves the zero value.
func decode(body []byte, v any) error {
	if err := json.Unmarshal(body, v, jsontext.AllowDuplicateNames(true)); err != nil {
		return decodeError(err)
	}
	return nil
}

// decodeError words what the decoder refused as a violation of the body. The check that runs before
// has refused most of it already.
func decodeError(err error) error {
	if semantic, ok := errors.AsType[*json.SemanticError](err); ok {
		return badBody(dotted(semantic.JSONPointer), "has the wrong type")
	}
	if syntactic, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return badBody(dotted(syntactic.JSONPointer), "is not valid JSON: "+syntactic.Err.Error())
	}
	return badBody("", "is not valid JSON")
}

// dotted spells a JSON pointer as error texts spell paths: acknowledgments[0].status.
func dotted(p jsontext.Pointer) string {
	var b strings.Builder
	for token := range p.Tokens() {
		if _, err := strconv.ParseUint(token, 10, 64); err == nil {
			b.WriteString("[" + token + "]")
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(token)
	}
	return b.String()
}
