package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// topicV1 is a topic as version 1 shows it.
type topicV1 struct {
	TopicID   string       `json:"topicId"`
	Name      string       `json:"name"`
	Endpoints []endpointV1 `json:"endpoints"`
}

type endpointV1 struct {
	EndpointID string `json:"endpointId"`
	URL        string `json:"url"`
	TopicID    string `json:"topicId"`
}

// readAs decodes an answer that must have the status.
func readAs[T any](answer suite.Answer, status int) (value T) {
	if answer.Status != status {
		suite.Failf(1, "the request was answered %d %.200s, want %d", answer.Status, answer.Body, status)
	}
	decode(answer.Body, &value)
	return value
}

// createTopic creates a topic of a fresh name with endpoints, and deletes it when the spec has ended.
func createTopic(ctx context.Context, t *suite.Target, urls ...string) topicV1 {
	topic := readAs[topicV1](post(ctx, t, "createTopicV1", fmt.Sprintf(`{"name":%q}`, t.Unique("topic"))), 201)
	t.Cleanup(func(ctx context.Context) { post(ctx, t, "deleteTopicV1", "", topic.TopicID) })
	for _, url := range urls {
		topic.Endpoints = append(topic.Endpoints, addEndpoint(ctx, t, fmt.Sprintf(`{"topicId":%q,"url":%q}`, topic.TopicID, url)))
	}
	return topic
}

func addEndpoint(ctx context.Context, t *suite.Target, body string) endpointV1 {
	return readAs[endpointV1](post(ctx, t, "createEndpointV1", body), 201)
}

func readTopic(ctx context.Context, t *suite.Target, nameOrID string) topicV1 {
	return readAs[topicV1](post(ctx, t, "getTopicV1", "", nameOrID), 200)
}

var _ = suite.Requirement("listTopicsV1.listed", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	topics := []topicV1{createTopic(ctx, t, hook.URL+"/a", hook.URL+"/b"), createTopic(ctx, t), createTopic(ctx, t, hook.URL+"/a")}
	all := readAs[[]topicV1](post(ctx, t, "listTopicsV1", ""), 200)
	for _, topic := range topics {
		var found []topicV1
		for _, listed := range all {
			if listed.Name == topic.Name {
				found = append(found, listed)
			}
		}
		Expect(found).To(HaveLen(1), "entries of the topic %s", topic.Name)
		Expect(found[0].TopicID).To(Equal(topic.TopicID))
		Expect(found[0].Endpoints).To(ConsistOf(topic.Endpoints))
	}
}, suite.WireOnly)

var _ = suite.Requirement("createTopicV1.created", func(ctx context.Context, t *suite.Target) {
	topic := createTopic(ctx, t)
	Expect(topic.TopicID).To(HavePrefix("tpc_"))
	Expect(topic.Endpoints).To(BeEmpty())
	taken := post(ctx, t, "createTopicV1", fmt.Sprintf(`{"name":%q}`, topic.Name))
	Expect(taken.Status).To(Equal(409), "%s", taken.Body)
	Expect(readTopic(ctx, t, topic.Name).TopicID).To(Equal(topic.TopicID))
	for _, name := range []string{`"a b"`, `"a/b"`, `"a:b"`, `"ä"`, `""`, `null`, `7`} {
		rejected(post(ctx, t, "createTopicV1", `{"name":`+name+`}`))
	}
	rejected(post(ctx, t, "createTopicV1", `{}`))
}, suite.WireOnly)

var _ = suite.Requirement("getTopicV1.read", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	topic := createTopic(ctx, t, hook.URL+"/a", hook.URL+"/b")
	for _, nameOrID := range []string{topic.Name, topic.TopicID} {
		got := readTopic(ctx, t, nameOrID)
		Expect(got.TopicID).To(Equal(topic.TopicID))
		Expect(got.Name).To(Equal(topic.Name))
		Expect(got.Endpoints).To(ConsistOf(topic.Endpoints))
	}
	for _, unknown := range []string{t.Unique("topic"), "tpc_" + strings.Repeat("0", 32)} {
		answer := post(ctx, t, "getTopicV1", "", unknown)
		Expect(answer.Status).To(Equal(404), "%s", answer.Body)
	}
}, suite.WireOnly)

