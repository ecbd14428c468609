package reference

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// maxEndpoints is how many endpoints a topic may have.
const maxEndpoints = 100

// topic is a name for a set of endpoints.
type topic struct {
	id, name         string
	created, updated time.Time
	header           http.Header
	endpoints        []*endpoint
}

type endpoint struct {
	id, name, url string
	topic         *topic
}

func (t *topic) show() map[string]any {
	endpoints := []map[string]any{}
	for _, p := range t.endpoints {
		endpoints = append(endpoints, p.show())
	}
	return map[string]any{"topicId": t.id, "name": t.name, "endpoints": endpoints}
}

func (p *endpoint) show() map[string]any {
	return map[string]any{"endpointId": p.id, "url": p.url, "topicId": p.topic.id}
}

// showGroup is the topic as version 2 shows it.
func (t *topic) showGroup() map[string]any {
	endpoints := []map[string]any{}
	for _, p := range t.endpoints {
		shown := map[string]any{"url": p.url}
		if p.name != "" {
			shown["name"] = p.name
		}
		endpoints = append(endpoints, shown)
	}
	return map[string]any{"name": t.name, "createdAt": t.created.UnixMilli(), "updatedAt": t.updated.UnixMilli(), "endpoints": endpoints}
}

// mint makes an id with a prefix.
func mint(prefix string) string {
	return prefix + strings.ReplaceAll(uuid.Must(uuid.NewV7()).String(), "-", "")
}

func (b *Broker) topicTable() []route {
	return []route{
		{"GET", "/v1/topics", b.locked(b.listTopicsV1)},
		{"POST", "/v1/topics", b.locked(b.createTopicV1)},
		{"GET", "/v1/topics/{topic}", b.locked(b.getTopicV1)},
		{"PUT", "/v1/topics/{topic}", b.locked(b.renameTopicV1)},
		{"DELETE", "/v1/topics/{topic}", b.locked(b.deleteTopicV1)},
		{"GET", "/v1/endpoints", b.locked(b.listEndpointsV1)},
		{"POST", "/v1/endpoints", b.locked(b.createEndpointV1)},
		{"GET", "/v1/endpoints/{endpointId}", b.locked(b.getEndpointV1)},
		{"PUT", "/v1/endpoints/{endpointId}", b.locked(b.moveEndpointV1)},
		{"DELETE", "/v1/endpoints/{endpointId}", b.locked(b.deleteEndpointV1)},
		{"GET", "/v2/topics", b.locked(b.listURLGroups)},
		{"GET", "/v2/topics/{topic}", b.locked(b.getURLGroup)},
		{"PATCH", "/v2/topics/{topic}", b.locked(b.configureURLGroup)},
		{"DELETE", "/v2/topics/{topic}", b.locked(b.deleteURLGroup)},
		{"POST", "/v2/topics/{topic}/endpoints", b.locked(b.upsertEndpoints)},
		{"DELETE", "/v2/topics/{topic}/endpoints", b.locked(b.removeEndpoints)},
	}
}

