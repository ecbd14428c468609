// Package auth tells who calls and what they may do.
//
// A caller shows one token: one of the configured ones, or a signed JSON Web Token (queue contract, section 11).
// Either names a set of roles; an access level names the roles that pass (queue contract, section 0). Levels are
// sets and no ladder: read-only and write-only exclude each other.
//
// It promises that a token is accepted only when it was configured, or when its signature was made with a key that
// was configured or published for exactly that algorithm; that everything else is one error, ErrUnauthorized, with a
// reason from a short fixed list, so that neither an answer nor a log repeats what a caller sent; that configured
// tokens are kept as hashes and compared in constant time; and that a level it does not know admits administrators
// only. A key set that cannot be fetched leaves the keys known so far in place.
//
// It assumes that its caller has bounded the head of the request, and that Config.Now follows the broker's clock. It
// knows neither routes nor the API description.
package auth