var _ = suite.Requirement("renameTopicV1.renamed", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	topic, name := createTopic(ctx, t, hook.URL), t.Unique("topic")
	renamed := readAs[topicV1](post(ctx, t, "renameTopicV1", fmt.Sprintf(`{"name":%q}`, name), topic.Name), 200)
	Expect(renamed).To(Equal(topicV1{topic.TopicID, name, topic.Endpoints}))
	Expect(readTopic(ctx, t, name)).To(Equal(renamed))
	Expect(post(ctx, t, "getTopicV1", "", topic.Name).Status).To(Equal(404), "by its old name")
	publishAccepted(ctx, t, name, "x")
	hook.Await(ctx, 1)
}, suite.WireOnly)

var _ = suite.Requirement("deleteTopicV1.deleted", func(ctx context.Context, t *suite.Target) {
	topic := createTopic(ctx, t, t.Hook(200).URL)
	answer := post(ctx, t, "deleteTopicV1", "", topic.Name)
	Expect(answer.Status).To(Equal(200), "%s", answer.Body)
	for _, nameOrID := range []string{topic.Name, topic.TopicID} {
		Expect(post(ctx, t, "getTopicV1", "", nameOrID).Status).To(Equal(404))
		Expect(publishTo(ctx, t, nameOrID, "x").Status).To(Equal(404))
	}
	for _, p := range topic.Endpoints {
		Expect(post(ctx, t, "getEndpointV1", "", p.EndpointID).Status).To(Equal(404), "an endpoint of it")
	}
}, suite.WireOnly)

var _ = suite.Requirement("listEndpointsV1.listed", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	one, other := createTopic(ctx, t, hook.URL+"/a", hook.URL+"/b"), createTopic(ctx, t, hook.URL+"/a")
	var found []endpointV1
	for _, p := range readAs[[]endpointV1](post(ctx, t, "listEndpointsV1", ""), 200) {
		if p.TopicID == one.TopicID || p.TopicID == other.TopicID {
			found = append(found, p)
		}
	}
	Expect(found).To(ConsistOf(append(one.Endpoints, other.Endpoints...)))
}, suite.WireOnly)

var _ = suite.Requirement("createEndpointV1.created", func(ctx context.Context, t *suite.Target) {
	first, second := t.Hook(200), t.Hook(200)
	topic := createTopic(ctx, t)
	byName := addEndpoint(ctx, t, fmt.Sprintf(`{"topicName":%q,"url":%q}`, topic.Name, first.URL))
	byID := addEndpoint(ctx, t, fmt.Sprintf(`{"topicId":%q,"url":%q}`, topic.TopicID, second.URL))
	for _, p := range []endpointV1{byName, byID} {
		Expect(p.EndpointID).To(HavePrefix("ept_"))
		Expect(p.TopicID).To(Equal(topic.TopicID))
	}
	Expect(readTopic(ctx, t, topic.Name).Endpoints).To(ConsistOf(byName, byID))
	publishAccepted(ctx, t, topic.Name, "x")
	first.Await(ctx, 1)
	second.Await(ctx, 1)
}, suite.WireOnly)

var _ = suite.Requirement("createEndpointV1.created", func(ctx context.Context, t *suite.Target) {
	topic, url := createTopic(ctx, t), t.Hook(200).URL
	unknown := post(ctx, t, "createEndpointV1", fmt.Sprintf(`{"topicName":%q,"url":%q}`, t.Unique("topic"), url))
	Expect(unknown.Status).To(Equal(404), "a topic that does not exist: %s", unknown.Body)
	rejected(post(ctx, t, "createEndpointV1", fmt.Sprintf(`{"url":%q}`, url)))
	for _, bad := range []string{`"ftp://example.com"`, `"example.com"`, `""`, `null`, `7`} {
		rejected(post(ctx, t, "createEndpointV1", fmt.Sprintf(`{"topicId":%q,"url":%s}`, topic.TopicID, bad)))
	}
	Expect(readTopic(ctx, t, topic.Name).Endpoints).To(BeEmpty())
}, suite.WireOnly)