// locked makes a handler of a function that is called with the lock, the body and the path's parameters, and returns what is
// answered.
func (b *Broker) locked(f func(body []byte, params map[string]string) (status int, value any, err error)) func(http.ResponseWriter, *http.Request, map[string]string) {
	return func(w http.ResponseWriter, r *http.Request, params map[string]string) {
		var body []byte
		if r.ContentLength != 0 {
			var err error
			if body, err = b.readBody(r); err != nil {
				b.writeError(w, err)
				return
			}
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		status, value, err := f(body, params)
		if err != nil {
			b.writeError(w, err)
			return
		}
		writeJSON(w, status, value)
	}
}

// topicNamed finds a topic by its name or its id; nil when there is none.
func (b *Broker) topicNamed(nameOrID string) *topic {
	for _, t := range b.topics {
		if t.name == nameOrID || t.id == nameOrID && !b.has(TopicIDsUnknown) {
			return t
		}
	}
	return nil
}

func noTopic(nameOrID string) error {
	return &problem{http.StatusNotFound, "topic " + nameOrID + " not found"}
}

// knownTopic is topicNamed for requests that need it.
func (b *Broker) knownTopic(nameOrID string) (*topic, error) {
	if t := b.topicNamed(nameOrID); t != nil {
		return t, nil
	}
	return nil, noTopic(nameOrID)
}

func (b *Broker) newTopic(name string) *topic {
	t := &topic{id: mint("tpc_"), name: name, created: b.now(), updated: b.now()}
	b.topics = append(b.topics, t)
	return t
}

func (b *Broker) dropTopic(t *topic) {
	b.topics = slices.DeleteFunc(b.topics, func(other *topic) bool { return other == t })
}

func (b *Broker) listTopicsV1([]byte, map[string]string) (int, any, error) {
	all := []map[string]any{}
	for _, t := range b.topics {
		if len(t.endpoints) > 0 || !b.has(EmptyTopicsHidden) {
			all = append(all, t.show())
		}
	}
	return http.StatusOK, all, nil
}

// freeName reads the name that a body gives to a topic, which no other may have.
func (b *Broker) freeName(body []byte) (string, error) {
	o, err := b.parseObject(body)
	if err != nil {
		return "", err
	}
	name, err := o.text("", "name")
	switch {
	case err != nil:
		return "", err
	case !topicName.MatchString(name) && !b.has(TopicNamesUnchecked):
		return "", badBody("name must be made of letters, digits, dash, underscore and dot")
	case b.topicNamed(name) != nil && !b.has(TopicRecreated):
		return "", &problem{http.StatusConflict, "there is a topic of that name"}
	}
	return name, nil
}

func (b *Broker) createTopicV1(body []byte, _ map[string]string) (int, any, error) {
	name, err := b.freeName(body)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, b.newTopic(name).show(), nil
}

func (b *Broker) getTopicV1(_ []byte, params map[string]string) (int, any, error) {
	t, err := b.knownTopic(params["topic"])
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, t.show(), nil
}

func (b *Broker) renameTopicV1(body []byte, params map[string]string) (int, any, error) {
	t, err := b.knownTopic(params["topic"])
	if err != nil {
		return 0, nil, err
	}
	name, err := b.freeName(body)
	if err != nil {
		return 0, nil, err
	}
	if b.has(RenameCopies) {
		renamed := b.newTopic(name)
		renamed.endpoints = t.endpoints
		return http.StatusOK, renamed.show(), nil
	}
	t.name, t.updated = name, b.now()
	return http.StatusOK, t.show(), nil
}

func (b *Broker) deleteTopicV1(_ []byte, params map[string]string) (int, any, error) {
	t, err := b.knownTopic(params["topic"])
	if err != nil {
		return 0, nil, err
	}
	if t.endpoints = nil; !b.has(TopicDeletionEmpties) {
		b.dropTopic(t)
	}
	return http.StatusOK, map[string]string{"status": "ok"}, nil
}

// endpoints are those of all topics.
func (b *Broker) endpoints() []*endpoint {
	var all []*endpoint
	for _, t := range b.topics {
		all = append(all, t.endpoints...)
	}
	return all
}

func (b *Broker) knownEndpoint(id string) (*endpoint, error) {
	for _, p := range b.endpoints() {
		if p.id == id {
			return p, nil
		}
	}
	return nil, &problem{http.StatusNotFound, "endpoint " + id + " not found"}
}

func (b *Broker) listEndpointsV1([]byte, map[string]string) (int, any, error) {
	all, seen := []map[string]any{}, map[string]bool{}
	for _, p := range b.endpoints() {
		if !seen[p.url] || !b.has(EndpointsListedByURL) {
			all = append(all, p.show())
		}
		seen[p.url] = true
	}
	return http.StatusOK, all, nil
}

// endpointURL reads the url of an endpoint.
func (o object) endpointURL(path string) (string, error) {
	url, err := o.text(path, "url")
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") {
		return "", badRequest("invalid destination url: endpoint has invalid scheme, add http:// or https://")
	}
	return url, nil
}

// used refuses a url that the topic has.
func (t *topic) used(url string) error {
	if slices.ContainsFunc(t.endpoints, func(p *endpoint) bool { return p.url == url }) {
		return &problem{http.StatusConflict, "the topic has an endpoint of that url"}
	}
	return nil
}

func (b *Broker) createEndpointV1(body []byte, _ map[string]string) (int, any, error) {
	o, err := b.parseObject(body)
	if err != nil {
		return 0, nil, err
	}
	url, err := o.endpointURL("")
	if err != nil {
		return 0, nil, err
	}
	of, err := o.optionalText("", "topicId")
	if err == nil && of == "" && !b.has(EndpointByIDOnly) {
		of, err = o.optionalText("", "topicName")
	}
	if err != nil {
		return 0, nil, err
	}
	if of == "" {
		return 0, nil, badBody("topicId or topicName is required")
	}
	t, err := b.knownTopic(of)
	if err != nil {
		return 0, nil, err
	}
	if err := t.used(url); err != nil {
		return 0, nil, err
	}
	if len(t.endpoints) >= maxEndpoints {
		return 0, nil, tooManyEndpoints()
	}
	p := &endpoint{id: mint("ept_"), url: url, topic: t}
	t.endpoints, t.updated = append(t.endpoints, p), b.now()
	return http.StatusCreated, p.show(), nil
}

