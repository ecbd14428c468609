package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"

	"github.com/posthorn/posthorn/broker/internal/delivery"
	"github.com/posthorn/posthorn/broker/internal/egress"
	"github.com/posthorn/posthorn/broker/internal/queue"
)

// egress makes the client of deliveries. loopback opens the addresses of this machine, but for the broker's own.
func (c Config) egress(loopback bool, own net.Addr) (*egress.Client, error) {
	cfg := egress.Config{PerHost: c.PublishHostConcurrency, Policy: egress.Policy{Loopback: loopback, Metadata: c.EgressMetadata}}
	if err := cfg.Policy.ParseAllow(c.EgressAllow); err != nil {
		return nil, fmt.Errorf("POSTHORN_EGRESS_ALLOW: %w", err)
	}
	if err := cfg.Policy.ParseResolve(c.EgressResolve); err != nil {
		return nil, fmt.Errorf("POSTHORN_EGRESS_RESOLVE: %w", err)
	}
	if c.EgressCA != "" {
		pool, err := egress.TrustAlso(c.EgressCA)
		if err != nil {
			return nil, fmt.Errorf("POSTHORN_EGRESS_CA: %w", err)
		}
		cfg.RootCAs = pool
	}
	if c.EgressProxy != "" {
		proxy, err := url.Parse(c.EgressProxy)
		if err != nil || proxy.Host == "" {
			return nil, errors.New("POSTHORN_EGRESS_PROXY: must be a URL such as http://proxy:3128")
		}
		cfg.Proxy = proxy
	}
	if address, err := netip.ParseAddrPort(own.String()); err == nil {
		cfg.Policy.Self = func() []netip.AddrPort { return []netip.AddrPort{address} }
	}
	return egress.New(cfg), nil
}

// queueTarget is the ordered half as deliveries see it.
type queueTarget struct{ engine *queue.Engine }

// Deliver pushes one message.
func (q queueTarget) Deliver(ctx context.Context, name, partition, transactionID string, payload json.RawMessage) error {
	results, err := q.engine.Push(ctx, []queue.PushItem{{
		Queue: name, Partition: partition, TransactionID: transactionID, Payload: payload,
	}})
	if errors.Is(err, queue.ErrUnavailable) || err == nil && results[0].Status == queue.Failed {
		return delivery.ErrUnavailable
	}
	return err
}
