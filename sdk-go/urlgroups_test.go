package posthorn_test

import (
	"errors"
	"net/http"
	"reflect"
	"testing"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func TestURLGroups(t *testing.T) {
	t.Parallel()
	const group = `{"name":"news","createdAt":1767225600000,"updatedAt":1767225601000,"headers":{"X-A":["1"]},"endpoints":[{"name":"first","url":"https://a/"},{"url":"https://b/"}]}`
	s := newScript(t, text(200, `{}`), text(200, group), text(200, "["+group+"]"), text(200, `{}`), text(200, `{}`), text(200, `{}`), text(404, `{"error":"topic news not found"}`),
		text(412, `{"error":"quota maxEndpointsPerTopic exceeded, current limit: 100"}`))
	c := once(t, s.URL)
	if err := c.UpsertEndpoints(t.Context(), "news", []posthorn.Endpoint{{Name: "first", URL: "https://a/"}, {URL: "https://b/"}}); err != nil {
		t.Fatal(err)
	}
	got, err := c.GetURLGroup(t.Context(), "news")
	if err != nil || got.Name != "news" || got.UpdatedAt.Sub(got.CreatedAt).Seconds() != 1 || got.Header.Get("X-A") != "1" ||
		!reflect.DeepEqual(got.Endpoints, []posthorn.Endpoint{{Name: "first", URL: "https://a/"}, {URL: "https://b/"}}) {
		t.Errorf("%+v, %v", got, err)
	}
	list, err := c.ListURLGroups(t.Context())
	if err != nil || len(list) != 1 || !reflect.DeepEqual(list[0], got) {
		t.Errorf("%+v, %v", list, err)
	}
	if err := errors.Join(
		c.ConfigureURLGroup(t.Context(), "news", http.Header{"X-A": {"1"}}),
		c.RemoveEndpoints(t.Context(), "news", []posthorn.Endpoint{{Name: "first"}}),
		c.DeleteURLGroup(t.Context(), "news"),
	); err != nil {
		t.Error(err)
	}
	if _, err := c.GetURLGroup(t.Context(), "news"); !errors.Is(err, posthorn.ErrNotFound) {
		t.Errorf("an unknown group: %v", err)
	}
	if api, ok := errors.AsType[*posthorn.APIError](c.UpsertEndpoints(t.Context(), "news", nil)); !ok || api.Status != 412 {
		t.Errorf("too many endpoints: %v", api)
	}
	want := []string{
		`POST /v2/topics/news/endpoints {"endpoints":[{"name":"first","url":"https://a/"},{"url":"https://b/"}]}`,
		`GET /v2/topics/news `, `GET /v2/topics `,
		`PATCH /v2/topics/news {"headers":{"X-A":["1"]}}`, `DELETE /v2/topics/news/endpoints {"endpoints":[{"name":"first"}]}`, `DELETE /v2/topics/news `,
		`GET /v2/topics/news `, `POST /v2/topics/news/endpoints {"endpoints":[]}`,
	}
	for i, e := range s.seen {
		if line := e.Method + " " + e.Target + " " + e.Body; line != want[i] {
			t.Errorf("request %d: %s, want %s", i, line, want[i])
		}
	}
}
