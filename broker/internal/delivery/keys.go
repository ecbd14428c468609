package delivery

import (
	"context"
	"fmt"

	"github.com/posthorn/posthorn/broker/internal/sign"
)

// SigningKeys are the two keys of deliveries: messages are signed with the current one, receivers accept both, so that
// rotating them interrupts nothing.
type SigningKeys struct{ Current, Next string }

// sqlSeedKeys writes both keys or none: the keys of a database are those that the first broker brought.
const sqlSeedKeys = `
insert into signing_key (slot, key, created_at)
select k.slot, k.key, clock_timestamp() from (values ('current', $1), ('next', $2)) as k(slot, key)
where not exists (select from signing_key)
on conflict (slot) do nothing`

const sqlReadKeys = `
select (select key from signing_key where slot = 'current'), (select key from signing_key where slot = 'next')`

func (e *Engine) seedKeys(ctx context.Context) error {
	seed := SigningKeys{Current: e.cfg.CurrentKey, Next: e.cfg.NextKey}
	for _, key := range []*string{&seed.Current, &seed.Next} {
		if *key != "" {
			continue
		}
		minted, err := sign.NewKey()
		if err != nil {
			return fmt.Errorf("mint a signing key: %w", err)
		}
		*key = minted
	}
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	if _, err := e.pool.Exec(ctx, sqlSeedKeys, seed.Current, seed.Next); err != nil {
		return e.unavailable("write the signing keys", err)
	}
	return e.readKeys(ctx)
}

// readKeys learns of keys that another broker rotated.
func (e *Engine) readKeys(ctx context.Context) error {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	var keys SigningKeys
	if err := e.pool.QueryRow(ctx, sqlReadKeys).Scan(&keys.Current, &keys.Next); err != nil {
		return e.unavailable("read the signing keys", err)
	}
	e.keys.Store(&keys)
	return nil
}

// SigningKeys are the keys as this broker knows them: those of another broker's rotation after a few seconds.
func (e *Engine) SigningKeys() SigningKeys { return *e.keys.Load() }
