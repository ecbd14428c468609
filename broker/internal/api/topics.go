package api

import (
	"errors"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/posthorn/posthorn/broker/internal/delivery"
	"github.com/posthorn/posthorn/broker/internal/delivery/request"
)

type endpointV1 struct {
	EndpointID string `json:"endpointId"`
	URL        string `json:"url"`
	TopicID    string `json:"topicId"`
}

type topicV1 struct {
	TopicID   string       `json:"topicId"`
	Name      string       `json:"name"`
	Endpoints []endpointV1 `json:"endpoints"`
}

type doneV1 struct {
	Status string `json:"status"`
}

type topicNameV1 struct {
	Name string `json:"name"`
}

type endpointRequestV1 struct {
	URL       string  `json:"url"`
	TopicID   *string `json:"topicId"`
	TopicName *string `json:"topicName"`
}

type groupEndpoint struct {
	Name string `json:"name,omitzero"`
	URL  string `json:"url"`
}

type urlGroup struct {
	Name      string              `json:"name"`
	CreatedAt int64               `json:"createdAt"`
	UpdatedAt int64               `json:"updatedAt"`
	Headers   map[string][]string `json:"headers,omitempty"`
	Endpoints []groupEndpoint     `json:"endpoints"`
}

type endpointsRequest struct {
	Endpoints []struct {
		Name *string `json:"name"`
		URL  *string `json:"url"`
	} `json:"endpoints"`
}

type headersRequest struct {
	Headers map[string]jsontext.Value `json:"headers"`
}

type empty struct{}

func shownEndpointV1(p delivery.Endpoint) endpointV1 {
	return endpointV1{EndpointID: delivery.EndpointID(p.ID), URL: p.URL, TopicID: delivery.TopicID(p.Topic)}
}

func shownTopicV1(t delivery.Topic) topicV1 {
	out := topicV1{TopicID: delivery.TopicID(t.ID), Name: t.Name, Endpoints: []endpointV1{}}
	for _, p := range t.Endpoints {
		out.Endpoints = append(out.Endpoints, shownEndpointV1(p))
	}
	return out
}

func shownGroup(t delivery.Topic) urlGroup {
	out := urlGroup{Name: t.Name, CreatedAt: millisOf(t.CreatedAt), UpdatedAt: millisOf(t.UpdatedAt), Endpoints: []groupEndpoint{}}
	if len(t.Header) > 0 {
		out.Headers = validHeader(t.Header)
	}
	for _, p := range t.Endpoints {
		out.Endpoints = append(out.Endpoints, groupEndpoint{Name: p.Name, URL: p.URL})
	}
	return out
}

func (e *edge) listTopicsV1(c *call) (answer, error) {
	list, err := e.cfg.Delivery.Topics(c.ctx)
	if err != nil {
		return answer{}, err
	}
	out := make([]topicV1, 0, len(list))
	for _, t := range list {
		out = append(out, shownTopicV1(t))
	}
	return encode(http.StatusOK, out)
}

func (e *edge) createTopicV1(c *call) (answer, error) {
	name, err := topicName(c)
	if err != nil {
		return answer{}, err
	}
	t, err := e.cfg.Delivery.CreateTopic(c.ctx, name)
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusCreated, shownTopicV1(t))
}

// topicName reads the name that a body gives to a topic.
func topicName(c *call) (string, error) {
	var body topicNameV1
	if err := decode(c.body, &body); err != nil {
		return "", err
	}
	return body.Name, checkName("name", body.Name)
}

// checkName refuses what could not be written as a destination.
func checkName(field, name string) error {
	if !request.IsName(name) {
		return &request.Error{Text: field + " must be made of letters, digits, dash, underscore and dot"}
	}
	return nil
}

func (e *edge) getTopicV1(c *call) (answer, error) {
	t, err := e.cfg.Delivery.Topic(c.ctx, c.path["topic"])
	if err != nil {
		return answer{}, missing(err, "topic", c.path["topic"])
	}
	return encode(http.StatusOK, shownTopicV1(t))
}

