package server

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

var _ = suite.Requirement("pop.group.independent", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 3)
	for _, group := range []string{"a", "b", "A"} {
		answer := pop(ctx, t, queue, "consumerGroup="+group)
		Expect(answer.data()).To(Equal([]string{"0", "1", "2"}), "group %s", group)
		Expect(answer.ConsumerGroup).To(Equal(group))
	}
	Expect(pop(ctx, t, queue).data()).To(Equal([]string{"0", "1", "2"}), "queue mode")
})

var _ = suite.Requirement("pop.group.default", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 2)
	answer := pop(ctx, t, queue, "batch=1", "autoAck=true")
	Expect(answer.ConsumerGroup).To(Equal(modeGroup))
	answer = pop(ctx, t, queue, "consumerGroup="+modeGroup)
	Expect(answer.data()).To(Equal([]string{"1"}))
})

var _ = suite.Requirement("pop.group.name", func(ctx context.Context, t *suite.Target) {
	for _, group := range []string{strings.Repeat("g", 513), strings.Repeat("é", 257), "a\x00", "a\nb", "\x7f", "\u0085"} {
		badQueries(ctx, t, "consumerGroup="+url.QueryEscape(group))
	}
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	for _, group := range []string{strings.Repeat("g", 512), "a b/ü", "."} {
		answer := t.Raw(ctx, suite.Request{Operation: "popQueue", Target: "/api/v1/pop/queue/" + queue + "?consumerGroup=" + url.QueryEscape(group)})
		Expect(answer.Status).To(Equal(200), "group %.20q", group)
		Expect(decodePop(suite.Outcome{Status: 200, Body: answer.Body}).ConsumerGroup).To(Equal(group))
	}
}, suite.WireOnly)

var _ = suite.Requirement("pop.subscription.all", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 3)
	Expect(pop(ctx, t, queue, "consumerGroup=a").data()).To(Equal([]string{"0", "1", "2"}), "by default")
	Expect(pop(ctx, t, queue, "consumerGroup=b", "subscriptionMode=all").data()).To(Equal([]string{"0", "1", "2"}), "with mode all")
})

// startsNew asserts that a group that first pops with params gets what is pushed later only.
func startsNew(ctx context.Context, t *suite.Target, params ...string) {
	queue := t.Queue()
	params = append(params, "consumerGroup=g")
	pushOne(ctx, t, item{queue: queue, payload: `"old"`})
	Expect(pop(ctx, t, queue, params...).Messages).To(BeEmpty(), "the backlog with %v", params)
	pushOne(ctx, t, item{queue: queue, payload: `"new"`})
	Expect(pop(ctx, t, queue, params...).data()).To(Equal([]string{`"new"`}), "with %v", params)
}

var _ = suite.Requirement("pop.subscription.new", func(ctx context.Context, t *suite.Target) {
	startsNew(ctx, t, "subscriptionMode=new")
	startsNew(ctx, t, "subscriptionMode=new-only")
})

var _ = suite.Requirement("pop.subscription.new", func(ctx context.Context, t *suite.Target) {
	startsNew(ctx, t, "subscriptionFrom=now")
})

var _ = suite.Requirement("pop.subscription.from-time", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	var times []string
	for i := range 3 {
		pushOne(ctx, t, item{queue: queue, payload: fmt.Sprint(i)})
		t.Elapse(ctx, 20*time.Millisecond)
	}
	for _, m := range drain(ctx, t, queue, "consumerGroup=reader") {
		times = append(times, m.CreatedAt)
	}
	Expect(times).To(HaveLen(3))
	Expect(pop(ctx, t, queue, "consumerGroup=second", "subscriptionFrom="+times[1]).data()).To(Equal([]string{"1", "2"}))
	Expect(pop(ctx, t, queue, "consumerGroup=first", "subscriptionFrom=2000-01-01T00:00:00Z").data()).To(Equal([]string{"0", "1", "2"}))
})

var _ = suite.Requirement("pop.subscription.from-invalid", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 2)
	for i, from := range []string{"yesterday", "12345", "2020-13-45", "NOW!", "now;"} {
		answer := pop(ctx, t, queue, fmt.Sprintf("consumerGroup=g%d", i), "subscriptionFrom="+from)
		Expect(answer.data()).To(Equal([]string{"0", "1"}), "subscriptionFrom %q", from)
	}
})

var _ = suite.Requirement("pop.subscription.seed-only", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 3)
	Expect(pop(ctx, t, queue, "consumerGroup=g", "batch=1", "autoAck=true").data()).To(Equal([]string{"0"}))
	Expect(pop(ctx, t, queue, "consumerGroup=g", "batch=1", "autoAck=true", "subscriptionMode=new").data()).To(Equal([]string{"1"}))
	Expect(pop(ctx, t, queue, "consumerGroup=g", "batch=1", "autoAck=true", "subscriptionFrom=now").data()).To(Equal([]string{"2"}))

	late := t.Queue()
	Expect(pop(ctx, t, late, "consumerGroup=g").Messages).To(BeEmpty())
	pushNumbers(ctx, t, late, 1)
	Expect(pop(ctx, t, late, "consumerGroup=g", "subscriptionMode=new").data()).To(Equal([]string{"0"}), "pushed after the first pop")
})

var _ = suite.Requirement("pop.subscription.queue-mode", func(ctx context.Context, t *suite.Target) {
	for _, param := range []string{"subscriptionMode=new", "subscriptionMode=new-only", "subscriptionFrom=now"} {
		queue := t.Queue()
		pushNumbers(ctx, t, queue, 2)
		Expect(pop(ctx, t, queue, param).data()).To(Equal([]string{"0", "1"}), param)
	}
})

var _ = suite.Requirement("pop.subscription.registration-holds", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "old", 1)
	Expect(pop(ctx, t, queue, "consumerGroup=g", "subscriptionMode=new").Messages).To(BeEmpty(), "at registration")
	pushNumbersTo(ctx, t, queue, "later", 3)
	answer := pop(ctx, t, queue, "consumerGroup=g", "subscriptionMode=new", "partitions=0")
	Expect(answer.data()).To(Equal([]string{"0", "1", "2"}))
	Expect(answer.Messages).To(HaveEach(HaveField("Partition", "later")))
})
