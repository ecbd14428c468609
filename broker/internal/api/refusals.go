package api

import (
	"errors"

	"github.com/posthorn/posthorn/broker/internal/auth"
	"github.com/posthorn/posthorn/broker/internal/delivery"
	"github.com/posthorn/posthorn/broker/internal/delivery/request"
	"github.com/posthorn/posthorn/broker/internal/egress"
	"github.com/posthorn/posthorn/openapi"
)

// Why a publish, a schedule or an item of a batch was not accepted, as the metrics name it.
const (
	refusedInvalid      = "invalid"      // what was asked for is wrong
	refusedBlocked      = "blocked"      // by the egress policy
	refusedMissing      = "not-found"    // the topic does not exist
	refusedQuota        = "quota"        // it passes a bound that is configured
	refusedUnauthorized = "unauthorized" // no token, a wrong one, or one that may not
	refusedSize         = "size"         // the body is too large, or too many are in flight
	refusedUnavailable  = "unavailable"  // the database is away, or the broker stops
	refusedOther        = "other"
)

var refusals = []string{
	refusedInvalid, refusedBlocked, refusedMissing, refusedQuota, refusedUnauthorized, refusedSize, refusedUnavailable, refusedOther,
}

// refusal names the reason of an error that a publishing route answers.
func refusal(err error) string {
	if _, blocked := errors.AsType[*egress.BlockedError](err); blocked {
		return refusedBlocked
	}
	if _, unknown := errors.AsType[*missingError](err); unknown {
		return refusedMissing
	}
	if _, quota := errors.AsType[*quotaError](err); quota {
		return refusedQuota
	}
	if _, quota := errors.AsType[*delivery.QuotaError](err); quota {
		return refusedQuota
	}
	if _, wrong := errors.AsType[*request.Error](err); wrong {
		return refusedInvalid
	}
	if _, wrong := errors.AsType[*openapi.CheckError](err); wrong {
		return refusedInvalid
	}
	switch {
	case errors.Is(err, errPublishToken), errors.Is(err, errForbidden), errors.Is(err, auth.ErrUnauthorized):
		return refusedUnauthorized
	case errors.Is(err, errTooLarge), errors.Is(err, errBusy):
		return refusedSize
	case errors.Is(err, errSlowBody), errors.Is(err, errCutBody):
		return refusedInvalid
	case errors.Is(err, delivery.ErrUnavailable), errors.Is(err, delivery.ErrStopped):
		return refusedUnavailable
	}
	return refusedOther
}