func (e *edge) renameTopicV1(c *call) (answer, error) {
	name, err := topicName(c)
	if err != nil {
		return answer{}, err
	}
	t, err := e.cfg.Delivery.RenameTopic(c.ctx, c.path["topic"], name)
	if err != nil {
		return answer{}, missing(err, "topic", c.path["topic"])
	}
	return encode(http.StatusOK, shownTopicV1(t))
}

func (e *edge) deleteTopicV1(c *call) (answer, error) {
	if err := e.cfg.Delivery.DeleteTopic(c.ctx, c.path["topic"]); err != nil {
		return answer{}, missing(err, "topic", c.path["topic"])
	}
	return encode(http.StatusOK, doneV1{"ok"})
}

func (e *edge) listEndpointsV1(c *call) (answer, error) {
	list, err := e.cfg.Delivery.Endpoints(c.ctx)
	if err != nil {
		return answer{}, err
	}
	out := make([]endpointV1, 0, len(list))
	for _, p := range list {
		out = append(out, shownEndpointV1(p))
	}
	return encode(http.StatusOK, out)
}

func (e *edge) createEndpointV1(c *call) (answer, error) {
	var body endpointRequestV1
	if err := decode(c.body, &body); err != nil {
		return answer{}, err
	}
	topic := firstNonEmpty(body.TopicID, body.TopicName)
	if topic == "" {
		return answer{}, &request.Error{Text: "topicId or topicName is required"}
	}
	url, err := e.endpointURL("url", body.URL)
	if err != nil {
		return answer{}, err
	}
	p, err := e.cfg.Delivery.AddEndpoint(c.ctx, topic, url, e.maxEndpoints())
	if err != nil {
		return answer{}, missing(err, "topic", topic)
	}
	return encode(http.StatusCreated, shownEndpointV1(p))
}

// maxEndpoints bounds the endpoints of one topic.
func (e *edge) maxEndpoints() int {
	if e.cfg.MaxEndpoints > 0 {
		return e.cfg.MaxEndpoints
	}
	return DefaultMaxEndpoints
}

// endpointURL reads the url of an endpoint, which field of the body has.
func (e *edge) endpointURL(field, text string) (string, error) {
	url, err := request.ParseURL(text)
	if err == nil {
		err = e.cfg.Delivery.CheckURL(url)
	}
	if err != nil {
		return "", &request.Error{Text: field + ": " + err.Error(), Cause: err}
	}
	return url, nil
}

func (e *edge) getEndpointV1(c *call) (answer, error) {
	p, err := e.cfg.Delivery.Endpoint(c.ctx, c.path["endpointId"])
	if err != nil {
		return answer{}, missing(err, "endpoint", c.path["endpointId"])
	}
	return encode(http.StatusOK, shownEndpointV1(p))
}

func (e *edge) moveEndpointV1(c *call) (answer, error) {
	var body endpointRequestV1
	if err := decode(c.body, &body); err != nil {
		return answer{}, err
	}
	url, err := e.endpointURL("url", body.URL)
	if err != nil {
		return answer{}, err
	}
	p, err := e.cfg.Delivery.MoveEndpoint(c.ctx, c.path["endpointId"], url)
	if err != nil {
		return answer{}, missing(err, "endpoint", c.path["endpointId"])
	}
	return encode(http.StatusOK, shownEndpointV1(p))
}

func (e *edge) deleteEndpointV1(c *call) (answer, error) {
	if err := e.cfg.Delivery.DeleteEndpoint(c.ctx, c.path["endpointId"]); err != nil {
		return answer{}, missing(err, "endpoint", c.path["endpointId"])
	}
	return encode(http.StatusOK, doneV1{"ok"})
}

func (e *edge) listURLGroups(c *call) (answer, error) {
	list, err := e.cfg.Delivery.Topics(c.ctx)
	if err != nil {
		return answer{}, err
	}
	out := make([]urlGroup, 0, len(list))
	for _, t := range list {
		out = append(out, shownGroup(t))
	}
	return encode(http.StatusOK, out)
}

