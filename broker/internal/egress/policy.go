package egress

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Policy says which addresses may be dialled. The zero value allows public addresses only.
type Policy struct {
	// Prefixes and Hosts open what is blocked otherwise: addresses inside a prefix, and whatever a host of
	// that name (exact, lower case) resolves to. Neither opens metadata addresses, nor the broker's own.
	Prefixes []netip.Prefix
	Hosts    []string
	Loopback bool // loopback addresses are open
	Metadata bool // metadata addresses of cloud providers are open

	// Resolve replaces DNS: "host:port" to the address that is dialled instead, which is checked like any other.
	Resolve map[string]netip.AddrPort

	// Self returns the addresses the broker itself listens on, which are never a destination. Nil means none.
	Self func() []netip.AddrPort
}

// ParseAllow reads a comma-separated list of CIDR prefixes, addresses and host names into the policy.
func (p *Policy) ParseAllow(list string) error {
	for entry := range strings.SplitSeq(list, ",") {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		if prefix, err := netip.ParsePrefix(entry); err == nil {
			p.Prefixes = append(p.Prefixes, prefix.Masked())
			continue
		}
		if addr, err := netip.ParseAddr(entry); err == nil {
			p.Prefixes = append(p.Prefixes, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		if strings.ContainsAny(entry, "/:*@ ") {
			return fmt.Errorf("%q is no CIDR prefix, address or host name", entry)
		}
		p.Hosts = append(p.Hosts, normalHost(entry))
	}
	return nil
}

// ParseResolve reads a comma-separated list of host:port=address or host:port=address:port into the policy.
func (p *Policy) ParseResolve(list string) error {
	for entry := range strings.SplitSeq(list, ",") {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		from, to, ok := strings.Cut(entry, "=")
		host, port, err := net.SplitHostPort(from)
		if !ok || err != nil || host == "" {
			return fmt.Errorf("%q is not host:port=address", entry)
		}
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return fmt.Errorf("%q: %q is no port", entry, port)
		}
		target, err := netip.ParseAddrPort(to)
		if err != nil {
			addr, err := netip.ParseAddr(strings.Trim(to, "[]"))
			if err != nil {
				return fmt.Errorf("%q: %q is no address", entry, to)
			}
			target = netip.AddrPortFrom(addr, uint16(number))
		}
		if p.Resolve == nil {
			p.Resolve = map[string]netip.AddrPort{}
		}
		p.Resolve[net.JoinHostPort(normalHost(host), port)] = target
	}
	return nil
}

// String says in a few words what the policy opens beyond the public Internet.
func (p *Policy) String() string {
	opened := []string{"public"}
	if p.Loopback {
		opened = append(opened, "loopback")
	}
	for _, prefix := range p.Prefixes {
		opened = append(opened, prefix.String())
	}
	opened = append(opened, p.Hosts...)
	if p.Metadata {
		opened = append(opened, "metadata")
	}
	return strings.Join(opened, ", ")
}

// BlockedError says that the policy forbids a destination.
type BlockedError struct {
	Addr netip.Addr
	Kind string // loopback, private, metadata, own and so on
}

func (e *BlockedError) Error() string {
	article := "a"
	if strings.Contains("aeiouI", e.Kind[:1]) {
		article = "an"
	}
	return fmt.Sprintf("endpoint resolves to %s %s address: %s", article, e.Kind, e.Addr)
}

// CheckURL refuses a URL whose host is a blocked address in any spelling, or a name for the loopback
// interface. Other names are checked when they are dialled.
func (p *Policy) CheckURL(u *url.URL) error {
	host := normalHost(u.Hostname())
	port := u.Port()
	if port == "" {
		port = "80"
		if u.Scheme == "https" {
			port = "443"
		}
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return fmt.Errorf("%q is no port", port)
	}
	if target, ok := p.Resolve[net.JoinHostPort(host, port)]; ok {
		return p.check(host, target)
	}
	addr, ok := literal(host)
	if !ok {
		return nil
	}
	return p.check(host, netip.AddrPortFrom(addr, uint16(number)))
}

// check decides on one address that a host stands for.
func (p *Policy) check(host string, target netip.AddrPort) error {
	addr := target.Addr().Unmap().WithZone("")
	if p.Self != nil && isSelf(p.Self(), addr, target.Port()) {
		return &BlockedError{addr, "own listen"}
	}
	faces := []netip.Addr{addr}
	if inner, ok := embedded(addr); ok {
		faces = append(faces, inner)
	}
	for _, face := range faces {
		if kind, found := find(metadataRanges, face); found {
			if p.Metadata {
				continue
			}
			if k, ok := kindOf(face); ok {
				kind = k
			}
			return &BlockedError{addr, kind}
		}
		kind, special := kindOf(face)
		if !special || p.allows(host, face, kind) {
			continue
		}
		return &BlockedError{addr, kind}
	}
	return nil
}

func (p *Policy) allows(host string, addr netip.Addr, kind string) bool {
	return p.Loopback && kind == "loopback" ||
		slices.Contains(p.Hosts, host) ||
		slices.ContainsFunc(p.Prefixes, func(prefix netip.Prefix) bool { return prefix.Contains(addr) })
}

// isSelf reports whether an address is one of the broker's listeners. A listener on all interfaces has
// every address of this machine, loopback included.
func isSelf(listeners []netip.AddrPort, addr netip.Addr, port uint16) bool {
	for _, l := range listeners {
		if l.Port() != port {
			continue
		}
		if own := l.Addr().Unmap(); own == addr || addr.IsUnspecified() || own.IsUnspecified() && isLocal(addr) {
			return true
		}
	}
	return false
}

func isLocal(addr netip.Addr) bool {
	if addr.IsLoopback() {
		return true
	}
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		return true // cannot tell: refuse
	}
	return slices.ContainsFunc(interfaces, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr().Unmap() == addr
	})
}

func normalHost(host string) string {
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// literal reads a host that is an address: in the usual spelling, in one of the old ones of inet_aton that
// C libraries still accept (2130706433, 0177.1, 0x7f.0.0.1), or by the name of the loopback interface.
func literal(host string) (netip.Addr, bool) {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), true
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr, true
	}
	parts := strings.Split(host, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var value uint64
	for i, part := range parts {
		n, ok := number(part)
		last := i == len(parts)-1
		limit := uint64(0xff)
		if last {
			limit = 1<<(8*(5-len(parts))) - 1
		}
		if !ok || n > limit {
			return netip.Addr{}, false
		}
		if last {
			value = value<<(8*(5-len(parts))) | n
		} else {
			value = value<<8 | n
		}
	}
	return netip.AddrFrom4([4]byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)}), true
}

// number reads a part of an address as C does: 0x for hexadecimal, 0 for octal.
func number(s string) (uint64, bool) {
	base, digits := 10, s
	switch {
	case strings.HasPrefix(s, "0x"):
		base, digits = 16, s[2:]
	case len(s) > 1 && s[0] == '0':
		base, digits = 8, s[1:]
	}
	n, err := strconv.ParseUint(digits, base, 64)
	return n, err == nil && !strings.HasPrefix(digits, "+")
}
