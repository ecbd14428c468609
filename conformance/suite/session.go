package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// Settings say what is tested and how.
type Settings struct {
	// Target is the base URL of the implementation under test, for instance http://127.0.0.1:6632. Required.
	Target string
	// Capabilities that the target has. Default none.
	Capabilities []string
	// Through starts the client library through which the specs run. nil means plain HTTP.
	Through Starter
	// Tokens are one token of each role: read-only, write-only, read-write, admin. With the capability auth all are
	// required. Specs that are not about tokens use that of admin; without it they send none.
	Tokens map[string]string
	// SigningSecret signs HS256 tokens that the target accepts. Required with the capability signing.
	SigningSecret string
	// Listen is the address on which the suite takes deliveries, with the capability webhooks. "" means a free port of
	// 127.0.0.1.
	Listen string
	// Advertise is the URL under which the target reaches Listen. "" means http:// and the address listened on.
	Advertise string
	// Patience bounds every wait for something that the target should do by itself, such as waking a parked pop.
	// 0 means 5 s.
	Patience time.Duration
}

// DefaultPatience is the Patience of settings that give none. The slowest thing that a conforming target may do
// is to wake a pop that is parked on another broker, within 1 s; the rest is for noisy machines.
const DefaultPatience = 5 * time.Second

// Session is a connection to one target. Its specs run one at a time.
type Session struct {
	settings Settings
	base     string
	client   *http.Client
	through  *through // nil over plain HTTP
	prefix   string   // of this session's queue names
	names    atomic.Int64
	busy     atomic.Bool
	identity Identity
	hooks    *hooks // nil without the capability webhooks
}

// Identity is what the target says of itself at /health.
type Identity struct {
	Engine  string `json:"engine"`
	Version string `json:"version"`
}

// Open checks that the target answers and starts the program peer, if there is one. Its errors are all faults of
// the configuration or the environment, not of the target's conformance.
func Open(ctx context.Context, settings Settings) (*Session, error) {
	target, err := url.Parse(settings.Target)
	if err != nil || target.Host == "" || (target.Scheme != "http" && target.Scheme != "https") {
		return nil, fmt.Errorf("target %q is not an http or https URL", settings.Target)
	}
	if unknown := unknownCapabilities(settings.Capabilities); len(unknown) > 0 {
		return nil, fmt.Errorf("unknown capabilities: %s (known: %s)",
			strings.Join(unknown, ", "), strings.Join(Capabilities(), ", "))
	}
	if err := settings.checkTokens(); err != nil {
		return nil, err
	}
	if settings.Patience == 0 {
		settings.Patience = DefaultPatience
	}
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 64,
		DisableCompression:  true,
	}
	s := &Session{
		settings: settings,
		base:     strings.TrimSuffix(settings.Target, "/"),
		client: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}},
		prefix: "conformance-" + uuid.NewString()[:8],
	}
	if s.identity, err = s.identify(ctx); err != nil {
		return nil, fmt.Errorf("target %s is not reachable: %w", settings.Target, err)
	}
	if s.Has(CapabilityWebhooks) {
		if s.hooks, err = listenForHooks(ctx, settings.Listen, settings.Advertise); err != nil {
			return nil, err
		}
	}
	if settings.Through != nil {
		if s.through, err = startThrough(ctx, s.base, s.Token(RoleAdmin), s.client, settings.Through); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Close stops the program peer and drops the connections. Calling it twice is harmless.
func (s *Session) Close() error {
	s.client.CloseIdleConnections()
	if s.hooks != nil {
		s.hooks.close()
	}
	if s.through != nil {
		return s.through.close()
	}
	return nil
}

// Identity is what the target said of itself when the session was opened; empty when /health did not tell.
func (s *Session) Identity() Identity { return s.identity }

// Peer names the way the specs take to the target: "wire", or the client library's name and version.
func (s *Session) Peer() string {
	if s.through == nil {
		return "wire"
	}
	return strings.TrimSpace(s.through.hello.Name + " " + s.through.hello.Version)
}

// Has says whether the tester declared the capability.
func (s *Session) Has(capability string) bool {
	return slices.Contains(s.settings.Capabilities, capability)
}

// identify asks /health. Any HTTP answer counts as reachable: what it says is the specs' business.
func (s *Session) identify(ctx context.Context) (Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+"/health", nil)
	if err != nil {
		return Identity{}, fmt.Errorf("compose request: %w", err)
	}
	response, err := s.client.Do(request)
	if err != nil {
		return Identity{}, unwrapURL(err)
	}
	defer response.Body.Close()
	var identity Identity
	_ = json.NewDecoder(response.Body).Decode(&identity) // a target that does not tell stays anonymous
	return identity, nil
}

