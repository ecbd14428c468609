package api

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/auth"
	"github.com/posthorn/posthorn/broker/internal/delivery"
	"github.com/posthorn/posthorn/broker/internal/delivery/request"
	"github.com/posthorn/posthorn/broker/internal/queue"
	"github.com/posthorn/posthorn/openapi"
)

// Errors of the edge itself.
var (
	errNoRoute      = errors.New("no such route")
	errTooLarge     = errors.New("body too large")
	errBusy         = errors.New("too many request body bytes in flight")
	errSlowBody     = errors.New("bad body: did not arrive in time")
	errCutBody      = errors.New("bad body: ended early or is badly chunked")
	errIncomplete   = errors.New("the body of a request that takes none did not end")
	errCrossOrigin  = errors.New("cross-origin request refused")
	errForeignHost  = errors.New("the Host must be a local name or an IP address")
	errNoDiscovery  = errors.New("namespace or task is required")
	errPublishToken = errors.New("unable to authenticate: invalid token")
	errForbidden    = errors.New("Insufficient permissions") //nolint:staticcheck // the contract's text
	errMethod       = errors.New("no such method")
	errNoSwitch     = errors.New("enabled (boolean) is required")
	errNonconform   = errors.New("the answer does not conform to the API description")
)

// missingError says that something of the publish half does not exist.
type missingError struct{ kind, name string }

func (e *missingError) Error() string { return e.kind + " " + e.name + " not found" }

// missing makes a missingError of delivery.ErrNotFound and leaves other errors alone.
func missing(err error, kind, name string) error {
	if errors.Is(err, delivery.ErrNotFound) {
		return &missingError{kind, name}
	}
	return err
}

// Texts of answers that do not come from the error itself.
const (
	internalText    = "internal error"
	unavailableText = "database unavailable"
	spooledText     = "earlier pushes to the partition are still in the spool"
	noSpoolText     = "maintenance needs a spool, and this broker has none"
	stoppingText    = "broker is stopping"
	missingText     = "Message not found"
	unreadableText  = "the message cannot be decrypted"

	unauthorizedText = "Unauthorized"
)

// maxErrorText bounds the text of an error answer, which may quote the request, in bytes.
const maxErrorText = 2048

// answerError makes the answer of an error. It is the only place that does. What the answer does not say
// of the error is noted for the log.
func (e *edge) answerError(ex *exchange, err error) answer {
	if refused, ok := errors.AsType[*refusedTransaction](err); ok {
		return jsonAnswer(http.StatusBadRequest, transactionFailure(refused.id, checkText(refused.err)))
	}
	if check, ok := errors.AsType[*openapi.CheckError](err); ok {
		return errorAnswer(http.StatusBadRequest, checkText(check))
	}
	if missing, ok := errors.AsType[*missingError](err); ok {
		return errorAnswer(http.StatusNotFound, missing.kind+" "+missing.name+" not found")
	}
	if quota, ok := errors.AsType[*delivery.QuotaError](err); ok {
		err = &quotaError{quota.Name, int64(quota.Limit)}
	}
	if quota, ok := errors.AsType[*quotaError](err); ok {
		return errorAnswer(http.StatusPreconditionFailed, fmt.Sprintf("quota %s exceeded, current limit: %d", quota.name, quota.limit))
	}
	if refused, ok := errors.AsType[*request.Error](err); ok {
		return errorAnswer(http.StatusBadRequest, refused.Text)
	}
	switch {
	case errors.Is(err, errNoDiscovery):
		return jsonAnswer(http.StatusBadRequest, []byte(`{"success":false,"error":"namespace or task is required","messages":[]}`))
	case errors.Is(err, errPublishToken):
		return unheard(ex, errorAnswer(http.StatusUnauthorized, errPublishToken.Error())).with("WWW-Authenticate", "Bearer")
	case errors.Is(err, auth.ErrUnauthorized):
		return unheard(ex, errorAnswer(http.StatusUnauthorized, unauthorizedText)).with("WWW-Authenticate", "Bearer")
	case errors.Is(err, errForbidden):
		return unheard(ex, errorAnswer(http.StatusForbidden, errForbidden.Error()))
	case errors.Is(err, errNoRoute):
		return jsonAnswer(http.StatusNotFound, []byte(`{"error":"Not Found","code":"no_such_route"}`))
	case errors.Is(err, errNoSwitch):
		return errorAnswer(http.StatusBadRequest, errNoSwitch.Error())
	case errors.Is(err, queue.ErrNoSpool):
		return errorAnswer(http.StatusConflict, noSpoolText)
	case errors.Is(err, queue.ErrQueueNotFound):
		return errorAnswer(http.StatusNotFound, "Queue not found")
	case errors.Is(err, queue.ErrStreamChanged):
		return errorAnswer(http.StatusConflict, "the query is registered with another config_hash")
	case errors.Is(err, queue.ErrMessageNotFound):
		return messageNotFound(err)
	case errors.Is(err, queue.ErrPartitionNotFound):
		return errorAnswer(http.StatusNotFound, "Partition not found")
	case isUnreadable(err):
		ex.note(err)
		return errorAnswer(http.StatusConflict, unreadableText)
	case errors.Is(err, queue.ErrTooBroad):
		return errorAnswer(http.StatusBadRequest, "bad query: the filters cover too many partitions: name a queue or a partition")
	case errors.Is(err, queue.ErrGroupNotFound):
		return errorAnswer(http.StatusNotFound, "Consumer group not found")
	case errors.Is(err, queue.ErrNothingToSeek):
		return errorAnswer(http.StatusNotFound, "No partition found for this consumer group and queue")
	case errors.Is(err, errTooLarge):
		return closing(errorAnswer(http.StatusRequestEntityTooLarge, fmt.Sprintf("body exceeds %d bytes", e.cfg.MaxBody)))
	case errors.Is(err, errSlowBody), errors.Is(err, errCutBody):
		return closing(errorAnswer(http.StatusBadRequest, err.Error()))
	case errors.Is(err, errCrossOrigin):
		return closing(errorAnswer(http.StatusForbidden, errCrossOrigin.Error()))
	case errors.Is(err, errForeignHost):
		return closing(errorAnswer(http.StatusForbidden, errForeignHost.Error()))
	case errors.Is(err, errBusy):
		return closing(soon(errorAnswer(http.StatusTooManyRequests, errBusy.Error())))
	case errors.Is(err, errMethod):
		return errorAnswer(http.StatusMethodNotAllowed, "Method Not Allowed")
	case errors.Is(err, delivery.ErrTopicExists):
		return errorAnswer(http.StatusConflict, "there is a topic of that name")
	case errors.Is(err, delivery.ErrEndpointUsed):
		return errorAnswer(http.StatusConflict, "the topic has an endpoint of that url or name")
	case errors.Is(err, queue.ErrSpooled):
		return soon(errorAnswer(http.StatusServiceUnavailable, spooledText))
	case errors.Is(err, queue.ErrUnavailable), errors.Is(err, delivery.ErrUnavailable):
		ex.note(err)
		return soon(errorAnswer(http.StatusServiceUnavailable, unavailableText))
	case errors.Is(err, queue.ErrStopped), errors.Is(err, delivery.ErrStopped):
		return soon(errorAnswer(http.StatusServiceUnavailable, stoppingText))
	case errors.Is(err, errNonconform):
		return errorAnswer(http.StatusInternalServerError, errNonconform.Error())
	default:
		ex.note(err)
		return errorAnswer(http.StatusInternalServerError, internalText)
	}
}