var _ = suite.Requirement("getEndpointV1.read", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	topic := createTopic(ctx, t, hook.URL+"/a", hook.URL+"/b")
	for _, p := range topic.Endpoints {
		Expect(readAs[endpointV1](post(ctx, t, "getEndpointV1", "", p.EndpointID), 200)).To(Equal(p))
	}
	answer := post(ctx, t, "getEndpointV1", "", "ept_"+strings.Repeat("0", 32))
	Expect(answer.Status).To(Equal(404), "%s", answer.Body)
}, suite.WireOnly)

// publishAround publishes a message to a topic that is not due yet, changes the topic, publishes another that is due at once, and
// lets time pass until both are.
func publishAround(ctx context.Context, t *suite.Target, topic string, change func()) {
	window := t.Window()
	publishAccepted(ctx, t, topic, "before", "Upstash-Delay", fmt.Sprintf("%ds", seconds(window)))
	change()
	publishAccepted(ctx, t, topic, "after")
	t.Elapse(ctx, window+time.Second)
}

// took asserts which messages came to a hook, in any order.
func took(ctx context.Context, hook *suite.Hook, want ...string) {
	Expect(bodies(hook.Await(ctx, len(want)))).To(ConsistOf(want))
}

var _ = suite.Requirement("moveEndpointV1.moved", func(ctx context.Context, t *suite.Target) {
	old, other, stays := t.Hook(200), t.Hook(200), t.Hook(200)
	topic := createTopic(ctx, t, old.URL, stays.URL)
	publishAround(ctx, t, topic.Name, func() {
		moved := readAs[endpointV1](post(ctx, t, "moveEndpointV1", fmt.Sprintf(`{"url":%q}`, other.URL), topic.Endpoints[0].EndpointID), 200)
		Expect(moved).To(Equal(endpointV1{topic.Endpoints[0].EndpointID, other.URL, topic.TopicID}))
	})
	took(ctx, stays, "before", "after")
	took(ctx, old, "before")
	took(ctx, other, "after")
}, suite.WireOnly)

var _ = suite.Requirement("deleteEndpointV1.deleted", func(ctx context.Context, t *suite.Target) {
	gone, stays := t.Hook(200), t.Hook(200)
	topic := createTopic(ctx, t, gone.URL, stays.URL)
	publishAround(ctx, t, topic.Name, func() {
		answer := post(ctx, t, "deleteEndpointV1", "", topic.Endpoints[0].EndpointID)
		Expect(answer.Status).To(Equal(200), "%s", answer.Body)
		Expect(post(ctx, t, "getEndpointV1", "", topic.Endpoints[0].EndpointID).Status).To(Equal(404), "when it is deleted")
	})
	took(ctx, stays, "before", "after")
	took(ctx, gone, "before")
}, suite.WireOnly)

// urlGroup is a topic as version 2 shows it.
type urlGroup struct {
	Name      string          `json:"name"`
	CreatedAt int64           `json:"createdAt"`
	UpdatedAt int64           `json:"updatedAt"`
	Endpoints []groupEndpoint `json:"endpoints"`
}

type groupEndpoint struct {
	Name string `json:"name,omitempty"`
	URL  string `json:"url"`
}

// publishToGroup publishes a message that must be accepted; headers are in pairs.
func publishToGroup(ctx context.Context, t *suite.Target, group, body string, headers ...string) {
	outcome := t.Call(ctx, "publish", suite.Args{Path: map[string]string{"destination": group}, Header: pairs(headers), Body: []byte(body)})
	if outcome.Status != 200 {
		suite.Failf(1, "the publish was answered %d %s", outcome.Status, outcome.Body)
	}
}

// changeGroup performs an operation on the endpoints of a group.
func changeGroup(ctx context.Context, t *suite.Target, operation, group string, endpoints ...groupEndpoint) suite.Outcome {
	return t.Call(ctx, operation, suite.Args{Path: map[string]string{"topic": group}, Body: encoded(map[string]any{"endpoints": endpoints})})
}

// createGroup creates a group of a fresh name with endpoints, and deletes it when the spec has ended.
func createGroup(ctx context.Context, t *suite.Target, endpoints ...groupEndpoint) (name string) {
	name = t.Unique("group")
	upsert(ctx, t, name, endpoints...)
	t.Cleanup(func(ctx context.Context) { deleteURLGroup(ctx, t, name) })
	return name
}

func upsert(ctx context.Context, t *suite.Target, group string, endpoints ...groupEndpoint) {
	if outcome := changeGroup(ctx, t, "upsertEndpoints", group, endpoints...); outcome.Status != 200 {
		suite.Failf(2, "the endpoints were answered %d %s", outcome.Status, outcome.Body)
	}
}

