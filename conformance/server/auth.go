package server

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
	"github.com/posthorn/posthorn/openapi"
)

// admitted are the roles that pass each level but public.
var admitted = map[string][]string{
	"read-only":  {"read-only", "read-write", "admin"},
	"write-only": {"write-only", "read-write", "admin"},
	"read-write": {"read-write", "admin"},
	"admin":      {"admin"},
}

// anonymous is a head that shows no token.
func anonymous() http.Header { return http.Header{"Authorization": nil} }

// showing is a head with the given Authorization.
func showing(authorization string) http.Header { return http.Header{"Authorization": {authorization}} }

func bearer(token string) http.Header { return showing("Bearer " + token) }

// operations are those of a level that every target with queues has. Those below /testing/ are the suite's own, and may
// be absent; so may the publish half.
func operations(level string) []*openapi.Operation {
	return slices.DeleteFunc(suite.Description().Operations(), func(op *openapi.Operation) bool {
		return op.Access != level || strings.HasPrefix(op.Path, "/testing/") || !strings.HasPrefix(op.Profile, "queue-")
	})
}

// callWith calls an operation on things that do not exist, with a body that is no JSON where one is taken.
func callWith(ctx context.Context, t *suite.Target, op *openapi.Operation, head http.Header) suite.Answer {
	segments := strings.Split(op.Path, "/")
	for i, segment := range segments {
		if strings.HasPrefix(segment, "{") {
			segments[i] = url.PathEscape(t.Unique("nobody"))
		}
	}
	request := suite.Request{Operation: op.ID, Target: strings.Join(segments, "/"), Header: head}
	if takes, _ := op.HasBody(); takes {
		request.Body = strings.NewReader("{")
		request.Header = withJSON(head)
	}
	return t.Raw(ctx, request)
}

// withJSON adds to a head that the body is JSON, so that what is seen is not the fault of its absence.
func withJSON(head http.Header) http.Header {
	head = maps.Clone(head)
	head.Set("Content-Type", "application/json")
	return head
}

// harmless says whether callWith changes nothing that others use: an operation that changes something takes a body,
// which is refused, or names what does not exist.
func harmless(op *openapi.Operation) bool {
	takes, _ := op.HasBody()
	return takes || op.Method == http.MethodGet || strings.Contains(op.Path, "{")
}

func unauthorized(answer suite.Answer, what string) {
	Expect(answer.Status).To(Equal(401), what)
	flatError(answer)
}

func forbidden(answer suite.Answer, what string) {
	Expect(answer.Status).To(Equal(403), what)
	Expect(answer.Body).To(MatchJSON(`{"error":"Insufficient permissions"}`), what)
}

var _ = suite.Requirement("auth.missing-token", func(ctx context.Context, t *suite.Target) {
	for level := range admitted {
		for _, op := range operations(level) {
			unauthorized(callWith(ctx, t, op, anonymous()), op.ID)
		}
	}
}, suite.WireOnly, suite.Timeout(time.Minute))

var _ = suite.Requirement("auth.invalid-token", func(ctx context.Context, t *suite.Target) {
	token := t.Token("admin")
	for i, authorization := range []string{
		"Bearer " + t.Unique("nobody"), t.Unique("nobody"), "Bearer", "Bearer ", "Bearer " + token + "x", "Bearer x" + token,
		"Basic " + token, "Token " + token, token + " " + token, "Bearer a.b.c", "Bearer ..",
	} {
		for _, id := range []string{"push", "popQueue", "listQueues", "deleteQueue"} {
			op, _ := suite.Description().Operation(id)
			unauthorized(callWith(ctx, t, op, showing(authorization)), fmt.Sprintf("%s with invalid token %d", id, i))
		}
	}
}, suite.WireOnly, suite.Timeout(time.Minute))

var _ = suite.Requirement("auth.wrong-role", func(ctx context.Context, t *suite.Target) {
	for level, roles := range admitted {
		for _, op := range operations(level) {
			for _, role := range suite.Roles() {
				if !slices.Contains(roles, role) {
					forbidden(callWith(ctx, t, op, bearer(t.Token(role))), op.ID+" as "+role)
				}
			}
		}
	}
}, suite.WireOnly, suite.Timeout(time.Minute))

var _ = suite.Requirement("auth.role-suffices", func(ctx context.Context, t *suite.Target) {
	for level, roles := range admitted {
		for _, op := range operations(level) {
			if !harmless(op) {
				continue
			}
			for _, role := range roles {
				Expect(callWith(ctx, t, op, bearer(t.Token(role))).Status).NotTo(Or(Equal(401), Equal(403)), op.ID+" as "+role)
			}
		}
	}
}, suite.WireOnly, suite.Timeout(time.Minute))

