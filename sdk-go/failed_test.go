package posthorn_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func TestFailed(t *testing.T) {
	t.Parallel()
	const dead = `{"dlqId":"dlq_1","messageId":"msg_1","url":"https://a/","method":"PUT","header":{"X-A":["1"]},"bodyBase64":"/w==","maxRetries":2,"createdAt":1767225600000,
		"notBefore":1767225601000,"callerIP":"1.2.3.4","responseStatus":500,"responseHeader":{"X-B":["2"]},"responseBody":"no"}`
	s := newScript(t, text(200, `{"messages":[`+dead+`],"cursor":"dlq_1"}`), text(200, dead), text(200, `{"deleted":1}`), text(200, `{"deleted":3}`),
		text(201, `{"messageId":"msg_2","url":"https://a/"}`), text(201, `{"responses":[{"messageId":"msg_3","url":"https://b/"}]}`), text(200, `{"deleted":4}`),
		text(404, `{"error":"dead letter x not found"}`))
	c := once(t, s.URL)
	page, err := c.ListFailed(t.Context(), posthorn.FailedOptions{
		FailedFilter: posthorn.FailedFilter{PublishedFilter: posthorn.PublishedFilter{Labels: []string{"l"}}, Statuses: []int{500, 0}}, Limit: 1, OldestFirst: true, Cursor: "dlq_0",
	})
	if err != nil || page.Cursor != "dlq_1" || len(page.Messages) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	m, err := c.GetFailed(t.Context(), "a/b")
	if err != nil || m.DLQID != "dlq_1" || m.MessageID != "msg_1" || m.Method != "PUT" || string(m.Body) != "\xff" || m.Retries != 2 || m.ResponseStatus != 500 ||
		m.ResponseHeader.Get("X-B") != "2" || string(m.ResponseBody) != "no" || m.Header.Get("X-A") != "1" || m.NotBefore.Sub(m.CreatedAt) != time.Second {
		t.Errorf("%+v, %v", m, err)
	}
	if err := c.DeleteFailed(t.Context(), "dlq_1"); err != nil {
		t.Error(err)
	}
	if n, err := c.DeleteFailedMany(t.Context(), posthorn.FailedSelection{FailedFilter: posthorn.FailedFilter{DLQIDs: []string{"dlq_1", "dlq_2"}}, Limit: 7}); err != nil || n != 3 {
		t.Errorf("%d, %v", n, err)
	}
	retries := 9
	fresh, err := c.RetryFailed(t.Context(), "dlq_1", &posthorn.Publication{Retries: &retries, Header: http.Header{"X-C": {"3"}}})
	if err != nil || fresh.MessageID != "msg_2" || fresh.URL != "https://a/" {
		t.Errorf("%+v, %v", fresh, err)
	}
	all, err := c.RetryFailedMany(t.Context(), posthorn.FailedSelection{All: true}, nil)
	if err != nil || len(all) != 1 || all[0].MessageID != "msg_3" {
		t.Errorf("%+v, %v", all, err)
	}
	if n, err := c.DeleteFailedMany(t.Context(), posthorn.FailedSelection{All: true}); err != nil || n != 4 {
		t.Errorf("%d, %v", n, err)
	}
	for i, want := range []string{
		"GET /v2/dlq?count=1&cursor=dlq_0&label=l&order=earliestFirst&responseStatus=500&responseStatus=0", "GET /v2/dlq/a%2Fb", "DELETE /v2/dlq/dlq_1",
		"DELETE /v2/dlq?count=7&dlqIds=dlq_1&dlqIds=dlq_2", "POST /v2/dlq/retry/dlq_1", "POST /v2/dlq/retry", "DELETE /v2/dlq",
	} {
		if e := s.seen[i]; e.Method+" "+e.Target != want {
			t.Errorf("%s %s, want %s", e.Method, e.Target, want)
		}
	}
	if h := s.seen[4].Header; h.Get("Upstash-Retries") != "9" || h.Get("Upstash-Forward-X-C") != "3" {
		t.Errorf("%v", h)
	}
	if err := c.DeleteFailed(t.Context(), "x"); !errors.Is(err, posthorn.ErrNotFound) {
		t.Errorf("an unknown dead letter: %v", err)
	}
	if _, err := c.DeleteFailedMany(t.Context(), posthorn.FailedSelection{FailedFilter: posthorn.FailedFilter{DLQIDs: []string{}}}); err == nil {
		t.Error("an empty selection deletes all")
	}
	if _, err := c.RetryFailedMany(t.Context(), posthorn.FailedSelection{}, nil); err == nil {
		t.Error("an empty selection retries all")
	}
	for _, bad := range []*posthorn.Publication{{Delay: -1}, {Timeout: -1}} {
		_, one := c.RetryFailed(t.Context(), "x", bad)
		_, many := c.RetryFailedMany(t.Context(), posthorn.FailedSelection{All: true}, bad)
		if one == nil || many == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

func TestSigningKeys(t *testing.T) {
	t.Parallel()
	s := newScript(t, text(200, `{"current":"sig_1","next":"sig_2"}`), text(200, `{"current":"sig_2","next":"sig_3"}`))
	c := once(t, s.URL)
	keys, err := c.GetSigningKeys(t.Context())
	if err != nil || keys != (posthorn.SigningKeys{Current: "sig_1", Next: "sig_2"}) {
		t.Errorf("%+v, %v", keys, err)
	}
	keys, err = c.RotateSigningKeys(t.Context())
	if err != nil || keys != (posthorn.SigningKeys{Current: "sig_2", Next: "sig_3"}) {
		t.Errorf("%+v, %v", keys, err)
	}
	if a, b := s.seen[0], s.seen[1]; a.Method+a.Target != "GET/v2/keys" || b.Method+b.Target != "POST/v2/keys/rotate" {
		t.Errorf("%+v", s.seen)
	}
}
