package egress

import "net/netip"

// blockedRange is a range that is not a destination on the public Internet.
type blockedRange struct {
	prefix netip.Prefix
	kind   string // as error texts have it: "a <kind> address"
}

// blockedRanges are the special-purpose ranges of the IANA registries, most specific first where they
// nest. Go's address predicates miss about half of them.
var blockedRanges = ranges(
	"unspecified", "0.0.0.0/32", "::/128",
	"loopback", "127.0.0.0/8", "::1/128",
	"private", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7",
	"link-local", "169.254.0.0/16", "fe80::/10",
	"site-local", "fec0::/10",
	"carrier-grade NAT", "100.64.0.0/10",
	"documentation", "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20",
	"benchmarking", "198.18.0.0/15", "2001:2::/48",
	"multicast", "224.0.0.0/4", "ff00::/8",
	"broadcast", "255.255.255.255/32",
	"6to4", "192.88.99.0/24", "2002::/16",
	"Teredo", "2001::/32",
	"NAT64", "64:ff9b::/96", "64:ff9b:1::/48",
	"IPv4-compatible", "::/96",
	"discard-only", "100::/64", "100:0:0:1::/64",
	"reserved", "0.0.0.0/8", "192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24", "240.0.0.0/4",
	"2001::/23", "2620:4f:8000::/48", "5f00::/16",
)

// globalUnicast is the only part of IPv6 that is routed on the public Internet.
var globalUnicast = netip.MustParsePrefix("2000::/3")

// metadataRanges are where cloud providers answer with credentials of the machine that asks.
var metadataRanges = ranges(
	"metadata", "169.254.0.0/16", "fd00:ec2::254/128", "fd20:ce::254/128", "100.100.100.200/32", "168.63.129.16/32",
)

// ranges reads a list of kinds, each followed by its prefixes.
func ranges(list ...string) []blockedRange {
	var out []blockedRange
	kind := ""
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			kind = s
			continue
		}
		out = append(out, blockedRange{p, kind})
	}
	return out
}

func find(table []blockedRange, a netip.Addr) (kind string, found bool) {
	for _, r := range table {
		if r.prefix.Contains(a) {
			return r.kind, true
		}
	}
	return "", false
}

// kindOf names what kind of special address a is; false means an ordinary public one.
func kindOf(a netip.Addr) (string, bool) {
	if kind, found := find(blockedRanges, a); found {
		return kind, true
	}
	if a.Is6() && !globalUnicast.Contains(a) {
		return "reserved", true
	}
	return "", false
}

// embedded is the IPv4 address that a tunnelling or translating network would take an IPv6 address to.
func embedded(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() {
		return netip.Addr{}, false
	}
	b := a.As16()
	four := func(at int) (netip.Addr, bool) { return netip.AddrFrom4([4]byte(b[at : at+4])), true }
	switch {
	case netip.MustParsePrefix("2002::/16").Contains(a):
		return four(2)
	case netip.MustParsePrefix("2001::/32").Contains(a): // the client's address, inverted
		return netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}), true
	case netip.MustParsePrefix("64:ff9b::/96").Contains(a), netip.MustParsePrefix("64:ff9b:1::/48").Contains(a),
		netip.MustParsePrefix("::/96").Contains(a) && a != netip.IPv6Unspecified() && a != netip.IPv6Loopback(),
		netip.MustParsePrefix("::ffff:0:0:0/96").Contains(a): // the last is RFC 2765's translated form
		return four(12)
	}
	return netip.Addr{}, false
}
