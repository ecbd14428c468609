package api

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestTopicsV1(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	var topic topicV1
	b.ask(201, "POST", "/v1/topics", `{"name":"news"}`, &topic)
	if !strings.HasPrefix(topic.TopicID, "tpc_") || topic.Name != "news" || len(topic.Endpoints) != 0 {
		t.Fatalf("%+v", topic)
	}
	b.ask(409, "POST", "/v1/topics", `{"name":"news"}`, nil)
	for _, bad := range []string{``, `{}`, `{"name":""}`, `{"name":1}`, `{"name":"a b"}`, `{"name":"a/b"}`, `{"name":"https://x"}`} {
		b.ask(400, "POST", "/v1/topics", bad, nil)
	}
	var p endpointV1
	b.ask(201, "POST", "/v1/endpoints", `{"topicName":"news","url":"`+h.URL+`/a"}`, &p)
	if !strings.HasPrefix(p.EndpointID, "ept_") || p.TopicID != topic.TopicID {
		t.Errorf("%+v", p)
	}
	b.ask(409, "POST", "/v1/endpoints", `{"topicId":"`+topic.TopicID+`","url":"`+h.URL+`/a"}`, nil)
	for body, status := range map[string]int{
		`{"url":"` + h.URL + `"}`:                                   400,
		`{"topicName":"news","url":"ftp://x"}`:                      400,
		`{"topicName":"news","url":"http://10.0.0.1/"}`:             400,
		`{"topicName":"news","url":"http://2852039166/"}`:           400,
		`{"topicName":"news","url":"http://u:p@` + h.URL[7:] + `"}`: 400,
		`{"topicName":"unknown","url":"` + h.URL + `"}`:             404,
	} {
		b.ask(status, "POST", "/v1/endpoints", body, nil)
	}
	r := b.publish("/v1/publish/news", "one")
	if r.status != 201 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	b.ask(200, "PUT", "/v1/endpoints/"+p.EndpointID, `{"url":"`+h.URL+`/b"}`, &p)
	b.publish("/v1/publish/"+topic.TopicID, "two")
	b.settle()
	got := h.requests()
	if len(got) != 2 || got[0].uri != "/a" || got[1].uri != "/b" {
		t.Errorf("delivered %+v", got)
	}
	var list []topicV1
	b.ask(200, "GET", "/v1/topics", "", &list)
	if len(list) != 1 || len(list[0].Endpoints) != 1 || list[0].Endpoints[0].URL != h.URL+"/b" {
		t.Errorf("%+v", list)
	}
	b.ask(200, "PUT", "/v1/topics/news", `{"name":"old"}`, &topic)
	b.ask(200, "GET", "/v1/topics/old", "", &topic)
	b.ask(404, "GET", "/v1/topics/news", "", nil)
	var endpoints []endpointV1
	b.ask(200, "GET", "/v1/endpoints", "", &endpoints)
	b.ask(200, "GET", "/v1/endpoints/"+p.EndpointID, "", &p)
	if len(endpoints) != 1 || endpoints[0] != p {
		t.Errorf("%+v, %+v", endpoints, p)
	}
	b.ask(200, "DELETE", "/v1/endpoints/"+p.EndpointID, "", nil)
	b.ask(404, "GET", "/v1/endpoints/"+p.EndpointID, "", nil)
	if r := b.publish("/v1/publish/old", "x"); r.status != 400 || r.errorText(t) != "topic old has no endpoints" {
		t.Errorf("%d %s", r.status, r.body)
	}
	b.ask(200, "DELETE", "/v1/topics/"+topic.TopicID, "", nil)
	b.ask(404, "DELETE", "/v1/topics/"+topic.TopicID, "", nil)
}

