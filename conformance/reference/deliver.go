package reference

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// reply is what came of an attempt.
type reply struct {
	status int // 0 means that there was no answer
	header http.Header
	body   []byte
	fault  string // "" means that it was delivered
}

// startDue begins all attempts that may begin now. It is called whenever one more may, with the lock held.
func (b *Broker) startDue() {
	for t := b.nextDue(); t != nil; t = b.nextDue() {
		t.flying = true
		b.flying++
		b.begun(t)
		b.note(t, entry{state: "ACTIVE"})
		go b.attempt(t)
	}
	b.setAlarm()
}

// nextDue is the task that has waited longest of those whose attempt may begin; nil means that there is none.
func (b *Broker) nextDue() *task {
	var next *task
	for _, t := range b.pending {
		if t.flying || t.due.After(b.now()) || next != nil && !t.due.Before(next.due) {
			continue
		}
		if b.admitted(t) {
			next = t
		}
	}
	return next
}

// admitted asks the gates whether the attempt of a due task may begin.
func (b *Broker) admitted(t *task) bool {
	for _, admits := range b.gates {
		if !admits(t) {
			return false
		}
	}
	return true
}

// alarmHorizon is how far ahead what becomes due is waited for in real time. What is later, tests bring about with the clock.
const alarmHorizon = time.Minute

// setAlarm sees to what becomes due without anybody asking.
func (b *Broker) setAlarm() {
	var next time.Time
	for _, t := range b.pending {
		if t.due.After(b.now()) && (next.IsZero() || t.due.Before(next)) {
			next = t.due
		}
	}
	pause := next.Sub(b.now())
	if next.IsZero() || pause > alarmHorizon || !b.alarm.IsZero() && !next.Before(b.alarm) {
		return
	}
	b.alarm = next
	time.AfterFunc(pause+time.Millisecond, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.alarm = time.Time{}
		b.startDue()
	})
}

// catchUp does what the new time brings and waits until nothing is under way. The caller holds the lock, which is free meanwhile.
func (b *Broker) catchUp() {
	b.alarm = time.Time{} // those that are set are for a time that is over
	for _, tick := range b.ticks {
		tick()
	}
	b.startDue()
	for b.flying > 0 {
		b.quiet.Wait()
	}
}

// attempt makes an attempt and what follows from it.
func (b *Broker) attempt(t *task) {
	r := b.send(t)
	b.mu.Lock()
	defer b.mu.Unlock()
	t.flying = false
	b.conclude(t, r)
	b.startDue()
	b.flying--
	b.quiet.Broadcast()
}

var deliverer = &http.Client{
	Timeout:       5 * time.Second,
	Transport:     &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Second},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

const maxReply = 1 << 20

// queueScheme begins a target that is a partition of an ordered queue.
const queueScheme = "queue:"

// enqueue puts a message into an ordered queue.
func (b *Broker) enqueue(t *task) reply {
	name, partition, _ := strings.Cut(strings.TrimPrefix(t.url, queueScheme), "/")
	if partition == "" || b.has(QueuePartitionIgnored) {
		partition = defaultPartition
	}
	transaction := t.transactionID
	if transaction == "" || b.has(QueueTransactionLost) {
		transaction = t.publication.id
	}
	b.store([]pushItem{{queue: name, partition: partition, transactionID: transaction, payload: t.body}})
	return reply{status: http.StatusCreated}
}

func (b *Broker) send(t *task) reply {
	if strings.HasPrefix(t.url, queueScheme) {
		return b.enqueue(t)
	}
	ctx := context.Background()
	if t.timeout > 0 && !b.has(AttemptTimeoutIgnored) {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, t.timeout)
		defer cancel()
	}
	request, err := http.NewRequestWithContext(ctx, t.method, t.url, bytes.NewReader(t.body))
	if err != nil {
		return reply{fault: err.Error()}
	}
	request.Header = t.header.Clone()
	for name, value := range b.ownHeaders(t) {
		if value != "" {
			request.Header.Set(name, value)
		}
	}
	response, err := deliverer.Do(request)
	if err != nil {
		return reply{fault: err.Error()}
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxReply)) // what came of it is what counts
	r := reply{status: response.StatusCode, header: response.Header, body: body}
	if r.status/100 != 2 && (r.status/100 != 3 || !b.has(RedirectsSucceed)) {
		r.fault = fmt.Sprintf("the destination answered %d", r.status)
	}
	return r
}

