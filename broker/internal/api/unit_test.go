package api

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/queue"
	"github.com/posthorn/posthorn/openapi"
)

func TestRequestID(t *testing.T) {
	t.Parallel()
	for given, kept := range map[string]bool{
		"abc-123": true, "a/b:c=d+e@f._": true, strings.Repeat("x", 128): true,
		"": false, strings.Repeat("x", 129): false, "a b": false, "a\"b": false, "a\nb": false, "é": false,
	} {
		if got := requestID(given); (got == given) != kept || got == "" {
			t.Errorf("requestID(%q) = %q", given, got)
		}
	}
}

func TestParseISO(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 15, 10, 31, 0, 0, time.UTC)
	for s, want := range map[string]time.Time{
		"2026-01-15T10:31:00Z":        at,
		"2026-01-15T10:31:00.25Z":     at.Add(250 * time.Millisecond),
		"2026-01-15T10:31:00.000001Z": at.Add(time.Microsecond),
		"2026-01-15T12:31:00+02:00":   at,
		"2026-01-15T12:31:00 02:00":   at, // an unescaped plus
		"2026-01-15T10:31:00":         at,
		"2026-01-15 10:31:00":         at,
		"2026-01-15T10:31":            at,
		"2026-01-15":                  at.Truncate(24 * time.Hour),
		"":                            {},
		"yesterday":                   {},
		"2026-13-01":                  {},
		"1700000000":                  {},
	} {
		got, ok := parseISO(s)
		if ok == want.IsZero() || !got.Equal(want) {
			t.Errorf("parseISO(%q) = %v, %v", s, got, ok)
		}
	}
}

func FuzzParseISO(f *testing.F) {
	for _, s := range []string{"now", "2026-01-15T10:31:00Z", "2026-01-15T12:31:00 02:00", "2026-01-15"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got, ok := parseISO(s); ok && got.Location() != time.UTC {
			t.Errorf("parseISO(%q) = %v, not UTC", s, got)
		}
	})
}

func TestPopRequest(t *testing.T) {
	t.Parallel()
	defaults := queue.PopRequest{Batch: 200, Partitions: 1}
	with := func(change func(*queue.PopRequest)) queue.PopRequest {
		r := defaults
		change(&r)
		return r
	}
	for query, want := range map[string]queue.PopRequest{
		"":                            defaults,
		"batch=7":                     with(func(r *queue.PopRequest) { r.Batch = 7 }),
		"batch=2000000":               with(func(r *queue.PopRequest) { r.Batch = maxBatch }),
		"partitions=0":                with(func(r *queue.PopRequest) { r.Partitions = 0 }),
		"partitions=-3":               with(func(r *queue.PopRequest) { r.Partitions = 0 }),
		"autoAck=true":                with(func(r *queue.PopRequest) { r.AutoAck = true }),
		"autoAck=1&wait=no":           with(func(r *queue.PopRequest) { r.AutoAck = true }),
		"timeout=5":                   defaults,
		"wait=true":                   with(func(r *queue.PopRequest) { r.Wait = 30 * time.Second }),
		"wait=yes&timeout=250":        with(func(r *queue.PopRequest) { r.Wait = 250 * time.Millisecond }),
		"wait=true&timeout=999999999": with(func(r *queue.PopRequest) { r.Wait = maxPopTimeout }),
		"leaseSeconds=5":              with(func(r *queue.PopRequest) { r.Lease = 5 * time.Second }),
		"leaseSeconds=0":              defaults,
		"leaseSeconds=-9":             defaults,
		"leaseSeconds=2147483647":     with(func(r *queue.PopRequest) { r.Lease = maxLease }),
		"consumerGroup=g":             with(func(r *queue.PopRequest) { r.Group = "g" }),
		"subscriptionMode=all":        defaults,
		"subscriptionMode=new":        with(func(r *queue.PopRequest) { r.FromNew = true }),
		"subscriptionMode=new-only":   with(func(r *queue.PopRequest) { r.FromNew = true }),
		"subscriptionFrom=now":        with(func(r *queue.PopRequest) { r.FromNew = true }),
		"subscriptionFrom=whenever":   defaults,
		"subscriptionMode=new&subscriptionFrom=2026-01-15": with(func(r *queue.PopRequest) { r.From = time.Date(2026, 1, 15, 0, 0, 0, 0, time.UTC) }),
		"subscriptionMode=new&subscriptionFrom=whenever":   with(func(r *queue.PopRequest) { r.FromNew = true }),
	} {
		e := &edge{cfg: Config{PopTimeout: DefaultPopTimeout}}
		q, _ := url.ParseQuery(query)
		if got, err := e.popRequest(q); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", query, got, err, want)
		}
	}
	e := &edge{cfg: Config{PopTimeout: time.Second, FromNew: true}}
	if got, err := e.popRequest(url.Values{"wait": {"true"}}); err != nil || got.Wait != time.Second || !got.FromNew {
		t.Errorf("configured defaults: %+v, %v", got, err)
	}
}

