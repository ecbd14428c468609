// Package egress is the HTTP client for destinations that strangers name. It never opens a socket to an
// address that its policy blocks.
//
// Promises: every address is checked when it is dialled, after DNS and for each dial, against an explicit
// table of ranges, with IPv4 addresses embedded in IPv6 unwrapped; so names that resolve differently the
// second time, redirects and odd spellings of addresses reach nothing that their plain form would not.
// Redirects are never followed, compressed answers are not inflated, and no more of an answer is read than
// was asked for: 64 KiB of header, and as much of the body as the request says.
//
// Assumes: what the policy allows is meant. Behind a configured proxy the proxy resolves names, so only
// literal addresses can be checked here.
//
// Fails: with a *BlockedError for what the policy forbids, which no retry can mend, and with the transport's
// error for everything else.
package egress