func tooManyEndpoints() error {
	return &problem{http.StatusPreconditionFailed, "quota maxEndpointsPerTopic exceeded, current limit: 100"}
}

func (b *Broker) getEndpointV1(_ []byte, params map[string]string) (int, any, error) {
	p, err := b.knownEndpoint(params["endpointId"])
	if err != nil && b.has(UnknownEndpointFirst) && len(b.endpoints()) > 0 {
		p, err = b.endpoints()[0], nil
	}
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, p.show(), nil
}

func (b *Broker) moveEndpointV1(body []byte, params map[string]string) (int, any, error) {
	p, err := b.knownEndpoint(params["endpointId"])
	if err != nil {
		return 0, nil, err
	}
	o, err := b.parseObject(body)
	if err != nil {
		return 0, nil, err
	}
	url, err := o.endpointURL("")
	if err != nil {
		return 0, nil, err
	}
	if url != p.url {
		if err := p.topic.used(url); err != nil {
			return 0, nil, err
		}
	}
	if b.has(EndpointMovesMessages) {
		b.redirect(p.url, url)
	}
	p.url, p.topic.updated = url, b.now()
	return http.StatusOK, p.show(), nil
}

func (b *Broker) deleteEndpointV1(_ []byte, params map[string]string) (int, any, error) {
	p, err := b.knownEndpoint(params["endpointId"])
	if err != nil {
		return 0, nil, err
	}
	if b.has(EndpointTakesMessages) {
		b.redirect(p.url, "")
	}
	p.topic.remove(func(other *endpoint) bool { return other == p })
	p.topic.updated = b.now()
	return http.StatusOK, map[string]string{"status": "ok"}, nil
}

func (t *topic) remove(which func(*endpoint) bool) {
	t.endpoints = slices.DeleteFunc(slices.Clone(t.endpoints), which)
}

func (b *Broker) listURLGroups([]byte, map[string]string) (int, any, error) {
	all := []map[string]any{}
	for _, t := range b.topics {
		shown := t.showGroup()
		if b.has(GroupListBare) {
			shown["endpoints"] = []any{}
		}
		all = append(all, shown)
	}
	return http.StatusOK, all, nil
}

func (b *Broker) getURLGroup(_ []byte, params map[string]string) (int, any, error) {
	t, err := b.knownTopic(params["topic"])
	if err != nil {
		return 0, nil, err
	}
	shown := t.showGroup()
	if b.has(GroupNeverUpdated) {
		shown["updatedAt"] = shown["createdAt"]
	}
	return http.StatusOK, shown, nil
}

func (b *Broker) configureURLGroup(body []byte, params map[string]string) (int, any, error) {
	t, err := b.knownTopic(params["topic"])
	if err != nil {
		return 0, nil, err
	}
	o, err := b.parseObject(body)
	if err != nil {
		return 0, nil, err
	}
	var given map[string]json.RawMessage
	if err := json.Unmarshal(o["headers"], &given); err != nil || given == nil {
		return 0, nil, badBody("headers must be an object")
	}
	header := http.Header{}
	if b.has(GroupHeadersMerged) && t.header != nil {
		header = t.header
	}
	for name, raw := range given {
		var values []string
		var value string
		if json.Unmarshal(raw, &value) == nil {
			values = []string{value}
		} else if json.Unmarshal(raw, &values) != nil {
			return 0, nil, badBody("headers.%s must be a string or an array of strings", name)
		}
		header[http.CanonicalHeaderKey(name)] = values
	}
	t.header, t.updated = header, b.now()
	return http.StatusOK, map[string]any{}, nil
}

// deliveredWith is the header of a message to the topic.
func (b *Broker) deliveredWith(t *topic, own http.Header) http.Header {
	if b.has(GroupHeadersIgnored) {
		return own
	}
	header := own.Clone()
	for name, values := range t.header {
		if _, ok := own[name]; !ok || b.has(GroupHeadersWin) {
			header[name] = values
		}
	}
	return header
}

func (b *Broker) deleteURLGroup(_ []byte, params map[string]string) (int, any, error) {
	t, err := b.knownTopic(params["topic"])
	if err == nil {
		b.dropTopic(t)
	} else if b.has(DeleteUnknownGroupRefused) {
		return 0, nil, err
	}
	return http.StatusOK, map[string]any{}, nil
}

