package server

import (
	"context"
	"net/http"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

var _ = suite.Requirement("push.encryption.transparent", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"encryptionEnabled": true})
	payloads := []string{
		`null`, `""`, `{"card": "4111", "n":1e400}`, `{"a":1,"a":2, "b":[ ]}`, `"\u0000\ud800"`, `1234567890123456789012345678901234567890`,
	}
	var items []item
	for _, payload := range payloads {
		items = append(items, item{queue: queue, payload: payload})
	}
	push(ctx, t, items...)
	var popped []string
	for _, m := range pop(ctx, t, queue).Messages {
		popped = append(popped, string(m.Data))
	}
	Expect(popped).To(Equal(payloads))
})

var _ = suite.Requirement("health.encryption", func(ctx context.Context, t *suite.Target) {
	answer := t.Raw(ctx, suite.Request{Operation: "health"})
	Expect(answer.Status).To(Equal(http.StatusOK))
	var got map[string]any
	decode(answer.Body, &got)
	Expect(got).To(HaveKeyWithValue("encryption", "active"))
}, suite.WireOnly)