var _ = suite.Requirement("auth.public", func(ctx context.Context, t *suite.Target) {
	for _, op := range operations("public") {
		for what, head := range map[string]http.Header{"no token": anonymous(), "a token that nobody has": bearer(t.Unique("nobody"))} {
			Expect(callWith(ctx, t, op, head).Status).NotTo(Or(Equal(401), Equal(403)), op.ID+" with "+what)
		}
	}
}, suite.WireOnly)

var _ = suite.Requirement("auth.header", func(ctx context.Context, t *suite.Target) {
	token := t.Token("read-only")
	for _, form := range []string{"Bearer %s", "bearer %s", "BEARER %s", "bEARER %s", "%s"} {
		answer := t.Raw(ctx, suite.Request{Operation: "listQueues", Header: showing(fmt.Sprintf(form, token))})
		Expect(answer.Status).To(Equal(200), form)
	}
}, suite.WireOnly)

var _ = suite.Requirement("auth.unknown-path", func(ctx context.Context, t *suite.Target) {
	path := "/api/v1/" + t.Unique("nothing")
	for _, method := range []string{"GET", "POST", "DELETE"} {
		request := suite.Request{Method: method, Target: path, Header: anonymous()}
		unauthorized(t.Raw(ctx, request), method)
		for _, role := range suite.Roles() {
			request.Header = bearer(t.Token(role))
			answer := t.Raw(ctx, request)
			if slices.Contains(admitted["read-write"], role) {
				Expect(answer.Status).To(Equal(404), method+" as "+role)
			} else {
				forbidden(answer, method+" as "+role)
			}
		}
	}
}, suite.WireOnly)

var _ = suite.Requirement("auth.early", func(ctx context.Context, t *suite.Target) {
	ctx, cancel := context.WithTimeout(ctx, t.Patience())
	defer cancel()
	for token, want := range map[string]int{t.Unique("nobody"): 401, t.Token("read-only"): 403} {
		answer := t.BytesAs(ctx, token, "POST", "POST /api/v1/push HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000000\r\n\r\n{")
		Expect(answer.Status).To(Equal(want))
	}
}, suite.WireOnly)

// as calls one operation of a level with a token.
func as(ctx context.Context, t *suite.Target, level, token string) suite.Answer {
	id := map[string]string{"read-only": "listQueues", "write-only": "push", "read-write": "popQueue", "admin": "deleteQueue"}[level]
	op, _ := suite.Description().Operation(id)
	return callWith(ctx, t, op, bearer(token))
}

// accepted asserts that a token with a role that may read lets its owner read.
func accepted(ctx context.Context, t *suite.Target, claims map[string]any, what string) {
	Expect(as(ctx, t, "read-only", t.Sign(claims)).Status).To(Equal(200), what)
}

func refused(ctx context.Context, t *suite.Target, token, what string) {
	for level := range admitted {
		unauthorized(as(ctx, t, level, token), what)
	}
}

var _ = suite.Requirement("auth.jwt.roles", func(ctx context.Context, t *suite.Target) {
	for _, c := range []struct {
		claims map[string]any
		roles  []string
	}{
		{map[string]any{"role": "read-only"}, []string{"read-only"}},
		{map[string]any{"role": "write-only"}, []string{"write-only"}},
		{map[string]any{"role": "read-write"}, []string{"read-write"}},
		{map[string]any{"role": "admin"}, []string{"admin"}},
		{map[string]any{"roles": []string{"admin"}}, []string{"admin"}},
		{map[string]any{"roles": []string{"nothing", "read-only", "write-only"}}, []string{"read-only", "write-only"}},
		{map[string]any{"role": "read-only", "roles": []string{"write-only"}}, []string{"read-only", "write-only"}},
	} {
		token := t.Sign(c.claims)
		for level, roles := range admitted {
			what := fmt.Sprintf("%v at level %s", c.claims, level)
			answer := as(ctx, t, level, token)
			if slices.ContainsFunc(c.roles, func(role string) bool { return slices.Contains(roles, role) }) {
				Expect(answer.Status).NotTo(Or(Equal(401), Equal(403)), what)
			} else {
				forbidden(answer, what)
			}
		}
	}
}, suite.WireOnly)

