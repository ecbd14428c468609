package api

import (
	"net/http"
	"time"

	"github.com/go-json-experiment/json"
)

// defaultExtension is the extension of a lease in seconds when the body does not name one.
const defaultExtension = 60

// extendRequest is the body of POST /api/v1/lease/{leaseId}/extend.
type extendRequest struct {
	Seconds *int64 `json:"seconds"`
}

// leaseAnswer names one expiry three times, for clients of three generations; null when nothing was
// renewed.
type leaseAnswer struct {
	LeaseID        string  `json:"leaseId"`
	Success        bool    `json:"success"`
	Renewed        int     `json:"renewed"`
	NewExpiresAt   *string `json:"newExpiresAt"`
	ExpiresAt      *string `json:"expiresAt"`
	LeaseExpiresAt *string `json:"lease_expires_at"`
}

// extendLease answers 200 also when nothing was renewed (queue contract, section 5).
func (e *edge) extendLease(c *call) (answer, error) {
	id := c.path["leaseId"]
	lease, err := e.cfg.Engine.ExtendLease(c.ctx, id, extension(c.body))
	if err != nil {
		return answer{}, err
	}
	expires := optionalTime(lease.ExpiresAt)
	return encode(http.StatusOK, leaseAnswer{
		LeaseID:        id,
		Success:        lease.Renewed > 0,
		Renewed:        lease.Renewed,
		NewExpiresAt:   expires,
		ExpiresAt:      expires,
		LeaseExpiresAt: expires,
	})
}

// extension reads the one field of the body. A body that is empty or cannot be read means the
// default, less than a second means one second, and more than maxLease means maxLease.
func extension(body []byte) time.Duration {
	var req extendRequest
	if err := json.Unmarshal(body, &req); err != nil || req.Seconds == nil {
		return defaultExtension * time.Second
	}
	seconds := min(max(*req.Seconds, 1), int64(maxLease/time.Second))
	return time.Duration(seconds) * time.Second
}