func FuzzPopRequest(f *testing.F) {
	f.Add("batch=7&wait=true&timeout=5&leaseSeconds=-1&partitions=99999999999999999999")
	f.Fuzz(func(t *testing.T, query string) {
		q, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		e := &edge{cfg: Config{PopTimeout: DefaultPopTimeout}}
		got, err := e.popRequest(q)
		if err != nil {
			if !strings.HasPrefix(checkText(err.(*openapi.CheckError)), "bad query: ") { //nolint:errorlint // it is returned bare
				t.Errorf("%q: %v", query, err)
			}
			return
		}
		if got.Batch < 1 || got.Batch > maxBatch || got.Partitions < 0 || got.Wait < 0 || got.Wait > maxPopTimeout || got.Lease < 0 || got.Lease > maxLease {
			t.Errorf("%q: %+v", query, got)
		}
	})
}

func TestAckStatus(t *testing.T) {
	t.Parallel()
	if ackStatus(nil) != queue.Completed {
		t.Error("absent is not completed")
	}
	for s, want := range map[string]queue.AckStatus{
		"completed": queue.Completed, "success": queue.Completed, "acked": queue.Completed, "ok": queue.Completed,
		"retry": queue.Retry, "dlq": queue.DeadLetter, "failed": queue.Nack, "": queue.Nack, "Completed": queue.Nack, "OK": queue.Nack,
	} {
		if got := ackStatus(&s); got != want {
			t.Errorf("%q: %v", s, got)
		}
	}
}

func TestExtension(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]time.Duration{
		"": time.Minute, "{}": time.Minute, "null": time.Minute, "[]": time.Minute, "{": time.Minute, `{"seconds":null}`: time.Minute,
		`{"seconds":"5"}`: time.Minute, `{"seconds":1.5}`: time.Minute, `{"Seconds":5}`: time.Minute,
		`{"seconds":5}`: 5 * time.Second, `{"seconds":0}`: time.Second, `{"seconds":-7}`: time.Second, `{"seconds":9223372036854775807}`: maxLease,
	} {
		if got := extension([]byte(body)); got != want {
			t.Errorf("%s: %v", body, got)
		}
	}
}