var _ = suite.Requirement("auth.jwt.no-role", func(ctx context.Context, t *suite.Target) {
	for _, claims := range []map[string]any{{}, {"sub": "somebody"}, {"role": ""}, {"role": "nothing"}, {"roles": []string{}}} {
		for level := range admitted {
			forbidden(as(ctx, t, level, t.Sign(claims)), fmt.Sprintf("%v at level %s", claims, level))
		}
	}
}, suite.WireOnly)

// maxSkew is more than any clock skew that a target may be configured with.
const maxSkew = 24 * time.Hour

var _ = suite.Requirement("auth.jwt.times", func(ctx context.Context, t *suite.Target) {
	now := t.Now(ctx)
	accepted(ctx, t, map[string]any{"role": "admin"}, "neither exp nor nbf")
	accepted(ctx, t, map[string]any{"role": "admin", "exp": now.Add(maxSkew).Unix(), "nbf": now.Add(-maxSkew).Unix()}, "within its time")
	refused(ctx, t, t.Sign(map[string]any{"role": "admin", "exp": now.Add(-maxSkew).Unix()}), "exp has passed")
	refused(ctx, t, t.Sign(map[string]any{"role": "admin", "nbf": now.Add(maxSkew).Unix()}), "nbf is to come")
}, suite.WireOnly)

var _ = suite.Requirement("auth.jwt.skew", func(ctx context.Context, t *suite.Target) {
	now := t.Now(ctx)
	accepted(ctx, t, map[string]any{"role": "admin", "exp": now.Add(-10 * time.Second).Unix()}, "exp passed 10 s ago")
	accepted(ctx, t, map[string]any{"role": "admin", "nbf": now.Add(20 * time.Second).Unix()}, "nbf is 20 s ahead")
}, suite.WireOnly)

var _ = suite.Requirement("auth.jwt.signature", func(ctx context.Context, t *suite.Target) {
	claims := map[string]any{"role": "admin", "sub": "mallory"}
	good := t.Sign(claims)
	Expect(as(ctx, t, "read-only", good).Status).To(Equal(200), "the genuine token")
	parts := strings.Split(good, ".")
	reader := strings.Split(t.Sign(map[string]any{"role": "read-only"}), ".")
	unsigned := strings.Split(suite.SignWith("", map[string]any{"alg": "none"}, claims), ".")
	for what, token := range map[string]string{
		"the signature of another token": parts[0] + "." + parts[1] + "." + reader[2],
		"another secret":                 suite.SignWith(t.Unique("secret"), map[string]any{"alg": "HS256", "typ": "JWT"}, claims),
		"an empty secret":                suite.SignWith("", map[string]any{"alg": "HS256", "typ": "JWT"}, claims),
		"algorithm none":                 unsigned[0] + "." + unsigned[1] + ".",
		"algorithm none, signed":         unsigned[0] + "." + unsigned[1] + "." + parts[2],
		"no signature":                   parts[0] + "." + parts[1] + ".",
		"two parts":                      parts[0] + "." + parts[1],
	} {
		refused(ctx, t, token, what)
	}
}, suite.WireOnly)

var _ = suite.Requirement("push.producer-sub.token", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	for _, sub := range []string{"alice", "büro 7/\"q\""} {
		answer := t.Raw(ctx, suite.Request{
			Operation: "push", Header: withJSON(bearer(t.Sign(map[string]any{"role": "write-only", "sub": sub}))),
			Body: strings.NewReader(`{"items":[{"queue":` + quote(queue) + `,"payload":1,"producerSub":"somebody"},{"queue":` + quote(queue) + `,"partition":"two","payload":2}]}`),
		})
		Expect(answer.Status / 100).To(Equal(2))
		messages := drain(ctx, t, queue)
		Expect(messages).To(HaveLen(2))
		for _, m := range messages {
			Expect(m.ProducerSub).To(HaveValue(Equal(sub)))
		}
	}
})

var _ = suite.Requirement("push.access.write-only", func(ctx context.Context, t *suite.Target) {
	for level := range admitted {
		for _, op := range operations(level) {
			if op.ID != "push" {
				forbidden(callWith(ctx, t, op, bearer(t.Token("write-only"))), op.ID)
			}
		}
	}
	answer := t.Raw(ctx, suite.Request{
		Operation: "push", Header: withJSON(bearer(t.Token("write-only"))), Body: strings.NewReader(string(pushBody(item{queue: t.Queue(), payload: "1"}))),
	})
	Expect(answer.Status / 100).To(Equal(2))
}, suite.WireOnly)