// ownHeaders are those that every delivery carries; "" means none.
func (b *Broker) ownHeaders(t *task) map[string]string {
	retried := t.retried
	if b.has(RetriedFromOne) {
		retried++
	}
	id := t.publication.id
	if b.has(MessageIDPerAttempt) {
		id = newMessageID()
	}
	h := map[string]string{
		"Upstash-Message-Id": id, "Upstash-Retried": strconv.Itoa(retried), "Upstash-Schedule-Id": t.scheduleID,
		"Upstash-Topic-Name": t.topic, "Upstash-Caller-Ip": t.callerIP, "Upstash-Signature": b.signature(t),
	}
	if t.header.Get("User-Agent") == "" {
		h["User-Agent"] = "Upstash-QStash"
	}
	if b.has(CallerNotNamed) {
		delete(h, "Upstash-Caller-Ip")
	}
	h["Webhook-Id"], h["Webhook-Timestamp"] = id, strconv.FormatInt(time.Now().Unix(), 10)
	signed := id + "." + h["Webhook-Timestamp"] + "." + string(t.body)
	if b.has(WebhookWithoutTime) {
		signed = id + "." + string(t.body)
	}
	mac := hmac.New(sha256.New, []byte(b.signingKey()))
	mac.Write([]byte(signed))
	h["Webhook-Signature"] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	return h
}

