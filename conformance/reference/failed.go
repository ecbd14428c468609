package reference

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// failure is a delivery that failed for good: a dead letter of the publish half.
type failure struct {
	id    string
	task  *task
	at    time.Time
	reply reply
}

// bury keeps a delivery that failed for good, and returns the id of the dead letter.
func (b *Broker) bury(t *task, r reply) string {
	f := &failure{id: "dlq_" + strings.ReplaceAll(uuid.Must(uuid.NewV7()).String(), "-", ""), task: t, at: b.now(), reply: r}
	b.failures = append(b.failures, f)
	if b.has(FailedForgetsID) {
		maps.DeleteFunc(b.accepted, func(_ string, a acceptance) bool { return slices.Contains(a.ids, t.publication.id) })
	}
	return f.id
}
