package api

import (
	"fmt"
	"strings"
	"testing"
)

// TestTracesOverTheWire keeps every byte of data, and refuses what breaks a rule.
func TestTracesOverTheWire(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.push("q", "p", "t/1", "1")
	id := b.inspect("queue=q").PartitionID
	for _, data := range []string{`null`, `"\ud800\u0000"`, `{ "b":1e400, "b" : [1,2 ,3]}`, `"<&>\u2028"`, `12345678901234567890123456789012345678901234567890`} {
		var stored struct{ TraceID string }
		r := b.ask(201, "POST", "/api/v1/traces", fmt.Sprintf(`{"transactionId":"t\/1","data":%s ,"partitionId":%q,"traceNames":["z","a","z"],"unknown":1}`, data, id), &stored)
		if string(r.body) != fmt.Sprintf(`{"success":true,"traceId":%q}`, stored.TraceID) {
			t.Errorf("stored: %s", r.body)
		}
		list := string(b.ask(200, "GET", "/api/v1/traces/"+id+"/t%2F1", "", nil).body)
		want := fmt.Sprintf(`{"id":%q,"event_type":"info","data":%s,"consumer_group":null,"worker_id":null,"created_at":"`, stored.TraceID, data)
		if _, rest, found := strings.Cut(list, want); !found || !strings.Contains(rest, `"trace_names":["a","z"]}`) {
			t.Errorf("%s is shown as %s", data, list)
		}
	}
	for names, want := range map[string]string{`"one/two"`: `["one/two"]`, `null`: `[]`, `""`: `[]`, `[]`: `[]`, `["é"]`: `["é"]`} {
		b.ask(201, "POST", "/api/v1/traces", fmt.Sprintf(`{"transactionId":"n","data":0,"partitionId":%q,"consumerGroup":null,"eventType":"","traceNames":%s}`, id, names), nil)
		list := string(b.ask(200, "GET", "/api/v1/traces/"+id+"/n", "", nil).body)
		if !strings.HasSuffix(list, `"trace_names":`+want+`}]}`) {
			t.Errorf("%s: %s", names, list)
		}
	}
	named := string(b.ask(200, "GET", "/api/v1/traces/by-name/one%2Ftwo?limit=3", "", nil).body)
	for _, want := range []string{`"transaction_id":"n"`, `"partition_id":"` + id + `"`, `"queue_name":"q"`, `"partition_name":"p"`, `"total":1,"pagination":{"limit":3,"offset":0}}`} {
		if !strings.Contains(named, want) {
			t.Errorf("by name: %s lacks %s", named, want)
		}
	}
	names := string(b.ask(200, "GET", "/api/v1/traces/names", "", nil).body)
	if !strings.Contains(names, `{"trace_name":"a","trace_count":5,"message_count":1,"last_seen":"`) || !strings.HasSuffix(names, `"total":4,"pagination":{"limit":50,"offset":0}}`) {
		t.Errorf("names: %s", names)
	}

	body := func(change string) string {
		return `{"transactionId":"t","partitionId":"` + id + `","data":1,` + change + `}`
	}
	for given, want := range map[string]string{
		`{}`:                             "bad body: data is missing",
		`{"transactionId":"t","data":1}`: "bad body: partitionId is missing",
		`{"transactionId":"t","data":1,"partitionId":"p"}`:    "bad body: partitionId must be a UUID",
		body(`"transactionId":""`):                            "bad body: transactionId must not be empty",
		body(`"traceNames":7`):                                "bad body: traceNames must be a string or null or an array",
		body(`"traceNames":[""]`):                             "bad body: traceNames[0] must not be empty",
		body(`"traceNames":["\ud800"]`):                       "bad body: traceNames[0] must not contain a lone surrogate",
		body(`"eventType":"\u0000"`):                          "bad body: eventType must not contain control characters",
		body(`"data":"` + strings.Repeat("x", 1<<20-1) + `"`): "bad body: data must be at most 1048576 bytes",
	} {
		if r := b.do("POST", "/api/v1/traces", given); r.status != 400 || r.errorText(t) != want {
			t.Errorf("%.80s: %d %s", given, r.status, r.body)
		}
	}
	b.ask(201, "POST", "/api/v1/traces", body(`"data":"`+strings.Repeat("x", 1<<20-2)+`"`), nil)
	unknown := strings.Replace(body(`"a":1`), id, "00000000-0000-7000-8000-000000000000", 1)
	if r := b.do("POST", "/api/v1/traces", unknown); r.status != 404 || r.errorText(t) != "Partition not found" {
		t.Errorf("an unknown partition: %d %s", r.status, r.body)
	}
	for _, path := range []string{"/api/v1/traces/p/t", "/api/v1/traces/names?limit=0", "/api/v1/traces/by-name/n?offset=-1", "/api/v1/traces/by-name/%07"} {
		if r := b.do("GET", path, ""); r.status != 400 {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
	b.cut.Store(true)
	if r := b.do("POST", "/api/v1/traces", body(`"a":1`)); r.status != 503 {
		t.Errorf("without a database: %d %s", r.status, r.body)
	}
	for _, path := range []string{"/api/v1/traces/" + id + "/t", "/api/v1/traces/names", "/api/v1/traces/by-name/n"} {
		if r := b.do("GET", path, ""); r.status != 503 {
			t.Errorf("%s without a database: %d %s", path, r.status, r.body)
		}
	}
}