func (e *edge) getURLGroup(c *call) (answer, error) {
	t, err := e.cfg.Delivery.Topic(c.ctx, c.path["topic"])
	if err != nil {
		return answer{}, missing(err, "topic", c.path["topic"])
	}
	return encode(http.StatusOK, shownGroup(t))
}

func (e *edge) configureURLGroup(c *call) (answer, error) {
	var body headersRequest
	if err := decode(c.body, &body); err != nil {
		return answer{}, err
	}
	const prefix = "Upstash-Forward-"
	given := http.Header{}
	for name, value := range body.Headers {
		values, err := headerValues(value)
		if err != nil {
			return answer{}, &request.Error{Text: "headers." + name + " must be a string or an array of strings"}
		}
		canonical := textproto.CanonicalMIMEHeaderKey(prefix + name)
		given[canonical] = append(given[canonical], values...)
	}
	header, err := request.Forwarded(given, prefix)
	if refusal, ok := errors.AsType[*request.Error](err); ok { // of what the body says, not of a header
		return answer{}, &request.Error{Text: strings.Replace(refusal.Text, prefix, "headers.", 1), Cause: refusal.Cause}
	}
	if err != nil {
		return answer{}, err
	}
	if err := e.cfg.Delivery.SetTopicHeader(c.ctx, c.path["topic"], header); err != nil {
		return answer{}, missing(err, "topic", c.path["topic"])
	}
	return encode(http.StatusOK, empty{})
}

// deleteURLGroup also answers 200 for a group that does not exist (publish contract, section 6).
func (e *edge) deleteURLGroup(c *call) (answer, error) {
	if err := e.cfg.Delivery.DeleteTopic(c.ctx, c.path["topic"]); err != nil && !errors.Is(err, delivery.ErrNotFound) {
		return answer{}, err
	}
	return encode(http.StatusOK, empty{})
}

// endpointField is an item of endpoints, as errors name it.
func endpointField(i int) string { return "endpoints[" + strconv.Itoa(i) + "]" }

func (e *edge) upsertEndpoints(c *call) (answer, error) {
	topic := c.path["topic"]
	if err := checkName("the name of a URL group", topic); err != nil {
		return answer{}, err
	}
	var body endpointsRequest
	if err := decode(c.body, &body); err != nil {
		return answer{}, err
	}
	endpoints := make([]delivery.Endpoint, len(body.Endpoints))
	for i, given := range body.Endpoints {
		p := &endpoints[i]
		var err error
		if p.URL, err = e.endpointURL(endpointField(i)+".url", *given.URL); err != nil {
			return answer{}, err
		}
		if p.Name = firstNonEmpty(given.Name); p.Name != "" {
			if err := checkName(endpointField(i)+".name", p.Name); err != nil {
				return answer{}, err
			}
		}
	}
	if err := e.cfg.Delivery.UpsertEndpoints(c.ctx, topic, endpoints, e.maxEndpoints()); err != nil {
		return answer{}, missing(err, "topic", topic)
	}
	return encode(http.StatusOK, empty{})
}

func (e *edge) removeEndpoints(c *call) (answer, error) {
	var body endpointsRequest
	if err := decode(c.body, &body); err != nil {
		return answer{}, err
	}
	endpoints := make([]delivery.Endpoint, len(body.Endpoints))
	for i, given := range body.Endpoints {
		endpoints[i] = delivery.Endpoint{Name: firstNonEmpty(given.Name), URL: firstNonEmpty(given.URL)}
		if endpoints[i] == (delivery.Endpoint{}) {
			return answer{}, &request.Error{Text: endpointField(i) + " must have a name or a url"}
		}
		if strings.Contains(endpoints[i].Name+endpoints[i].URL, nul) {
			return answer{}, badBody(endpointField(i), nulRule)
		}
	}
	if err := e.cfg.Delivery.RemoveEndpoints(c.ctx, c.path["topic"], endpoints); err != nil {
		return answer{}, missing(err, "topic", c.path["topic"])
	}
	return encode(http.StatusOK, empty{})
}