// Status is how a spec or a requirement came out.
type Status string

// The outcomes of specs and requirements.
const (
	Pass        Status = "pass"
	Fail        Status = "fail"
	Skip        Status = "skip"        // not selected or not applicable, with a reason
	Unsupported Status = "unsupported" // needs a capability or operation that the target or library does not have
	Untested    Status = "untested"    // this suite cannot test it, or not on this target
	Errored     Status = "error"       // the suite failed, not the target
)

// Result is how one spec came out.
type Result struct {
	Spec       *Spec
	Status     Status
	Reason     string // of any status but pass
	Location   string // file:line of the failed assertion
	Peer       string
	Violations []Violation
	Exchanges  []Exchange
	Duration   time.Duration
}

// Execute runs one spec. It must not be called again before it returns.
func (s *Session) Execute(ctx context.Context, spec *Spec) (result Result) {
	if !s.busy.CompareAndSwap(false, true) {
		panic("suite: two specs at once in one session; the test clock would be shared between them")
	}
	defer s.busy.Store(false)
	result = Result{Spec: spec, Status: Pass, Peer: s.Peer()}
	start := time.Now()
	if status, reason := s.missing(spec); status != "" {
		result.Status, result.Reason = status, reason
		return result
	}
	ctx, cancel := context.WithTimeoutCause(ctx, spec.timeout,
		fmt.Errorf("the spec took longer than %s", spec.timeout))
	defer cancel()

	target := s.newTarget(spec)
	if target.peer == Peer(target.wire) {
		result.Peer = "wire"
	}
	signal := capture(func() { spec.body(ctx, target) })
	target.runCleanups(context.WithoutCancel(ctx))

	result.Duration = time.Since(start)
	result.Exchanges, result.Violations = target.recorder.snapshot()
	result.settle(ctx, signal)
	return result
}

// missing says why the spec does not run at all; the empty status means that it does.
func (s *Session) missing(spec *Spec) (Status, string) {
	for _, capability := range spec.Requirement.Needs {
		if s.Has(capability) {
			continue
		}
		if capability == CapabilityClock {
			return Untested, "takes too long without the capability clock, which the target does not declare"
		}
		return Unsupported, lacks(capability)
	}
	return "", ""
}

func lacks(capability string) string {
	return fmt.Sprintf("needs the capability %s, which the target does not declare", capability)
}

// settle turns what ended the body, and the violations seen on the way, into a status.
func (r *Result) settle(ctx context.Context, ended any) {
	switch ended := ended.(type) {
	case nil:
	case failure:
		r.Status, r.Reason, r.Location = Fail, ended.message, ended.location
	case skipped:
		r.Status, r.Reason = ended.status, ended.reason
	default:
		r.Status, r.Reason = Errored, fmt.Sprintf("the spec panicked: %v", ended)
	}
	if r.Status == Fail && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		r.Reason = fmt.Sprintf("%v\n%s", context.Cause(ctx), r.Reason)
	}
	if r.Status == Pass && len(r.Violations) > 0 {
		r.Status = Fail
		texts := make([]string, 0, len(r.Violations))
		for _, violation := range r.Violations {
			if !slices.Contains(texts, violation.String()) {
				texts = append(texts, violation.String())
			}
		}
		r.Reason = strings.Join(texts, "\n")
	}
}