func deleteURLGroup(ctx context.Context, t *suite.Target, name string) suite.Outcome {
	return t.Call(ctx, "deleteURLGroup", suite.Args{Path: map[string]string{"topic": name}})
}

func tryGroup(ctx context.Context, t *suite.Target, name string) suite.Outcome {
	return t.Call(ctx, "getURLGroup", suite.Args{Path: map[string]string{"topic": name}})
}

func readGroup(ctx context.Context, t *suite.Target, name string) (group urlGroup) {
	outcome := tryGroup(ctx, t, name)
	if outcome.Status != 200 {
		suite.Failf(1, "the group %s was answered %d %s", name, outcome.Status, outcome.Body)
	}
	decode(outcome.Body, &group)
	return group
}

var _ = suite.Requirement("listURLGroups.listed", func(ctx context.Context, t *suite.Target) {
	url := t.Hook(200).URL
	want := map[string][]groupEndpoint{
		createGroup(ctx, t, groupEndpoint{"a", url + "/a"}, groupEndpoint{"", url + "/b"}): {{"a", url + "/a"}, {"", url + "/b"}},
		createGroup(ctx, t, groupEndpoint{"a", url + "/c"}):                                {{"a", url + "/c"}},
	}
	outcome := t.Call(ctx, "listURLGroups", suite.Args{})
	Expect(outcome.Status).To(Equal(200), "%s", outcome.Body)
	var all []urlGroup
	decode(outcome.Body, &all)
	for name, endpoints := range want {
		var found []urlGroup
		for _, group := range all {
			if group.Name == name {
				found = append(found, group)
			}
		}
		Expect(found).To(HaveLen(1), "entries of the group %s", name)
		Expect(found[0].Endpoints).To(ConsistOf(endpoints))
	}
})

var _ = suite.Requirement("getURLGroup.read", func(ctx context.Context, t *suite.Target) {
	url := t.Hook(200).URL
	name := createGroup(ctx, t, groupEndpoint{"a", url + "/a"})
	first := readGroup(ctx, t, name)
	Expect(first.Name).To(Equal(name))
	Expect(first.Endpoints).To(Equal([]groupEndpoint{{"a", url + "/a"}}))
	Expect(first.CreatedAt).To(BeNumerically(">", time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()), "in milliseconds")
	Expect(first.UpdatedAt).To(BeNumerically(">=", first.CreatedAt))
	t.Elapse(ctx, 2*time.Millisecond)
	upsert(ctx, t, name, groupEndpoint{"b", url + "/b"})
	second := readGroup(ctx, t, name)
	Expect(second.CreatedAt).To(Equal(first.CreatedAt))
	Expect(second.UpdatedAt).To(BeNumerically(">", first.UpdatedAt), "after a change")
	unknown := tryGroup(ctx, t, t.Unique("group"))
	Expect(unknown.Status).To(Equal(404), "%s", unknown.Body)
})

var _ = suite.Requirement("deleteURLGroup.deleted", func(ctx context.Context, t *suite.Target) {
	name := createGroup(ctx, t, groupEndpoint{"", t.Hook(200).URL})
	for range 2 {
		Expect(deleteURLGroup(ctx, t, name).Status).To(Equal(200))
		Expect(tryGroup(ctx, t, name).Status).To(Equal(404))
	}
})

var _ = suite.Requirement("upsertEndpoints.upserted", func(ctx context.Context, t *suite.Target) {
	url := t.Hook(200).URL
	name := createGroup(ctx, t, groupEndpoint{"a", url + "/a"}, groupEndpoint{"", url + "/b"})
	Expect(readGroup(ctx, t, name).Endpoints).To(ConsistOf(groupEndpoint{"a", url + "/a"}, groupEndpoint{"", url + "/b"}))
	upsert(ctx, t, name, groupEndpoint{"b", url + "/b"}, groupEndpoint{"c", url + "/c"})
	Expect(readGroup(ctx, t, name).Endpoints).To(ConsistOf(
		groupEndpoint{"a", url + "/a"}, groupEndpoint{"b", url + "/b"}, groupEndpoint{"c", url + "/c"}), "with a name for a url that is there")
	upsert(ctx, t, name, groupEndpoint{"a", url + "/d"})
	Expect(readGroup(ctx, t, name).Endpoints).To(ConsistOf(
		groupEndpoint{"a", url + "/d"}, groupEndpoint{"b", url + "/b"}, groupEndpoint{"c", url + "/c"}), "with a url for a name that is there")
})

