package egress

import (
	"errors"
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

// blockedHosts are spellings of addresses that nothing on the public Internet has, with the kind that the
// refusal names.
var blockedHosts = map[string]string{
	"127.0.0.1": "loopback", "127.255.255.254": "loopback", "[::1]": "loopback", "localhost": "loopback",
	"LOCALHOST.": "loopback", "app.localhost": "loopback",
	"2130706433": "loopback", "0x7f000001": "loopback", "0X7F.1": "loopback", "017700000001": "loopback",
	"0177.0.0.1": "loopback", "127.1": "loopback", "127.0.1": "loopback", "0x7f.0x0.0x0.0x1": "loopback",
	"[::ffff:127.0.0.1]": "loopback", "[::ffff:7f00:1]": "loopback",
	"0.0.0.0": "unspecified", "0": "unspecified", "[::]": "unspecified", "0.1.2.3": "reserved",
	"10.0.0.1": "private", "172.16.0.1": "private", "172.31.255.255": "private", "192.168.1.1": "private",
	"[::ffff:10.0.0.1]": "private", "[fc00::1]": "private", "[fd12:3456::1]": "private",
	"169.254.169.254": "link-local", "169.254.1.1": "link-local", "[fe80::1]": "link-local", "[fe80::1%25eth0]": "link-local",
	"[fd00:ec2::254]": "private", "[fd20:ce::254]": "private", "168.63.129.16": "metadata", "100.100.100.200": "carrier-grade NAT",
	"[::ffff:169.254.169.254]": "link-local", "2852039166": "link-local",
	"100.64.0.1": "carrier-grade NAT", "100.127.255.255": "carrier-grade NAT",
	"192.0.2.1": "documentation", "198.51.100.7": "documentation", "203.0.113.9": "documentation",
	"[2001:db8::1]": "documentation", "[3fff::1]": "documentation",
	"198.18.0.1": "benchmarking", "198.19.255.255": "benchmarking", "[2001:2::1]": "benchmarking",
	"224.0.0.1": "multicast", "239.255.255.255": "multicast", "[ff02::1]": "multicast",
	"240.0.0.1": "reserved", "255.255.255.255": "broadcast", "192.0.0.8": "reserved", "192.31.196.1": "reserved",
	"192.52.193.1": "reserved", "192.175.48.1": "reserved", "192.88.99.1": "6to4",
	"[2002:7f00:1::]": "6to4", "[2002:808:808::]": "6to4",
	"[2001:0:808:808::1]": "Teredo", "[64:ff9b::7f00:1]": "NAT64", "[64:ff9b::808:808]": "NAT64", "[64:ff9b:1::1]": "NAT64",
	"[::7f00:1]": "IPv4-compatible", "[::808:808]": "IPv4-compatible",
	"[100::1]": "discard-only", "[100:0:0:1::1]": "discard-only", "[2001:10::1]": "reserved", "[2620:4f:8000::1]": "reserved",
	"[5f00::1]": "reserved", "[fec0::1]": "site-local", "[4000::1]": "reserved", "[e000::1]": "reserved",
	"[::ffff:0:127.0.0.1]": "reserved", // the translated form of RFC 2765
}

func TestBlockedLiterals(t *testing.T) {
	t.Parallel()
	for host, kind := range blockedHosts {
		u, err := url.Parse("http://" + host + "/x")
		if err != nil {
			t.Fatal(err)
		}
		var p Policy
		blocked, ok := errors.AsType[*BlockedError](p.CheckURL(u))
		if !ok || blocked.Kind != kind {
			t.Errorf("%s: %v, want a %s address", host, blocked, kind)
		}
	}
}

func TestPublicHostsPass(t *testing.T) {
	t.Parallel()
	for _, host := range []string{
		"8.8.8.8", "1.1.1.1", "[2606:4700:4700::1111]", "[::ffff:8.8.8.8]", "134744072", "example.com", "9.9.9.9.9",
		"100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "192.167.1.1", "11.0.0.1", "126.1.1.1", "128.0.0.1",
		"198.17.1.1", "198.20.0.1", "223.255.255.254", "0x7g.1", "1.2.3.256", "[2003::1]",
	} {
		u, err := url.Parse("https://" + host)
		if err != nil {
			t.Fatal(err)
		}
		var p Policy
		if err := p.CheckURL(u); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
}

func TestErrorNamesTheAddress(t *testing.T) {
	t.Parallel()
	var p Policy
	err := p.CheckURL(&url.URL{Scheme: "http", Host: "localhost:9000"})
	if want := "endpoint resolves to a loopback address: 127.0.0.1"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	err = p.CheckURL(&url.URL{Scheme: "http", Host: "0.0.0.0"})
	if want := "endpoint resolves to an unspecified address: 0.0.0.0"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestAllow(t *testing.T) {
	t.Parallel()
	var p Policy
	if err := p.ParseAllow(" 10.1.0.0/16, 192.168.7.7,internal.example. ,64:ff9b::/96"); err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{
		"10.1.2.3": true, "10.2.0.1": false, "192.168.7.7": true, "192.168.7.8": false, "169.254.169.254": false,
		"[::ffff:10.1.2.3]":   true,
		"[64:ff9b::808:808]":  true,
		"[64:ff9b::a01:203]":  true,
		"[64:ff9b::7f00:1]":   false, // the inner address counts as well
		"[64:ff9b::a9fe:1]":   false,
		"[2002:a01:203::1]":   false, // the outer address counts as well
		"[64:ff9b::c0a8:101]": false,
	}
	for host, want := range tests {
		if err := p.CheckURL(&url.URL{Scheme: "http", Host: host}); (err == nil) != want {
			t.Errorf("%s: %v, want allowed %v", host, err, want)
		}
	}
	if err := p.check("internal.example", netip.MustParseAddrPort("10.9.9.9:80")); err != nil {
		t.Error(err)
	}
	if err := p.check("internal.example", netip.MustParseAddrPort("169.254.169.254:80")); err == nil {
		t.Error("an allowed host reaches a metadata address")
	}
	for _, bad := range []string{"10.0.0.0/33", "http://x", "a b", "*.example.com"} {
		if err := new(Policy).ParseAllow(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestMetadataHasItsOwnSwitch(t *testing.T) {
	t.Parallel()
	closed := Policy{Prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}, Loopback: true}
	open := closed
	open.Metadata = true
	for _, addr := range []string{"169.254.169.254", "[fd00:ec2::254]", "[fd20:ce::254]", "168.63.129.16", "100.100.100.200"} {
		u := &url.URL{Scheme: "http", Host: addr}
		if closed.CheckURL(u) == nil {
			t.Errorf("%s is open without the switch", addr)
		}
		if err := open.CheckURL(u); err != nil {
			t.Errorf("%s with the switch: %v", addr, err)
		}
	}
}

func TestOwnListenAddressIsRefused(t *testing.T) {
	t.Parallel()
	p := Policy{Loopback: true, Self: func() []netip.AddrPort {
		return []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:6632"), netip.MustParseAddrPort("[::]:6633")}
	}}
	for host, want := range map[string]bool{
		"127.0.0.1:6632": false, "localhost:6632": false, "[::ffff:127.0.0.1]:6632": false, "127.0.0.1:6631": true,
		"127.0.0.1:6633": false, "[::1]:6633": false, "[::1]:6632": true, "8.8.8.8:6633": true,
	} {
		if err := p.CheckURL(&url.URL{Scheme: "http", Host: host}); (err == nil) != want {
			t.Errorf("%s: %v, want allowed %v", host, err, want)
		}
	}
}

func TestParseResolve(t *testing.T) {
	t.Parallel()
	var p Policy
	if err := p.ParseResolve("Example.com:443=10.0.0.1, b.example:80=127.0.0.1:9000,c.example:80=[::1]:7,d.example:80=::1"); err != nil {
		t.Fatal(err)
	}
	for from, want := range map[string]string{
		"example.com:443": "10.0.0.1:443", "b.example:80": "127.0.0.1:9000", "c.example:80": "[::1]:7", "d.example:80": "[::1]:80",
	} {
		if got := p.Resolve[from].String(); got != want {
			t.Errorf("%s goes to %s, want %s", from, got, want)
		}
	}
	for _, bad := range []string{"a=1.2.3.4", "a:80", "a:80=b", "a:x=1.2.3.4", "a:70000=1.2.3.4"} {
		if err := new(Policy).ParseResolve(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func FuzzLiteral(f *testing.F) {
	for host := range blockedHosts {
		f.Add(strings.Trim(host, "[]"))
	}
	f.Fuzz(func(t *testing.T, host string) {
		addr, ok := literal(host)
		if ok && !addr.IsValid() {
			t.Errorf("%q is an invalid address", host)
		}
		if want, err := netip.ParseAddr(host); err == nil && (!ok || addr != want) {
			t.Errorf("%q is %v, want %v", host, addr, want)
		}
	})
}
