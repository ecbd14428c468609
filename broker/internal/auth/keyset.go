package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/MicahParks/jwkset"
)

const (
	// fetchEvery is the least time between two fetches of a key set (queue contract, section 11): whoever sends
	// tokens with made-up key ids must not make the broker a hammer.
	fetchEvery = 5 * time.Second
	// fetchTimeout bounds one fetch, which a request waits for.
	fetchTimeout = 4 * time.Second
	// keysFresh is how long keys are used before they are fetched again, so that a key that is no longer published
	// is forgotten.
	keysFresh = 10 * time.Minute
	// maxKeySet bounds the text of a key set in bytes (queue contract, section 11).
	maxKeySet = 1 << 20
	// maxKeySetHead bounds the head of that answer in bytes.
	maxKeySetHead = 64 << 10
)

// publishedKey is one key of a set.
type publishedKey struct {
	public any
	alg    string // the only algorithm it is for; "" means any that fits
}

func (k publishedKey) allows(alg string) bool { return k.alg == "" || k.alg == alg }

// keySet is a published set of keys, by kid. It is fetched when a token names a key that is not known, and when it is
// no longer fresh; by the request that needs it, so that nothing runs in the background.
type keySet struct {
	url    string
	client *http.Client
	log    *slog.Logger
	now    func() time.Time // time.Now but in tests

	keys atomic.Pointer[map[string]publishedKey]

	fetching sync.Mutex // held during a fetch
	began    time.Time  // of the last fetch; guarded by fetching
	got      atomic.Int64
}

func newKeySet(text string, log *slog.Logger) (*keySet, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, errors.New("not an http or https URL")
	}
	transport := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DisableCompression:     true, // what is inflated is not bounded by what is sent
		MaxResponseHeaderBytes: maxKeySetHead,
		ForceAttemptHTTP2:      true,
	}
	k := &keySet{
		url: text,
		client: &http.Client{
			Transport: transport,
			Timeout:   fetchTimeout,
			// Keys come from where the operator says, and from nowhere else.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		log: log,
		now: time.Now,
	}
	k.keys.Store(&map[string]publishedKey{})
	return k, nil
}

// find returns the key with a kid. When it is not known, one fetch is made or waited for, unless one was made within
// fetchEvery.
func (k *keySet) find(ctx context.Context, kid string) (publishedKey, bool) {
	if key, ok := (*k.keys.Load())[kid]; ok {
		if k.now().Sub(time.Unix(0, k.got.Load())) < keysFresh || !k.fetching.TryLock() {
			return key, true
		}
		defer k.fetching.Unlock()
	} else {
		k.fetching.Lock()
		defer k.fetching.Unlock()
		if key, ok := (*k.keys.Load())[kid]; ok {
			return key, true // somebody else's fetch has brought it
		}
	}
	k.fetch(ctx)
	key, ok := (*k.keys.Load())[kid]
	return key, ok
}

// refresh fetches the set, unless it was fetched within fetchEvery.
func (k *keySet) refresh(ctx context.Context) {
	k.fetching.Lock()
	defer k.fetching.Unlock()
	k.fetch(ctx)
}

// fetch replaces the keys by what is published now. The caller holds fetching.
func (k *keySet) fetch(ctx context.Context) {
	now := k.now()
	if !k.began.IsZero() && now.Sub(k.began) < fetchEvery {
		return
	}
	k.began = now
	// Others wait for this fetch too: it does not end with the request that makes it.
	keys, err := k.get(context.WithoutCancel(ctx))
	if err != nil {
		k.log.WarnContext(ctx, "the published keys cannot be fetched; those known stay in use", "setting", "JWT_JWKS_URL", "error", err)
		return
	}
	k.keys.Store(&keys)
	k.got.Store(now.UnixNano())
}

func (k *keySet) get(ctx context.Context) (map[string]publishedKey, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, k.url, http.NoBody)
	if err != nil {
		return nil, errors.New("the URL cannot be used")
	}
	request.Header.Set("Accept", "application/jwk-set+json, application/json")
	response, err := k.client.Do(request)
	if err != nil {
		// The URL stays out of the log: it may hold a credential.
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err
		}
		return nil, fmt.Errorf("get: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get: status %d", response.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxKeySet+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read: %w", err)
	case len(text) > maxKeySet:
		return nil, fmt.Errorf("the key set is longer than %d bytes", maxKeySet)
	}
	return parseKeySet(text)
}

// parseKeySet keeps the public signing keys of a set that have a kid. What it does not understand it leaves out, as
// RFC 7517, section 5 wants; secrets among public keys are nothing to trust.
func parseKeySet(text []byte) (map[string]publishedKey, error) {
	var set struct {
		Keys []jwkset.JWKMarshal `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, errors.New("the key set is not JSON, or not a key set")
	}
	keys := make(map[string]publishedKey)
	for _, m := range set.Keys {
		if m.KID == "" || m.USE != "" && m.USE != jwkset.UseSig || m.KTY == jwkset.KtyOct {
			continue
		}
		// Certificates are not consulted: the set itself is what is trusted.
		m.X5C, m.X5T, m.X5TS256, m.X5U = nil, "", "", ""
		key, err := jwkset.NewJWKFromMarshal(m, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
		if err != nil {
			continue
		}
		keys[m.KID] = publishedKey{public: key.Key(), alg: string(m.ALG)}
	}
	return keys, nil
}