var _ = suite.Requirement("upsertEndpoints.upserted", func(ctx context.Context, t *suite.Target) {
	const most = 100
	url := t.Hook(200).URL
	endpoints := make([]groupEndpoint, most)
	for i := range endpoints {
		endpoints[i].URL = fmt.Sprintf("%s/%d", url, i)
	}
	name := createGroup(ctx, t, endpoints...)
	Expect(readGroup(ctx, t, name).Endpoints).To(HaveLen(most))
	refused := changeGroup(ctx, t, "upsertEndpoints", name, groupEndpoint{"renamed", url + "/0"}, groupEndpoint{"", url + "/more"})
	Expect(refused.Status).To(Equal(412), "one more: %s", refused.Body)
	Expect(readGroup(ctx, t, name).Endpoints).To(ConsistOf(endpoints), "after it was refused")
	upsert(ctx, t, name, groupEndpoint{"renamed", url + "/0"})
})

var _ = suite.Requirement("upsertEndpoints.snapshot", func(ctx context.Context, t *suite.Target) {
	old, added, window := t.Hook(200), t.Hook(200), t.Window()
	name := createGroup(ctx, t, groupEndpoint{"", old.URL})
	publishToGroup(ctx, t, name, "before", "Upstash-Delay", fmt.Sprintf("%ds", seconds(window)))
	upsert(ctx, t, name, groupEndpoint{"", added.URL})
	Expect(changeGroup(ctx, t, "removeEndpoints", name, groupEndpoint{URL: old.URL}).Status).To(Equal(200))
	publishToGroup(ctx, t, name, "after")
	t.Elapse(ctx, window+time.Second)
	took(ctx, old, "before")
	took(ctx, added, "after")
})

var _ = suite.Requirement("removeEndpoints.removed", func(ctx context.Context, t *suite.Target) {
	url := t.Hook(200).URL
	name := createGroup(ctx, t, groupEndpoint{"a", url + "/a"}, groupEndpoint{"b", url + "/b"}, groupEndpoint{"", url + "/c"}, groupEndpoint{"", url + "/d"})
	remove := func(endpoints ...groupEndpoint) {
		outcome := changeGroup(ctx, t, "removeEndpoints", name, endpoints...)
		Expect(outcome.Status).To(Equal(200), "%s", outcome.Body)
	}
	remove(groupEndpoint{Name: "a"}, groupEndpoint{URL: url + "/c"})
	Expect(readGroup(ctx, t, name).Endpoints).To(ConsistOf(groupEndpoint{"b", url + "/b"}, groupEndpoint{"", url + "/d"}))
	remove(groupEndpoint{URL: url + "/b"}, groupEndpoint{URL: url + "/d"})
	Expect(tryGroup(ctx, t, name).Status).To(Equal(404), "without endpoints")
})

var _ = suite.Requirement("configureURLGroup.headers", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	name := createGroup(ctx, t, groupEndpoint{"", hook.URL})
	configure := func(headers map[string]any) {
		outcome := t.Call(ctx, "configureURLGroup", suite.Args{Path: map[string]string{"topic": name}, Body: encoded(map[string]any{"headers": headers})})
		Expect(outcome.Status).To(Equal(200), "%s", outcome.Body)
	}
	configure(map[string]any{"X-Old": []string{"o"}})
	configure(map[string]any{"X-Both": []string{"group"}, "x-group": []string{"a", "b"}})
	publishToGroup(ctx, t, name, "x", "Upstash-Forward-X-Both", "own", "Upstash-Forward-X-Own", "c")
	got := hook.Await(ctx, 1)[0].Header
	Expect(got.Values("X-Group")).To(Equal([]string{"a", "b"}))
	Expect(got.Values("X-Own")).To(Equal([]string{"c"}))
	Expect(got.Values("X-Both")).To(Equal([]string{"own"}), "what both say")
	Expect(got.Values("X-Old")).To(BeEmpty(), "headers that were replaced")
})