// signature is a JSON Web Token about the destination and the body of a delivery, for five minutes.
func (b *Broker) signature(t *task) string {
	key := b.signingKey()
	body, subject := t.body, t.url
	if b.has(SignedWithoutBody) {
		body = nil
	}
	if b.has(SignedForHost) {
		scheme, rest, _ := strings.Cut(subject, "://")
		host, _, _ := strings.Cut(rest, "/")
		subject = scheme + "://" + host
	}
	sum, now := sha256.Sum256(body), time.Now()
	part := func(v map[string]any) string {
		text, err := json.Marshal(v)
		if err != nil {
			panic(err) // only values of this function are encoded
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	signed := part(map[string]any{"alg": "HS256", "typ": "JWT"}) + "." + part(map[string]any{
		"iss": "Upstash", "sub": subject, "iat": now.Unix(), "nbf": 0, "exp": now.Add(5 * time.Minute).Unix(),
		"jti": "jwt_" + uuid.NewString(), "body": base64.URLEncoding.EncodeToString(sum[:]),
	})
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(signed))
	return signed + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// conclude notes what came of an attempt, and decides what follows.
func (b *Broker) conclude(t *task, r reply) {
	told := &r
	if t.finished { // by a defect
		return
	}
	if r.fault == "" {
		b.note(t, entry{state: "DELIVERED", reply: told})
		b.finish(t)
		b.callBack(t, t.callback, r, "")
		return
	}
	b.note(t, entry{state: "ERROR", fault: r.fault, reply: told})
	retries := t.retries
	if b.has(OneRetryMore) {
		retries++
	}
	final := r.status == 489 && strings.EqualFold(r.header.Get("Upstash-Nonretryable-Error"), "true") && !b.has(NonRetryableRetried) ||
		r.status == 0 && b.has(NoAnswerFinal)
	switch {
	case t.cancelled:
		b.note(t, entry{state: "CANCELED"})
		b.finish(t)
	case final || t.retried >= retries:
		if !b.has(FailureNotLogged) {
			b.note(t, entry{state: "FAILED", fault: r.fault, reply: told})
		}
		b.finish(t)
		dead := b.bury(t, r)
		b.callBack(t, t.callback, r, "")
		b.callBack(t, t.failureCallback, r, dead)
	default:
		pause := b.pauseBefore(t, r)
		t.retried++
		t.due = b.now().Add(pause)
		b.note(t, entry{state: "RETRY", next: t.due, fault: r.fault, reply: told})
		if !b.has(CallbackAtEnd) {
			b.callBack(t, t.callback, r, "")
		}
		if b.has(FailureCallbackEarly) {
			b.callBack(t, t.failureCallback, r, "dlq_early")
		}
	}
}

// pauseBefore is the pause before the next attempt: what the destination asked for, else what the message says, else the backoff.
func (b *Broker) pauseBefore(t *task, r reply) time.Duration {
	expression := t.retryDelay
	if b.has(RetryDelayIgnored) {
		expression = ""
	}
	if pause, asked := b.asked(r.header); asked && (expression == "" || !b.has(RetryAfterLoses)) && !b.has(RetryAfterIgnored) {
		return pause
	}
	if expression != "" {
		retried, unit := float64(t.retried), float64(time.Millisecond)
		if b.has(RetryDelayFromOne) {
			retried++
		}
		if b.has(RetryDelaySeconds) {
			unit = float64(time.Second)
		}
		ms, err := evaluate(expression, retried)
		if err == nil {
			return time.Duration(min(max(0, ms*unit), float64(24*time.Hour)))
		}
	}
	factor := 2.0
	if b.has(BackoffSlower) {
		factor = 2.1
	}
	if b.has(BackoffFaster) {
		factor = 1.9
	}
	return time.Duration(min(86400, math.Exp(factor*float64(t.retried+1))) * float64(time.Second))
}

// asked is the pause that a destination asked for.
func (b *Broker) asked(h http.Header) (time.Duration, bool) {
	for _, name := range []string{"Retry-After", "X-Ratelimit-Reset"} {
		text := h.Get(name)
		pause, err := time.ParseDuration(text)
		if at, problem := http.ParseTime(text); problem == nil {
			pause, err = time.Until(at), nil
		}
		if b.has(RetryAfterSecondsOnly) {
			err = errExpression
		}
		if seconds, problem := strconv.ParseFloat(text, 64); problem == nil {
			pause, err = time.Duration(seconds*float64(time.Second)), nil
		}
		if err == nil && (pause <= 24*time.Hour || b.has(RetryAfterUnbounded)) {
			return max(0, pause), true
		}
	}
	return 0, false
}

var errExpression = errors.New("the expression cannot be read")

// evaluate computes a retry delay. Its grammar is a part of Go's.
func evaluate(expression string, retried float64) (float64, error) {
	tree, err := parser.ParseExpr(expression)
	if err != nil {
		return 0, errExpression
	}
	return compute(tree, retried)
}

func compute(tree ast.Expr, retried float64) (float64, error) {
	switch node := tree.(type) {
	case *ast.BasicLit:
		n, err := strconv.ParseFloat(node.Value, 64)
		if err != nil {
			return 0, errExpression
		}
		return n, nil
	case *ast.Ident:
		if node.Name != "retried" {
			return 0, errExpression
		}
		return retried, nil
	case *ast.ParenExpr:
		return compute(node.X, retried)
	case *ast.UnaryExpr:
		return operate(node.Op, []ast.Expr{&ast.BasicLit{Value: "0"}, node.X}, retried)
	case *ast.BinaryExpr:
		return operate(node.Op, []ast.Expr{node.X, node.Y}, retried)
	case *ast.CallExpr:
		name, ok := node.Fun.(*ast.Ident)
		if !ok {
			return 0, errExpression
		}
		return call(name.Name, node.Args, retried)
	}
	return 0, errExpression
}

func computeAll(trees []ast.Expr, retried float64) ([]float64, error) {
	values := make([]float64, len(trees))
	for i, tree := range trees {
		var err error
		if values[i], err = compute(tree, retried); err != nil {
			return nil, err
		}
	}
	return values, nil
}

func operate(op token.Token, operands []ast.Expr, retried float64) (float64, error) {
	v, err := computeAll(operands, retried)
	if err != nil {
		return 0, err
	}
	switch op { //nolint:exhaustive // the others are no part of the grammar
	case token.ADD:
		return v[0] + v[1], nil
	case token.SUB:
		return v[0] - v[1], nil
	case token.MUL:
		return v[0] * v[1], nil
	case token.QUO:
		return v[0] / v[1], nil
	}
	return 0, errExpression
}

func call(name string, args []ast.Expr, retried float64) (float64, error) {
	v, err := computeAll(args, retried)
	if err != nil {
		return 0, err
	}
	one := map[string]func(float64) float64{
		"sqrt": math.Sqrt, "abs": math.Abs, "exp": math.Exp, "floor": math.Floor, "ceil": math.Ceil, "round": math.Round,
	}[name]
	two := map[string]func(a, b float64) float64{"pow": math.Pow, "min": math.Min, "max": math.Max}[name]
	switch {
	case one != nil && len(v) == 1:
		return one(v[0]), nil
	case two != nil && len(v) == 2:
		return two(v[0], v[1]), nil
	}
	return 0, errExpression
}
