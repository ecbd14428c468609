package api

import (
	"fmt"
	"net/http"
	"time"

	"github.com/posthorn/posthorn/broker/internal/delivery"
)

// unbounded is how a quota says that there is none.
const unbounded = -1

// quotaError refuses what passes a bound that the broker was configured with.
type quotaError struct {
	name  string // as getQuotaV1 has it
	limit int64
}

func (e *quotaError) Error() string {
	return fmt.Sprintf("quota %s exceeded, current limit: %d", e.name, e.limit)
}

type quotaV1 struct {
	MaxTopics            int64 `json:"maxTopics"`
	MaxEndpointsPerTopic int64 `json:"maxEndpointsPerTopic"`
	MaxMessageSize       int64 `json:"maxMessageSize"`
	MaxRetries           int64 `json:"maxRetries"`
	MaxSchedules         int64 `json:"maxSchedules"`
	MaxRequestsPerDay    int64 `json:"maxRequestsPerDay"`
	Retention            int64 `json:"retention"`
	Timeout              int64 `json:"timeout"`
	MaxDelay             int64 `json:"maxDelay"`
}

func (e *edge) getQuotaV1(*call) (answer, error) {
	limits := e.cfg.Delivery.Limits()
	q := quotaV1{
		MaxTopics: unbounded, MaxEndpointsPerTopic: int64(e.maxEndpoints()), MaxMessageSize: e.cfg.MaxBody, MaxRetries: unbounded, MaxSchedules: unbounded,
		MaxRequestsPerDay: unbounded, Retention: wholeSeconds(limits.LogRetention), Timeout: wholeSeconds(limits.Timeout), MaxDelay: unbounded,
	}
	if limits.MaxTopics > 0 {
		q.MaxTopics = int64(limits.MaxTopics)
	}
	if limits.MaxSchedules > 0 {
		q.MaxSchedules = int64(limits.MaxSchedules)
	}
	if e.cfg.MaxRetries > 0 {
		q.MaxRetries = int64(e.cfg.MaxRetries)
	}
	if e.cfg.MaxDelay > 0 {
		q.MaxDelay = wholeSeconds(e.cfg.MaxDelay)
	}
	return encode(http.StatusOK, q)
}

func wholeSeconds(d time.Duration) int64 { return int64(d / time.Second) }

// checkQuota refuses a message, or a callback of it, that asks for more than the broker allows.
func (e *edge) checkQuota(m *delivery.Message) error {
	delays, retries := []time.Duration{m.Delay}, []int{m.Retries}
	if !m.NotBefore.IsZero() {
		delays = append(delays, m.NotBefore.Sub(e.cfg.Delivery.Now()))
	}
	for _, c := range []*delivery.Callback{m.Callback, m.FailureCallback} {
		if c == nil {
			continue
		}
		delays = append(delays, c.Delay)
		if c.Retries != nil {
			retries = append(retries, *c.Retries)
		}
	}
	for _, d := range delays {
		if e.cfg.MaxDelay > 0 && d > e.cfg.MaxDelay {
			return &quotaError{"maxDelay", wholeSeconds(e.cfg.MaxDelay)}
		}
	}
	for _, n := range retries {
		if e.cfg.MaxRetries > 0 && n > e.cfg.MaxRetries {
			return &quotaError{"maxRetries", int64(e.cfg.MaxRetries)}
		}
	}
	return nil
}
