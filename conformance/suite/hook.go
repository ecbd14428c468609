package suite

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// hooks takes deliveries for all specs of a session.
type hooks struct {
	server *http.Server
	base   string // URL under which the target reaches it

	mu     sync.Mutex
	byName map[string]*Hook
}

// Delivery is one request that a target made.
type Delivery struct {
	Method string
	Target string // path and query behind the hook's own path, as they were sent
	Header http.Header
	Body   []byte
}

// HookReply is how a destination answers a delivery.
type HookReply struct {
	Status int
	Header http.Header // nil means none
	Body   string
}

// Hook is a destination of a spec.
type Hook struct {
	URL      string // without a slash at the end
	answer   func(n int, d Delivery) HookReply
	patience time.Duration

	mu  sync.Mutex
	got []Delivery
}

func listenForHooks(ctx context.Context, address, advertise string) (*hooks, error) {
	if address == "" {
		address = "127.0.0.1:0"
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for deliveries: %w", err)
	}
	if advertise == "" {
		advertise = "http://" + listener.Addr().String()
	}
	h := &hooks{base: strings.TrimSuffix(advertise, "/"), byName: map[string]*Hook{}}
	h.server = &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = h.server.Serve(listener) }() // it ends with close
	return h, nil
}

func (h *hooks) close() { _ = h.server.Close() }

// ServeHTTP notes a delivery. The first segment of the path names the hook.
func (h *hooks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, rest, _ := strings.Cut(strings.TrimPrefix(r.RequestURI, "/"), "/")
	name, query, hasQuery := strings.Cut(name, "?")
	switch {
	case hasQuery:
		rest = "?" + query
	case strings.HasPrefix(r.RequestURI, "/"+name+"/"):
		rest = "/" + rest
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxResponse))
	h.mu.Lock()
	hook := h.byName[name]
	h.mu.Unlock()
	if err != nil || hook == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	delivery := Delivery{Method: r.Method, Target: rest, Header: r.Header.Clone(), Body: body}
	hook.mu.Lock()
	n := len(hook.got)
	hook.got = append(hook.got, delivery)
	hook.mu.Unlock()
	reply := hook.answer(n, delivery)
	if reply.Status/100 == 3 {
		w.Header().Set("Location", h.base+"/"+name+"/redirected")
	}
	maps.Copy(w.Header(), reply.Header)
	w.WriteHeader(reply.Status)
	_, _ = io.WriteString(w, reply.Body)
}

// Hook returns a fresh destination that answers every delivery with a status. Only specs that need the capability webhooks may
// ask for one.
func (t *Target) Hook(status int) *Hook {
	return t.HookFunc(func(int, Delivery) HookReply { return HookReply{Status: status} })
}

// HookFunc is Hook with answers of the spec's making: to the n-th delivery, n from 0, which has been noted already. A delivery is
// under way until answer returns; a spec that lets it wait must see to it that it returns when the spec ends. It is called from
// other goroutines than the spec's, for several deliveries at once.
func (t *Target) HookFunc(answer func(n int, d Delivery) HookReply) *Hook {
	h := t.session.hooks
	if h == nil {
		Failf(1, "a spec that does not need webhooks asks for a destination")
	}
	name := "hook-" + strconv.FormatInt(t.session.names.Add(1), 10)
	hook := &Hook{URL: h.base + "/" + name, answer: answer, patience: t.Patience()}
	h.mu.Lock()
	h.byName[name] = hook
	h.mu.Unlock()
	t.Cleanup(func(context.Context) {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.byName, name)
	})
	return hook
}

// Deliveries are those that have come so far.
func (h *Hook) Deliveries() []Delivery {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Delivery(nil), h.got...)
}

// Await waits until n deliveries have come, as long as the tester has patience, and returns what came.
func (h *Hook) Await(ctx context.Context, n int) []Delivery {
	deadline := time.Now().Add(h.patience)
	for {
		if got := h.Deliveries(); len(got) >= n {
			return got
		}
		if time.Now().After(deadline) {
			Failf(1, "%d deliveries came in %s, want %d", len(h.Deliveries()), h.patience, n)
		}
		select {
		case <-ctx.Done():
			Failf(1, "interrupted while waiting for deliveries: %v", context.Cause(ctx))
		case <-time.After(2 * time.Millisecond):
		}
	}
}