func isUnreadable(err error) bool {
	_, unreadable := errors.AsType[*queue.UnreadableError](err)
	return unreadable
}

// noDeadLetterError is a dead letter that was to be changed and is not there.
type noDeadLetterError struct {
	error

	partition     uuid.UUID
	transactionID string
}

func (e *noDeadLetterError) Unwrap() error { return e.error }

// noDeadLetter adds to an error which dead letter it is about.
func noDeadLetter(err error, partition uuid.UUID, transactionID string) error {
	return &noDeadLetterError{err, partition, transactionID}
}

// messageNotFound is flat where a message was looked for; where a dead letter was to be changed it says which.
func messageNotFound(err error) answer {
	ans := errorAnswer(http.StatusNotFound, missingText)
	if missing, ok := errors.AsType[*noDeadLetterError](err); ok {
		b := append(make([]byte, 0, 192+len(missing.transactionID)), `{"success":false,"partitionId":`...)
		b = appendUUID(b, missing.partition)
		b = appendField(b, "transactionId", missing.transactionID)
		b = appendField(b, "error", missingText)
		ans.body = append(b, '}')
	}
	return ans
}

// errorAnswer is the flat error body, valid JSON whatever the text quotes.
func errorAnswer(status int, text string) answer {
	text = bounded(text)
	b := append(make([]byte, 0, len(text)+16), `{"error":`...)
	b = appendString(b, text)
	return jsonAnswer(status, append(b, '}'))
}

// bounded makes a text, which may quote the request, one that an answer can hold.
func bounded(text string) string {
	if len(text) > maxErrorText {
		text = text[:maxErrorText] + "…"
	}
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\uFFFD")
	}
	return text
}

// soon marks an answer that may differ in a moment.
func soon(ans answer) answer { return ans.with("Retry-After", "1") }

// closing ends the connection after an answer: the rest of the request is not worth reading.
func closing(ans answer) answer { return ans.with("Connection", "close") }

// unheard is closing for a request whose body, if it has one, nobody has read.
func unheard(ex *exchange, ans answer) answer {
	if ex.unread {
		return closing(ans)
	}
	return ans
}

// checkText words a violation as the queue contract does: "bad body: items[0].payload is missing",
// "bad query: batch must be an integer".
func checkText(err *openapi.CheckError) string {
	return "bad " + err.In + ": " + strings.TrimSpace(err.Error())
}

func badBody(field, rule string) error {
	return &openapi.CheckError{In: "body", Field: field, Rule: rule}
}

func badQuery(param, rule string) error {
	return &openapi.CheckError{In: "query", Field: param, Rule: rule}
}

func badPath(param, rule string) error {
	return &openapi.CheckError{In: "path", Field: param, Rule: rule}
}
