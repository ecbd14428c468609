package server

import (
	"context"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// publishFlow publishes a message with a flow control key and returns its id; headers are in pairs.
func publishFlow(ctx context.Context, t *suite.Target, destination, key, value string, headers ...string) string {
	header := pairs(append([]string{"Upstash-Flow-Control-Key", key, "Upstash-Flow-Control-Value", value}, headers...))
	outcome := t.Call(ctx, "publish", suite.Args{
		Path: map[string]string{"destination": destination}, Header: header, Body: []byte("x"),
	})
	if outcome.Status != http.StatusOK {
		suite.Failf(1, "the publish was answered %d %s", outcome.Status, outcome.Body)
	}
	var answer struct{ MessageID string }
	decode(outcome.Body, &answer)
	return answer.MessageID
}

// aFlow is a flow control key as it is read.
type aFlow struct {
	FlowControlKey      string
	WaitListSize        int
	ParallelismMax      int
	ParallelismCount    int
	RateMax             int
	RateCount           int
	RatePeriod          int
	RatePeriodStart     int64
	IsPaused            bool
	IsPinnedParallelism bool
	IsPinnedRate        bool
}

// tryFlow performs an operation on a flow control key; params are name=value.
func tryFlow(ctx context.Context, t *suite.Target, operation, key string, params ...string) suite.Outcome {
	return t.Call(ctx, operation, suite.Args{Path: map[string]string{"flowControlKey": key}, Query: query(params)})
}

// onFlow is tryFlow that must succeed.
func onFlow(ctx context.Context, t *suite.Target, operation, key string, params ...string) {
	if outcome := tryFlow(ctx, t, operation, key, params...); outcome.Status != http.StatusOK {
		suite.Failf(1, "%s was answered %d %s", operation, outcome.Status, outcome.Body)
	}
}

func readFlow(ctx context.Context, t *suite.Target, key string) aFlow {
	outcome := tryFlow(ctx, t, "getFlowControl", key)
	if outcome.Status != http.StatusOK {
		suite.Failf(1, "the flow control key was answered %d %s", outcome.Status, outcome.Body)
	}
	var f aFlow
	decode(outcome.Body, &f)
	return f
}

// bounds are the values of a key: parallelism, rate, and period in seconds.
type bounds struct{ parallelism, rate, period int }

func boundsOf(f aFlow) bounds { return bounds{f.ParallelismMax, f.RateMax, f.RatePeriod} }

var _ = suite.Requirement("listFlowControl.searched", func(ctx context.Context, t *suite.Target) {
	hook, word := t.Hook(200), t.Unique("Tenant")
	keys := []string{word, word + "/1", "of-" + strings.ToUpper(word)}
	for _, key := range append(keys, t.Unique("other")) {
		publishFlow(ctx, t, hook.URL, key, "parallelism=1")
	}
	found := func(params ...string) []string {
		outcome := t.Call(ctx, "listFlowControl", suite.Args{Query: query(params)})
		Expect(outcome.Status).To(Equal(200), "%s", outcome.Body)
		var list []aFlow
		decode(outcome.Body, &list)
		names := []string{}
		for _, f := range list {
			names = append(names, f.FlowControlKey)
		}
		return names
	}
	Expect(found("search=" + word)).To(ConsistOf(keys))
	Expect(found("search=" + strings.ToLower(word))).To(ConsistOf(keys))
	Expect(found("search=" + word + "/")).To(ConsistOf(keys[1]))
	Expect(found("search=" + word + "%")).To(BeEmpty())
	Expect(found()).To(ContainElements(keys), "without search")
})

var _ = suite.Requirement("getFlowControl.exists", func(ctx context.Context, t *suite.Target) {
	hook, key := t.Hook(200), t.Unique("key")+"/a b%"
	missing := tryFlow(ctx, t, "getFlowControl", key)
	Expect(missing.Status).To(Equal(404), "%s", missing.Body)
	for _, change := range []string{"pauseFlowControl", "resumeFlowControl", "unpinFlowControl", "resetFlowRate"} {
		Expect(tryFlow(ctx, t, change, key).Status).To(Equal(404), "%s of an unknown key", change)
	}
	Expect(tryFlow(ctx, t, "pinFlowControl", key, "rate=1").Status).To(Equal(404), "pinFlowControl of an unknown key")
	publishFlow(ctx, t, hook.URL, key, "parallelism=2, rate=30, period=1m", "Upstash-Delay", "1h", "Upstash-Retries", "0")
	f := readFlow(ctx, t, key)
	Expect(f.FlowControlKey).To(Equal(key))
	Expect(boundsOf(f)).To(Equal(bounds{2, 30, 60}))
	Expect([]bool{f.IsPaused, f.IsPinnedParallelism, f.IsPinnedRate}).To(Equal([]bool{false, false, false}))
})

var _ = suite.Requirement("getFlowControl.parallelism", func(ctx context.Context, t *suite.Target) {
	hook, key := held(t, 200), t.Unique("key")
	for range 4 {
		publishFlow(ctx, t, hook.URL, key, "parallelism=2")
	}
	for ended := range 3 {
		hook.Await(ctx, min(4, ended+2))
		Eventually(func() []int {
			f := readFlow(ctx, t, key)
			return []int{f.ParallelismCount, f.WaitListSize}
		}).WithTimeout(t.Patience()).Should(Equal([]int{2, 2 - ended}), "under way and waiting, after %d have ended", ended)
		Expect(hook.Deliveries()).To(HaveLen(ended + 2))
		hook.let(1)
	}
	hook.let(1)
	Eventually(func() int { return readFlow(ctx, t, key).ParallelismCount }).WithTimeout(t.Patience()).Should(Equal(0), "after all")
	Expect(hook.Deliveries()).To(HaveLen(4))
})

var _ = suite.Requirement("getFlowControl.parallelism", func(ctx context.Context, t *suite.Target) {
	failing, hook, key := t.Hook(500), t.Hook(200), t.Unique("key")
	publishFlow(ctx, t, failing.URL, key, "parallelism=1", "Upstash-Retries", "1", "Upstash-Retry-Delay", "36000000")
	failing.Await(ctx, 1)
	publishFlow(ctx, t, hook.URL, key, "parallelism=1")
	hook.Await(ctx, 1) // one that waits for its retry is not under way
})

var _ = suite.Requirement("getFlowControl.rate", func(ctx context.Context, t *suite.Target) {
	hook, key := t.Hook(200), t.Unique("key")
	for range 5 {
		publishFlow(ctx, t, hook.URL, key, "rate=2,period=10m")
	}
	hook.Await(ctx, 2)
	t.Advance(ctx, 9*time.Minute)
	Expect(hook.Deliveries()).To(HaveLen(2), "before the first period is over")
	f := readFlow(ctx, t, key)
	Expect([]int{f.RateCount, f.WaitListSize}).To(Equal([]int{2, 3}), "begun in the period, and waiting")
	t.Advance(ctx, 2*time.Minute)
	Expect(hook.Deliveries()).To(HaveLen(4), "in the second period")
	t.Advance(ctx, 11*time.Minute)
	Expect(hook.Deliveries()).To(HaveLen(5), "in the third period")
})

var _ = suite.Requirement("getFlowControl.rate", func(ctx context.Context, t *suite.Target) {
	hook, key := t.Hook(500), t.Unique("key")
	publishFlow(ctx, t, hook.URL, key, "rate=1, period=10m", "Upstash-Retries", "1", "Upstash-Retry-Delay", "1000")
	settled(ctx, t, hook)
	t.Advance(ctx, 9*time.Minute)
	Expect(hook.Deliveries()).To(HaveLen(1), "a retry before the period is over")
	t.Advance(ctx, 2*time.Minute)
	Expect(hook.Deliveries()).To(HaveLen(2), "a retry after the period")
})

var _ = suite.Requirement("getFlowControl.latest", func(ctx context.Context, t *suite.Target) {
	hook, key := t.Hook(200), t.Unique("key")
	for _, message := range []struct {
		value string
		want  bounds
	}{
		{"parallelism=5, rate=10, period=1m", bounds{5, 10, 60}},
		{"rate=3,period=2h", bounds{0, 3, 7200}},
		{"parallelism=2", bounds{2, 0, 1}},
		{"rate=9, period=7", bounds{0, 9, 7}},
	} {
		publishFlow(ctx, t, hook.URL, key, message.value)
		Expect(boundsOf(readFlow(ctx, t, key))).To(Equal(message.want), "after %s", message.value)
	}
})

var _ = suite.Requirement("getFlowControl.message", func(ctx context.Context, t *suite.Target) {
	hook, key := t.Hook(200), t.Unique("key")
	type values struct {
		FlowControlKey            string
		Parallelism, Rate, Period *int
	}
	two, three, minute, second := 2, 3, 60, 1
	for value, want := range map[string]values{
		"parallelism=2, rate=3, period=1m": {key, &two, &three, &minute},
		"parallelism=2":                    {key, &two, nil, &second},
		"rate=3":                           {key, nil, &three, &second},
	} {
		id := publishFlow(ctx, t, hook.URL, key, value, "Upstash-Delay", "1h", "Upstash-Retries", "0")
		outcome := t.Call(ctx, "getPublished", suite.Args{Path: map[string]string{"messageId": id}})
		Expect(outcome.Status).To(Equal(200), "%s", outcome.Body)
		var got values
		decode(outcome.Body, &got)
		Expect(got).To(Equal(want), "%s", value)
	}
})

var _ = suite.Requirement("getFlowControl.callbacks", func(ctx context.Context, t *suite.Target) {
	hook, told, key := t.Hook(200), t.Hook(200), t.Unique("key")
	for range 2 {
		publishFlow(ctx, t, hook.URL, key, "rate=1, period=1d", "Upstash-Callback", told.URL)
	}
	told.Await(ctx, 1)
	t.Elapse(ctx, 200*time.Millisecond)
	Expect(hook.Deliveries()).To(HaveLen(1))
	f := readFlow(ctx, t, key)
	Expect([]int{f.RateCount, f.WaitListSize}).To(Equal([]int{1, 1}), "begun in the period, and waiting")
})

var _ = suite.Requirement("getFlowControl.rule", func(ctx context.Context, t *suite.Target) {
	hook, key := t.Hook(200), t.Unique("key")
	refused := func(headers ...string) {
		answer := t.Raw(ctx, suite.Request{
			Operation: "publish", Target: "/v2/publish/" + hook.URL, Header: pairs(headers), Body: strings.NewReader("x"),
		})
		if answer.Status != http.StatusBadRequest {
			suite.Failf(1, "a publish with %q was answered %d %s", headers, answer.Status, answer.Body)
		}
	}
	refused("Upstash-Flow-Control-Key", key)
	refused("Upstash-Flow-Control-Value", "rate=1")
	for _, value := range []string{
		"period=1m", "rate=0", "rate=-1", "rate=x", "parallelism=0", "parallelism=1.5", "rate=1,period=8d", "rate=1,period=0s", "rate=1, period=604801",
	} {
		refused("Upstash-Flow-Control-Key", key, "Upstash-Flow-Control-Value", value)
	}
	Expect(tryFlow(ctx, t, "getFlowControl", key).Status).To(Equal(404))
	publishFlow(ctx, t, hook.URL, key, "rate=1,period=7d")
	Expect(bodies(hook.Await(ctx, 1))).To(HaveLen(1))
}, suite.WireOnly)

// aKey makes a key known that bounds nothing of what a spec sends.
func aKey(ctx context.Context, t *suite.Target) string {
	hook, key := t.Hook(200), t.Unique("key")
	publishFlow(ctx, t, hook.URL, key, "parallelism=100")
	hook.Await(ctx, 1)
	Eventually(func() int { return readFlow(ctx, t, key).ParallelismCount }).WithTimeout(t.Patience()).Should(Equal(0), "when its first delivery has ended")
	return key
}

var _ = suite.Requirement("pauseFlowControl.done", func(ctx context.Context, t *suite.Target) {
	hook, key := t.Hook(200), aKey(ctx, t)
	for range 2 {
		onFlow(ctx, t, "pauseFlowControl", key)
		Expect(readFlow(ctx, t, key).IsPaused).To(BeTrue())
	}
	publishFlow(ctx, t, hook.URL, key, "parallelism=100")
	t.Elapse(ctx, 200*time.Millisecond)
	Expect(hook.Deliveries()).To(BeEmpty())
	f := readFlow(ctx, t, key)
	Expect(f.IsPaused).To(BeTrue(), "after another message")
	Expect(f.WaitListSize).To(Equal(1))
})

var _ = suite.Requirement("resumeFlowControl.done", func(ctx context.Context, t *suite.Target) {
	hook, key := t.Hook(200), aKey(ctx, t)
	onFlow(ctx, t, "pauseFlowControl", key)
	for range 3 {
		publishFlow(ctx, t, hook.URL, key, "parallelism=100")
	}
	for range 2 {
		onFlow(ctx, t, "resumeFlowControl", key)
		hook.Await(ctx, 3)
		Expect(readFlow(ctx, t, key).IsPaused).To(BeFalse())
	}
})

var _ = suite.Requirement("pinFlowControl.pinned", func(ctx context.Context, t *suite.Target) {
	hook, key := t.Hook(200), aKey(ctx, t)
	onFlow(ctx, t, "pinFlowControl", key, "parallelism=70")
	publishFlow(ctx, t, hook.URL, key, "parallelism=80, rate=90, period=1m")
	f := readFlow(ctx, t, key)
	Expect(boundsOf(f)).To(Equal(bounds{70, 90, 60}), "with a pinned parallelism")
	Expect([]bool{f.IsPinnedParallelism, f.IsPinnedRate}).To(Equal([]bool{true, false}))

	onFlow(ctx, t, "pinFlowControl", key, "rate=50", "period=20")
	publishFlow(ctx, t, hook.URL, key, "parallelism=80, rate=90, period=1m")
	f = readFlow(ctx, t, key)
	Expect(boundsOf(f)).To(Equal(bounds{70, 50, 20}), "with all pinned")
	Expect([]bool{f.IsPinnedParallelism, f.IsPinnedRate}).To(Equal([]bool{true, true}))
})

var _ = suite.Requirement("pinFlowControl.rule", func(ctx context.Context, t *suite.Target) {
	key := aKey(ctx, t)
	before := readFlow(ctx, t, key)
	for _, params := range []string{"", "?rate=0", "?rate=x", "?parallelism=-1", "?parallelism=70&rate=0", "?period=8d", "?rate=50&period=0s"} {
		answer := t.Raw(ctx, suite.Request{Operation: "pinFlowControl", Target: "/v2/flowControl/" + key + "/pin" + params})
		Expect(answer.Status).To(Equal(400), "%s: %s", params, answer.Body)
	}
	Expect(readFlow(ctx, t, key)).To(Equal(before))
}, suite.WireOnly)

var _ = suite.Requirement("unpinFlowControl.done", func(ctx context.Context, t *suite.Target) {
	hook, key := t.Hook(200), aKey(ctx, t)
	pinned := func() []bool {
		f := readFlow(ctx, t, key)
		return []bool{f.IsPinnedParallelism, f.IsPinnedRate}
	}
	onFlow(ctx, t, "pinFlowControl", key, "parallelism=70", "rate=50", "period=20")
	onFlow(ctx, t, "unpinFlowControl", key, "parallelism=true")
	Expect(pinned()).To(Equal([]bool{false, true}))
	publishFlow(ctx, t, hook.URL, key, "parallelism=80, rate=90, period=1m")
	Expect(boundsOf(readFlow(ctx, t, key))).To(Equal(bounds{80, 50, 20}), "with the parallelism unpinned")
	onFlow(ctx, t, "pinFlowControl", key, "parallelism=70")
	onFlow(ctx, t, "unpinFlowControl", key)
	Expect(pinned()).To(Equal([]bool{false, false}))
	publishFlow(ctx, t, hook.URL, key, "parallelism=80, rate=90, period=1m")
	Expect(boundsOf(readFlow(ctx, t, key))).To(Equal(bounds{80, 90, 60}), "with both unpinned")
})

var _ = suite.Requirement("resetFlowRate.done", func(ctx context.Context, t *suite.Target) {
	hook, key := t.Hook(200), t.Unique("key")
	for range 5 {
		publishFlow(ctx, t, hook.URL, key, "rate=2, period=1h")
	}
	settled(ctx, t, hook)
	t.Advance(ctx, 30*time.Minute)
	Expect(hook.Deliveries()).To(HaveLen(2))
	onFlow(ctx, t, "resetFlowRate", key)
	hook.Await(ctx, 4)
	t.Advance(ctx, 50*time.Minute)
	Expect(hook.Deliveries()).To(HaveLen(4), "in the new period")
	Expect(readFlow(ctx, t, key).RateCount).To(Equal(2))
	t.Advance(ctx, 20*time.Minute)
	Expect(hook.Deliveries()).To(HaveLen(5), "after the new period")
})

var _ = suite.Requirement("getGlobalParallelism.read", func(ctx context.Context, t *suite.Target) {
	const under = 3
	hook := held(t, 200)
	for range under {
		publishFlow(ctx, t, hook.URL, t.Unique("key"), "parallelism=1")
	}
	hook.Await(ctx, under)
	read := func() (figures struct{ ParallelismMax, ParallelismCount int }) {
		outcome := t.Call(ctx, "getGlobalParallelism", suite.Args{})
		Expect(outcome.Status).To(Equal(200), "%s", outcome.Body)
		decode(outcome.Body, &figures)
		return figures
	}
	figures := read()
	Expect(figures.ParallelismMax).To(BeNumerically(">=", under))
	Expect(figures.ParallelismCount).To(BeNumerically(">=", under))
})
