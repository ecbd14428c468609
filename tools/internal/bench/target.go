package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
)

// ErrNotLoopback refuses a target on another machine.
var ErrNotLoopback = errors.New("only loopback targets are allowed")

// Target is a broker on this machine. The address was resolved once and is dialled as it is, so that a name cannot
// mean one address when it is checked and another when it is used.
type Target struct {
	URL     string         // as given, without a trailing slash
	Host    string         // value of the Host header
	Address netip.AddrPort // loopback
	Token   string         // sent with each request; "" means none
}

// ParseTarget accepts http://HOST[:PORT] whose host is a loopback address or a name that resolves to nothing else.
func ParseTarget(ctx context.Context, raw string) (Target, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return Target{}, fmt.Errorf("target %q: %w", raw, err)
	}
	if u.Scheme != "http" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" {
		return Target{}, fmt.Errorf("target %q: want http://HOST:PORT", raw)
	}
	port := u.Port()
	if port == "" {
		port = "80"
	}
	addr, err := loopbackAddress(ctx, u.Hostname())
	if err != nil {
		return Target{}, fmt.Errorf("target %q: %w", raw, err)
	}
	ap, err := netip.ParseAddrPort(net.JoinHostPort(addr.String(), port))
	if err != nil {
		return Target{}, fmt.Errorf("target %q: %w", raw, err)
	}
	return Target{URL: "http://" + u.Host, Host: u.Host, Address: ap}, nil
}

// loopbackAddress resolves host and returns its first address, preferring IPv4. All of them must be loopback.
func loopbackAddress(ctx context.Context, host string) (netip.Addr, error) {
	addrs := []netip.Addr{}
	if a, err := netip.ParseAddr(host); err == nil {
		addrs = append(addrs, a)
	} else if addrs, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err != nil {
		return netip.Addr{}, fmt.Errorf("resolve %s: %w", host, err)
	}
	var found netip.Addr
	for _, a := range addrs {
		a = a.Unmap()
		if !a.IsLoopback() {
			return netip.Addr{}, fmt.Errorf("%s is %s: %w", host, a, ErrNotLoopback)
		}
		if !found.IsValid() || a.Is4() && !found.Is4() {
			found = a
		}
	}
	if !found.IsValid() {
		return netip.Addr{}, fmt.Errorf("%s has no address", host)
	}
	return found, nil
}
