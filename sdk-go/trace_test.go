package posthorn_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func TestTraceParentTravels(t *testing.T) {
	t.Parallel()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	var sent []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = append(sent, r.Header.Get("Traceparent"))
		_, _ = w.Write([]byte(`{"success":true,"leaseId":"","messages":[{"id":"m","transactionId":"t","data":1,"traceparent":"` + parent + `"},{"id":"n","transactionId":"u","data":2}]}`))
	}))
	t.Cleanup(server.Close)
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		t.Fatal(err)
	}
	traced := posthorn.WithTraceParent(t.Context(), parent)
	for _, ctx := range []context.Context{t.Context(), traced, posthorn.WithTraceParent(traced, ""), posthorn.WithTraceParent(traced, "a\r\nb")} {
		batch, err := client.Pop(ctx, posthorn.PopOptions{Queue: "q"})
		if err != nil || batch.Messages[0].TraceParent != parent || batch.Messages[1].TraceParent != "" {
			t.Errorf("popped %+v, %v", batch, err)
		}
	}
	if len(sent) != 4 || sent[0] != "" || sent[1] != parent || sent[2] != "" || sent[3] != "" {
		t.Errorf("sent %q", sent)
	}
}