// namedEndpoints reads the endpoints of a body.
func (b *Broker) namedEndpoints(body []byte) ([]endpoint, error) {
	o, err := b.parseObject(body)
	if err != nil {
		return nil, err
	}
	var items []object
	if err := json.Unmarshal(o["endpoints"], &items); err != nil {
		return nil, badBody("endpoints must be an array of objects")
	}
	named := make([]endpoint, len(items))
	for i, item := range items {
		if named[i].name, err = item.optionalText("endpoints[].", "name"); err != nil {
			return nil, err
		}
		if named[i].url, err = item.optionalText("endpoints[].", "url"); err != nil {
			return nil, err
		}
	}
	return named, nil
}

func (b *Broker) upsertEndpoints(body []byte, params map[string]string) (int, any, error) {
	named, err := b.namedEndpoints(body)
	if err != nil {
		return 0, nil, err
	}
	name := params["topic"]
	if !topicName.MatchString(name) {
		return 0, nil, badRequest("the name of a URL group must be made of letters, digits, dash, underscore and dot")
	}
	after := map[string]*endpoint{} // by url
	var order []string
	t := b.topicNamed(name)
	if t != nil {
		for _, p := range t.endpoints {
			clone := *p
			after[p.url] = &clone
			order = append(order, p.url)
		}
	}
	for _, given := range named {
		if _, err := (object{"url": json.RawMessage(quoted(given.url))}).endpointURL(""); err != nil {
			return 0, nil, err
		}
		order = b.upsert(after, order, given)
	}
	if len(order) > maxEndpoints {
		if !b.has(TooManyEndpointsKept) || t == nil {
			return 0, nil, tooManyEndpoints()
		}
		order = order[:maxEndpoints]
		err = tooManyEndpoints()
	}
	if t == nil {
		t = b.newTopic(name)
	}
	t.endpoints, t.updated = nil, b.now()
	for _, url := range order {
		p := after[url]
		p.topic = t
		t.endpoints = append(t.endpoints, p)
	}
	return http.StatusOK, map[string]any{}, err
}

func quoted(text string) []byte {
	raw, err := json.Marshal(text)
	if err != nil {
		panic(err) // strings are always encoded
	}
	return raw
}

// upsert adds an endpoint to those of a topic, or changes the one with its url or its name.
func (b *Broker) upsert(all map[string]*endpoint, order []string, given endpoint) []string {
	if p, ok := all[given.url]; ok && !b.has(UpsertByNameOnly) {
		if given.name != "" {
			for _, other := range all {
				if other.name == given.name {
					other.name = ""
				}
			}
			p.name = given.name
		}
		return order
	}
	for i, url := range order {
		if p := all[url]; given.name != "" && p.name == given.name && !b.has(UpsertByURLOnly) {
			delete(all, url)
			p.url = given.url
			all[given.url], order[i] = p, given.url
			return order
		}
	}
	all[given.url] = &endpoint{id: mint("ept_"), name: given.name, url: given.url}
	return append(order, given.url)
}

func (b *Broker) removeEndpoints(body []byte, params map[string]string) (int, any, error) {
	named, err := b.namedEndpoints(body)
	if err != nil {
		return 0, nil, err
	}
	t, err := b.knownTopic(params["topic"])
	if err != nil {
		return 0, nil, err
	}
	before := t.endpoints
	for _, given := range named {
		t.remove(func(p *endpoint) bool {
			return given.name != "" && p.name == given.name || given.name == "" && p.url == given.url && !b.has(RemovesByNameOnly)
		})
	}
	if b.has(RemovedEndpointReplaced) && len(t.endpoints) > 0 {
		for _, p := range before {
			if !slices.Contains(t.endpoints, p) {
				b.redirect(p.url, t.endpoints[0].url)
			}
		}
	}
	t.updated = b.now()
	if len(t.endpoints) == 0 && !b.has(EmptyGroupStays) {
		b.dropTopic(t)
	}
	return http.StatusOK, map[string]any{}, nil
}

// aimAt sends a message to the endpoints that a topic has now.
func (b *Broker) aimAt(m *outgoing, t *topic) error {
	if len(t.endpoints) == 0 {
		return badRequest("topic %s has no endpoints", t.name)
	}
	m.topicID, m.topic, m.header, m.targets = t.id, t.name, b.deliveredWith(t, m.header), nil
	for _, p := range t.endpoints {
		m.targets = append(m.targets, target{url: p.url, name: p.name, endpointID: p.id})
	}
	return nil
}

// redirect sends what waits for one url to another; no url means that it is not delivered. It is for defects only.
func (b *Broker) redirect(from, to string) {
	for _, t := range slices.Clone(b.pending) {
		switch {
		case t.flying || t.url != from:
		case to == "":
			b.finish(t)
		default:
			t.url = to
		}
	}
}