func FuzzExtension(f *testing.F) {
	f.Add([]byte(`{"seconds":5}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if got := extension(body); got < time.Second || got > maxLease {
			t.Errorf("%q: %v", body, got)
		}
	})
}

func TestAppendUUID(t *testing.T) {
	t.Parallel()
	for range 100 {
		id := uuid.New()
		if got := string(appendUUID(nil, id)); got != `"`+id.String()+`"` {
			t.Errorf("%s: %s", id, got)
		}
	}
}

// FuzzErrorAnswer quotes anything in an error, which has to stay valid JSON.
func FuzzErrorAnswer(f *testing.F) {
	f.Add("plain")
	f.Add("quote \" back\\slash \x00 \xff \u2028 <&>")
	f.Add(strings.Repeat("é", maxErrorText))
	f.Fuzz(func(t *testing.T, text string) {
		body := errorAnswer(400, text).body
		var e struct{ Error string }
		if err := json.Unmarshal(body, &e); err != nil || !utf8.Valid(body) {
			t.Errorf("%q: %v", body, err)
		}
		if utf8.ValidString(text) && len(text) <= maxErrorText && e.Error != text {
			t.Errorf("%q became %q", text, e.Error)
		}
	})
}

// FuzzDecode reads any body as the requests that are decoded by reflection; an error has to be a
// violation of the body.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"transactionId":"a","partitionId":"b","status":null,"consumerGroup":"g"}`))
	f.Add([]byte(`{"consumerGroup":null,"acknowledgments":[{"status":""}]}`))
	f.Add([]byte(`{"queue":"q","options":{"leaseTime":5},"options":null,"leaseTime":-1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, into := range []any{new(ackSingle), new(ackBatchRequest), new(configureRequest), new(advanceRequest)} {
			err := decode(body, into)
			if err == nil {
				continue
			}
			if check, ok := err.(*openapi.CheckError); !ok || check.In != "body" { //nolint:errorlint // it is returned bare
				t.Errorf("%q: %v", body, err)
			}
		}
	})
}

func TestDecode(t *testing.T) {
	t.Parallel()
	var single ackSingle
	if err := decode([]byte(`{"transactionId":"a","TransactionId":"b","partitionId":null,"status":null,"x":{},"error":"e","error":"f"}`), &single); err != nil {
		t.Fatal(err)
	}
	if single.TransactionID != "a" || single.Status != nil || single.Error != "f" {
		t.Errorf("%+v", single)
	}
	var batch ackBatchRequest
	err := decode([]byte(`{"acknowledgments":[{"status":"ok"},{"status":7}]}`), &batch)
	if want := "bad body: acknowledgments[1].status has the wrong type"; err == nil || checkText(err.(*openapi.CheckError)) != want { //nolint:errorlint // it is returned bare
		t.Errorf("%v", err)
	}
}

// TestAppendPop has the payload spliced in as it is, valid JSON around it.
func TestAppendPop(t *testing.T) {
	t.Parallel()
	payload := "{ \"a\":1e400,\"a\":\"\\ud800\\u0000\",\"<\":[ ] }"
	res := queue.PopResult{LeaseID: "L", Group: "g", Partitions: []queue.PoppedPartition{
		{Queue: "q\"1", Name: "p1", ID: uuid.New(), Messages: []queue.Message{{ID: uuid.New(), TransactionID: "t<1>", Payload: []byte(payload), DeliveryAttempt: 1}}},
		{Queue: "q2", Name: "p2", ID: uuid.New(), Messages: []queue.Message{
			{ID: uuid.New(), TransactionID: "t2", TraceID: uuid.New(), ProducerSub: "sub", Payload: []byte("null"), DeliveryAttempt: 2},
			{ID: uuid.New(), TransactionID: "t3", Payload: []byte("1"), DeliveryAttempt: 1},
		}},
	}}
	body := appendPop("", res)
	if !strings.Contains(string(body), `"data":`+payload+`,`) {
		t.Errorf("payload changed: %s", body)
	}
	if cap(body) != popSize("", res) {
		t.Errorf("grew from %d to %d bytes", popSize("", res), cap(body))
	}
	op, _ := spec(t).Operation("pop")
	if err := op.CheckResponse(200, map[string][]string{"Content-Type": {"application/json"}}, body); err != nil {
		t.Errorf("%v: %s", err, body)
	}
	var got popped
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	if got.Partition != "p1" || got.PartitionsClaimed != 2 || len(got.Messages) != 3 || got.Messages[2].Queue != "q2" || got.Messages[1].DeliveryAttempt != 2 {
		t.Errorf("%+v", got)
	}
}