func TestURLGroups(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	b.ask(200, "POST", "/v2/Topics/news/endpoints/", `{"endpoints":[{"url":"`+h.URL+`/a","name":"first"},{"url":"`+h.URL+`/b"}]}`, nil)
	var group urlGroup
	b.ask(200, "GET", "/v2/topics/news", "", &group)
	if group.Name != "news" || group.CreatedAt == 0 || len(group.Endpoints) != 2 || group.Endpoints[0] != (groupEndpoint{"first", h.URL + "/a"}) {
		t.Errorf("%+v", group)
	}
	b.ask(200, "PATCH", "/v2/topics/news", `{"headers":{"x-source":"posthorn","X-Two":["1","2"]}}`, nil)
	for body, want := range map[string]string{
		`{"headers":{"host":"x"}}`:   "headers.Host cannot be forwarded",
		`{"headers":{"X":"a\r\nb"}}`: "headers.X must not contain control characters",
		`{"headers":{"a b":"x"}}`:    `"headers.a b" is no name of a header`,
		`{"headers":{"X":1}}`:        "headers.X must be a string or an array of strings",
	} {
		if r := b.ask(400, "PATCH", "/v2/topics/news", body, nil); r.errorText(t) != want {
			t.Errorf("%s: %s, want %s", body, r.body, want)
		}
	}
	for method, bodies := range map[string]map[string]string{
		"POST": {
			`{"endpoints":[{"url":"` + h.URL + `"},{"url":"news"}]}`: "endpoints[1].url: invalid destination url: endpoint has invalid scheme, add http:// or https://",
			`{"endpoints":[{"url":"http://192.168.1.1"}]}`:           "endpoints[0].url: invalid destination url: endpoint resolves to a private address: 192.168.1.1",
			`{"endpoints":[{"url":"` + h.URL + `","name":"a b"}]}`:   "endpoints[0].name must be made of letters, digits, dash, underscore and dot",
		},
		"DELETE": {`{"endpoints":[{"name":"first"},{}]}`: "endpoints[1] must have a name or a url"},
	} {
		for body, want := range bodies {
			if r := b.ask(400, method, "/v2/topics/news/endpoints", body, nil); r.errorText(t) != want {
				t.Errorf("%s: %s, want %s", body, r.body, want)
			}
		}
	}
	for _, bad := range []string{`{}`, `{"headers":1}`, `{"headers":{"Host":"x"}}`, `{"headers":{"X":1}}`, `{"headers":{"X":"a\r\nb"}}`} {
		b.ask(400, "PATCH", "/v2/topics/news", bad, nil)
	}
	if r := b.publish("/v2/publish/news", "x", "Upstash-Forward-X-Source", "mine"); r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	b.settle()
	for _, d := range h.requests() {
		if d.header.Get("X-Source") != "mine" || len(d.header["X-Two"]) != 2 {
			t.Errorf("delivered %+v", d)
		}
	}
	many := `{"endpoints":[{"url":"` + h.URL + `"}` + strings.Repeat(`,{"url":"http://127.0.0.1/x"}`, 3)
	for i := range 100 {
		raw, _ := json.Marshal(h.URL + "/" + strings.Repeat("x", i+1))
		many += `,{"url":` + string(raw) + `}`
	}
	if r := b.do("POST", "/v2/topics/news/endpoints", many+"]}"); r.status != 412 || r.errorText(t) != "quota maxEndpointsPerTopic exceeded, current limit: 100" {
		t.Errorf("%d %s", r.status, r.body)
	}
	for _, bad := range []string{``, `{}`, `{"endpoints":[{}]}`, `{"endpoints":[{"url":"news"}]}`, `{"endpoints":[{"url":"http://192.168.1.1"}]}`, `{"endpoints":[{"url":"` + h.URL + `","name":"a b"}]}`} {
		b.ask(400, "POST", "/v2/topics/news/endpoints", bad, nil)
	}
	b.ask(400, "POST", "/v2/topics/a%20b/endpoints", `{"endpoints":[]}`, nil)
	b.ask(400, "DELETE", "/v2/topics/news/endpoints", `{"endpoints":[{}]}`, nil)
	b.ask(200, "DELETE", "/v2/topics/news/endpoints", `{"endpoints":[{"name":"first"}]}`, nil)
	var list []urlGroup
	b.ask(200, "GET", "/v2/topics", "", &list)
	if len(list) != 1 || len(list[0].Endpoints) != 1 || list[0].Endpoints[0].URL != h.URL+"/b" || list[0].Headers["X-Source"][0] != "posthorn" {
		t.Errorf("%+v", list)
	}
	b.ask(200, "DELETE", "/v2/topics/news/endpoints", `{"endpoints":[{"url":"`+h.URL+`/b"}]}`, nil)
	b.ask(404, "GET", "/v2/topics/news", "", nil)
	b.ask(404, "DELETE", "/v2/topics/news/endpoints", `{"endpoints":[{"name":"first"}]}`, nil)
	b.ask(200, "DELETE", "/v2/topics/news", "", nil)
}
