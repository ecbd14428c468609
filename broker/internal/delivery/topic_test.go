package delivery

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
)

// members are a topic's endpoints as name=url, in order.
func members(t testing.TB, e *Engine, topic string) []string {
	t.Helper()
	found, err := e.Topic(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, p := range found.Endpoints {
		list = append(list, p.Name+"="+p.URL)
	}
	return list
}

func TestTopicsOfVersion2(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	ctx := t.Context()
	upsert := func(limit int, endpoints ...Endpoint) error { return e.UpsertEndpoints(ctx, "news", endpoints, limit) }
	check := func(what string, want ...string) {
		t.Helper()
		if got := members(t, e, "news"); !slices.Equal(got, want) {
			t.Fatalf("%s: %v, want %v", what, got, want)
		}
	}
	if err := upsert(3, Endpoint{URL: "https://a"}, Endpoint{Name: "b", URL: "https://b"}); err != nil {
		t.Fatal(err)
	}
	check("created", "=https://a", "b=https://b")
	before, _ := e.Topic(ctx, "news")
	if err := upsert(3, Endpoint{Name: "b", URL: "https://b2"}, Endpoint{Name: "a", URL: "https://a"}, Endpoint{URL: "https://b2"}); err != nil {
		t.Fatal(err)
	}
	check("known by name and by url", "a=https://a", "b=https://b2")
	after, _ := e.Topic(ctx, "news")
	if after.Endpoints[1].ID != before.Endpoints[1].ID || !after.UpdatedAt.After(before.UpdatedAt) || !after.CreatedAt.Equal(before.CreatedAt) {
		t.Errorf("%+v became %+v", before, after)
	}
	if err := upsert(3, Endpoint{Name: "b", URL: "https://a"}); err != nil {
		t.Fatal(err)
	}
	check("a name moves", "b=https://a", "=https://b2")
	quota, ok := errors.AsType[*QuotaError](upsert(3, Endpoint{URL: "https://c"}, Endpoint{URL: "https://d"}))
	if !ok || quota.Limit != 3 {
		t.Errorf("four endpoints: %v", quota)
	}
	check("nothing of it happened", "b=https://a", "=https://b2")
	if err := e.RemoveEndpoints(ctx, "news", []Endpoint{{Name: "b"}, {URL: "https://unknown"}}); err != nil {
		t.Fatal(err)
	}
	check("removed by name", "=https://b2")
	if err := e.RemoveEndpoints(ctx, "news", []Endpoint{{URL: "https://b2"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Topic(ctx, "news"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a topic without endpoints: %v", err)
	}
	if err := e.RemoveEndpoints(ctx, "news", nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown topic: %v", err)
	}
}

func TestTopicsOfVersion1(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	ctx := t.Context()
	news, err := e.CreateTopic(ctx, "news")
	if err != nil || news.Name != "news" || len(news.Endpoints) != 0 || news.CreatedAt.IsZero() {
		t.Fatalf("%+v, %v", news, err)
	}
	if _, err := e.CreateTopic(ctx, "news"); !errors.Is(err, ErrTopicExists) {
		t.Errorf("created twice: %v", err)
	}
	if _, err := e.CreateTopic(ctx, "old"); err != nil {
		t.Fatal(err)
	}
	a, err := e.AddEndpoint(ctx, TopicID(news.ID), "https://a", 2)
	if err != nil || a.Topic != news.ID {
		t.Fatalf("%+v, %v", a, err)
	}
	if _, err := e.AddEndpoint(ctx, "news", "https://a", 2); !errors.Is(err, ErrEndpointUsed) {
		t.Errorf("the same url twice: %v", err)
	}
	b, err := e.AddEndpoint(ctx, "news", "https://b", 2)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := errors.AsType[*QuotaError](func() error { _, err := e.AddEndpoint(ctx, "news", "https://c", 2); return err }()); !ok {
		t.Error("a third endpoint is added")
	}
	if _, err := e.MoveEndpoint(ctx, EndpointID(b.ID), "https://a"); !errors.Is(err, ErrEndpointUsed) {
		t.Errorf("moved to a url that is used: %v", err)
	}
	if p, err := e.MoveEndpoint(ctx, EndpointID(b.ID), "https://b2"); err != nil || p.URL != "https://b2" || p.ID != b.ID {
		t.Errorf("moved: %+v, %v", p, err)
	}
	if list, err := e.Endpoints(ctx); err != nil || len(list) != 2 || list[0].ID != a.ID {
		t.Errorf("endpoints %+v, %v", list, err)
	}
	if _, err := e.RenameTopic(ctx, "news", "old"); !errors.Is(err, ErrTopicExists) {
		t.Errorf("renamed to a name that is taken: %v", err)
	}
	if renamed, err := e.RenameTopic(ctx, TopicID(news.ID), "fresh"); err != nil || renamed.ID != news.ID || len(renamed.Endpoints) != 2 {
		t.Errorf("renamed: %+v, %v", renamed, err)
	}
	if err := e.SetTopicHeader(ctx, "fresh", http.Header{"X-Default": {"1"}}); err != nil {
		t.Fatal(err)
	}
	if list, err := e.Topics(ctx); err != nil || len(list) != 2 || list[0].Name != "fresh" || list[0].Header.Get("X-Default") != "1" || list[1].Name != "old" {
		t.Errorf("topics %+v, %v", list, err)
	}
	if err := e.DeleteEndpoint(ctx, EndpointID(a.ID)); err != nil {
		t.Fatal(err)
	}
	if p, err := e.Endpoint(ctx, EndpointID(b.ID)); err != nil || p.URL != "https://b2" {
		t.Errorf("%+v, %v", p, err)
	}
	if err := e.DeleteTopic(ctx, "fresh"); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"topic":           e.DeleteTopic(ctx, "fresh"),
		"endpoint":        e.DeleteEndpoint(ctx, EndpointID(b.ID)),
		"header":          e.SetTopicHeader(ctx, "fresh", nil),
		"id":              func() error { _, err := e.Endpoint(ctx, "ept_x"); return err }(),
		"topic to add to": func() error { _, err := e.AddEndpoint(ctx, "fresh", "https://x", 9); return err }(),
		"topic to rename": func() error { _, err := e.RenameTopic(ctx, "fresh", "x"); return err }(),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("unknown %s: %v", what, err)
		}
	}
}

// TestEndpointsAreAddedAtOnce adds endpoints from many sides: none is lost, and the bound holds.
func TestEndpointsAreAddedAtOnce(t *testing.T) {
	t.Parallel()
	const limit = 10
	e := engine(t, database(t), nil)
	var wait sync.WaitGroup
	for i := range 20 {
		wait.Go(func() {
			err := e.UpsertEndpoints(t.Context(), "crowd", []Endpoint{{URL: fmt.Sprint("https://", i)}}, limit)
			if _, full := errors.AsType[*QuotaError](err); err != nil && !full {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if n := len(members(t, e, "crowd")); n != limit {
		t.Errorf("%d endpoints, want %d", n, limit)
	}
}
