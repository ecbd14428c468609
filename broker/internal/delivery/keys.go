package delivery

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthorn/posthorn/broker/internal/pg"
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

// SigningKeys are the keys of all brokers.
func (e *Engine) SigningKeys(ctx context.Context) (SigningKeys, error) {
	if err := e.readKeys(ctx); err != nil {
		return SigningKeys{}, err
	}
	return *e.keys.Load(), nil
}

const sqlLockKeys = `
select slot, key from signing_key order by slot for update`

const sqlRotateKeys = `
update signing_key set key = case slot when 'current' then $1 else $2 end, created_at = clock_timestamp()`

// RotateKeys makes the next key the current one and mints a next one. Other brokers sign with it within a second. The error is
// ErrUnavailable when nobody knows whether the keys were rotated; SigningKeys tells.
func (e *Engine) RotateKeys(ctx context.Context) (SigningKeys, error) {
	minted, err := sign.NewKey()
	if err != nil {
		return SigningKeys{}, fmt.Errorf("mint a signing key: %w", err)
	}
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	for attempt := 1; ; attempt++ {
		keys, err := e.rotateTo(ctx, minted)
		if err == nil {
			e.keys.Store(&keys)
			return keys, nil
		}
		again := pg.Unavailable(err) || pg.UnknownOutcome(err) || pg.Retryable(err)
		if attempt == 2 || !again || ctx.Err() != nil {
			return SigningKeys{}, e.unavailable("rotate the signing keys", err)
		}
		if !pg.Retryable(err) {
			e.pool.Reset()
		}
	}
}

// rotateTo makes minted the next key. What an attempt before this one has done is recognised by it and not done again.
func (e *Engine) rotateTo(ctx context.Context, minted string) (keys SigningKeys, err error) {
	err = pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sqlLockKeys)
		if err != nil {
			return err
		}
		was := map[string]string{}
		var slot, key string
		_, err = pgx.ForEachRow(rows, []any{&slot, &key}, func() error {
			was[slot] = key
			return nil
		})
		if err != nil {
			return err
		}
		if was["next"] == minted {
			keys = SigningKeys{Current: was["current"], Next: minted}
			return nil
		}
		keys = SigningKeys{Current: was["next"], Next: minted}
		_, err = tx.Exec(ctx, sqlRotateKeys, keys.Current, keys.Next)
		return err
	})
	return keys, err
}

// pollKeys is how long a broker may sign with keys that another one has rotated away.
const pollKeys = 500 * time.Millisecond

// keyLoop learns of rotations. It is silent about a database that is away: the other loops say so.
func (e *Engine) keyLoop() {
	for e.pause(pollKeys) {
		_ = e.readKeys(e.ctx)
	}
}
