package bench

import (
	"context"
	"testing"
	"time"
)

func TestPublishMeasuresDelivery(t *testing.T) {
	t.Parallel()
	cfg := quick(Publish, startScript(t, &script{delay: 2 * time.Millisecond}))
	cfg.Batch = 1
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.Push.Messages != 300 || *r.Undelivered != 0 || r.Deliveries <= 0 || r.Failed() {
		t.Errorf("published %d, undelivered %d, %v deliveries/s, errors %v", r.Push.Messages, *r.Undelivered, r.Deliveries, r.Errors)
	}
	// The script delivers 2 ms after the message was stamped.
	if r.Delivery.P50 < 2 || r.Delivery.P50 > r.Delivery.Max {
		t.Errorf("delivery %v", r.Delivery)
	}
}

// TestPublishReportsWhatDidNotArrive: an accepted message that never arrives makes the run fail.
func TestPublishReportsWhatDidNotArrive(t *testing.T) {
	t.Parallel()
	cfg := quick(Publish, startScript(t, &script{lose: func(n int) bool { return n == 7 }}))
	cfg.Batch, cfg.MaxMessages = 1, 20
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // rather than as long as a run waits
	defer cancel()
	r, err := Run(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if *r.Undelivered != 1 || !r.Failed() {
		t.Errorf("undelivered %d of %d", *r.Undelivered, r.Push.Messages)
	}
}

// TestPublishDelayed: acceptance alone is measured without waiting for deliveries, and reports none.
func TestPublishDelayed(t *testing.T) {
	t.Parallel()
	cfg := quick(Publish, startScript(t, &script{lose: func(int) bool { return true }}))
	cfg.Batch, cfg.MaxMessages, cfg.Delay = 1, 20, time.Hour
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.Push.Messages != 20 || r.Delivery != nil || r.Undelivered != nil || r.Failed() {
		t.Errorf("published %d, delivery %v, failed %v", r.Push.Messages, r.Delivery, r.Failed())
	}
	cfg.Delay, cfg.Silent = 0, true
	if r, err := Run(t.Context(), cfg); err != nil || r.Push.Messages != 20 || r.Undelivered != nil {
		t.Errorf("a silent destination: %v", err)
	}
	cfg.Delay = 1500 * time.Millisecond
	if _, err := Run(t.Context(), cfg); err == nil {
		t.Error("a delay of 1.5 s was accepted")
	}
}
