package posthorn

import (
	"context"
	"net/http"
)

// SigningKeys are the two keys of deliveries: they are signed with Current, and a receiver accepts both.
type SigningKeys struct {
	Current string `json:"current"`
	Next    string `json:"next"`
}

// GetSigningKeys reads the keys that a Receiver needs.
func (c *Client) GetSigningKeys(ctx context.Context) (SigningKeys, error) {
	var keys SigningKeys
	err := c.do(ctx, call{op: "getSigningKeys", method: http.MethodGet, path: "/v2/keys", repeatable: true}, &keys)
	return keys, err
}

// RotateSigningKeys makes the next key the current one, mints a next one and returns both. Receivers that have the keys from before go
// on verifying; after a second rotation they do not. It needs a token of an administrator, and is not repeated after an
// unknown outcome; then GetSigningKeys tells.
func (c *Client) RotateSigningKeys(ctx context.Context) (SigningKeys, error) {
	var keys SigningKeys
	err := c.do(ctx, call{op: "rotateSigningKeys", method: http.MethodPost, path: "/v2/keys/rotate"}, &keys)
	return keys, err
}
