package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/seal"
)

// ErrNoKey says that a queue's messages must be encrypted and that there is no key to do it with.
var ErrNoKey = errors.New("the queue is encrypted and the broker has no encryption key")

// sealing encrypts what is stored and decrypts what is read. A nil keys stores plaintext, unless strict.
type sealing struct {
	keys   *seal.Keys
	strict bool
	warned atomic.Bool
}

// binding is what a message's envelope belongs to.
func binding(queue, partition string, id uuid.UUID) seal.Binding {
	return seal.Binding{Queue: queue, Partition: partition, MessageID: id}
}

// protect encrypts the payloads of a group whose queue asks for it.
func (e *Engine) protect(g *pushGroup, q *queueState) error {
	if !q.config.Load().options.EncryptionEnabled {
		return nil
	}
	return e.sealGroup(g)
}

// protectSpooled encrypts the payloads of a group that goes to the spool: unless its queue is known not to
// ask for it, as soon as there is a key.
func (e *Engine) protectSpooled(g *pushGroup) error {
	q := e.catalog.queue(g.queue)
	if q == nil && e.sealing.keys == nil {
		return nil
	}
	if q != nil {
		return e.protect(g, q)
	}
	return e.sealGroup(g)
}

// sealGroup encrypts what is not encrypted yet.
func (e *Engine) sealGroup(g *pushGroup) error {
	if e.sealing.keys == nil {
		if e.sealing.strict {
			return ErrNoKey
		}
		if !e.sealing.warned.Swap(true) {
			e.log.Warn("messages of an encrypted queue are stored as they are: there is no encryption key", "queue", g.queue)
		}
		return nil
	}
	if g.sealed {
		return nil
	}
	frames := make([]byte, 0, len(g.frames)+len(g.entries)*(seal.Overhead+1))
	for i := range g.entries {
		en := &g.entries[i]
		f, _, err := decodeFrame(g.frames[en.start:en.end])
		if err != nil {
			return err
		}
		en.start = len(frames)
		d := f.draft()
		if !d.sealed {
			d.sealed = true
			if d.payload, err = e.sealing.keys.Seal(nil, binding(g.queue, g.partition, d.id), d.payload); err != nil {
				return err
			}
		}
		frames = appendFrame(frames, &d)
		en.end = len(frames)
	}
	g.frames, g.sealed = frames, true
	return nil
}

// UnreadableError says that a stored message cannot be decrypted.
type UnreadableError struct {
	MessageID uuid.UUID
	Err       error // of package seal
}

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("message %s cannot be decrypted: %v", e.MessageID, e.Err)
}

func (e *UnreadableError) Unwrap() error { return e.Err }

// opened returns a message's payload as it was pushed. The error is an *UnreadableError.
func (e *Engine) opened(queue, partition string, id uuid.UUID, sealed bool, payload []byte) ([]byte, error) {
	if !sealed {
		return payload, nil
	}
	opened, err := e.sealing.keys.Open(binding(queue, partition, id), payload)
	if err != nil {
		return nil, &UnreadableError{id, err}
	}
	return opened, nil
}

// shown returns a message's payload for somebody who looks at it: what cannot be decrypted is shown as it is
// stored.
func (e *Engine) shown(queue, partition string, id uuid.UUID, sealed bool, payload []byte) ([]byte, error) {
	opened, err := e.opened(queue, partition, id, sealed, payload)
	if err != nil {
		return envelopeJSON(payload)
	}
	return opened, nil
}

// envelopeJSON is a payload that could not be decrypted, as a JSON value.
func envelopeJSON(envelope []byte) ([]byte, error) {
	return json.Marshal(struct {
		Encrypted []byte `json:"encrypted"`
		KeyID     string `json:"keyId"`
	}{envelope, seal.KeyID(envelope)})
}

// unseal decrypts what a take has found, before it is claimed. In strict mode the take ends before the first
// message that cannot be decrypted. When that is the first of all, nothing is left of the take, and the message
// is returned: it is to be buried.
func (e *Engine) unseal(t *take) (*unreadable, error) {
	part, readable := t.cursor.part, 0
	for _, s := range t.segments {
		for offset := max(s.base, t.from); offset < min(s.end(), t.to); offset++ {
			if !s.sealed(offset) {
				readable++
				continue
			}
			f, err := s.frame(offset)
			if err != nil {
				return nil, err
			}
			payload, err := e.opened(part.queue.name, part.name, f.id, true, f.payload)
			switch {
			case err != nil && e.sealing.strict:
				if t.to, t.count = offset, readable; readable > 0 {
					return nil, nil
				}
				t.hiddenUntil = time.Time{}
				return &unreadable{t, offset, s.created, f, err}, nil
			case err != nil:
				e.log.Warn("a message is delivered as it is stored", "queue", part.queue.name, "err", err)
				if payload, err = envelopeJSON(f.payload); err != nil {
					return nil, err
				}
			}
			if t.opened == nil {
				t.opened = map[int64][]byte{}
			}
			t.opened[offset] = payload
			readable++
		}
	}
	return nil, nil
}

// unsealRound does so for a round.
func (e *Engine) unsealRound(round []*serving) error {
	var found []*unreadable
	for _, s := range round {
		for _, t := range s.takes {
			if t.count == 0 {
				continue
			}
			bad, err := e.unseal(t)
			if err != nil {
				return err
			}
			if bad != nil {
				found = append(found, bad)
			}
		}
	}
	for _, u := range found {
		if err := e.bury(u); err != nil {
			return err
		}
	}
	return nil
}

// unreadable is a message in front of a cursor that cannot be decrypted.
type unreadable struct {
	take   *take
	offset int64
	at     time.Time
	frame  frame
	err    error
}

// The cursor moves past the message only from where it is known to be, and only together with its filing.
const sqlBury = `
with moved as (
    insert into cursor as c (partition_id, group_id, committed, delivered, attempt, retries, updated_at)
    select $1, g.id, $4, $4, 0, 0, clock_timestamp() + $5::interval
    from consumer_group g
    where g.id = $2 and g.version = $16 and clock_timestamp() + $5::interval < $6::timestamptz
    on conflict (partition_id, group_id) do update set
        committed = excluded.committed, delivered = greatest(c.delivered, excluded.committed), retries = 0,
        lease_id = null, lease_end = null, lease_until = null, updated_at = clock_timestamp() + $5::interval
    where c.committed = $3 and (c.lease_until is null or c.lease_until <= clock_timestamp() + $5::interval)
    returning c.retries
), buried as (
    insert into dead_letter (queue_id, partition_id, group_name, log_offset, message_id, transaction_id, trace_id,
                             producer_sub, error, retries, payload, sealed, created_at, failed_at)
    select $7, $1, $8, $4::bigint - 1, $9, $10, $11, nullif($12, ''), $13, moved.retries, $14, true, $15,
           clock_timestamp() + $5::interval
    from moved
)
select count(*) from moved`

// bury files a message that cannot be decrypted as a dead letter, if its cursor is as known. Whoever popped
// tries again, from what is known then.
func (e *Engine) bury(u *unreadable) error {
	c := u.take.cursor
	var trace *uuid.UUID
	if u.frame.trace != uuid.Nil {
		trace = &u.frame.trace
	}
	var moved int
	err := e.retrying(e.ctx, "file a message that cannot be decrypted", func(ctx context.Context) error {
		return e.pool.QueryRow(ctx, sqlBury, c.part.id, c.group.id, u.take.committed, u.offset+1, e.clockOffset(), e.latest(ctx),
			c.part.queue.id, c.group.name, u.frame.id, u.frame.transactionID(), trace, string(u.frame.sub), u.err.Error(),
			u.frame.payload, u.at, u.take.version).Scan(&moved)
	})
	if err != nil {
		return err
	}
	if moved > 0 {
		e.metrics.filed()
		e.traffic.add(c.part.queue.id, Traffic{DeadLettered: 1})
		e.log.Error("a message cannot be decrypted; it is a dead letter now", "queue", c.part.queue.name, "group", c.group.name, "err", u.err)
	}
	_, err = e.readCursors(e.ctx, []*cursor{c})
	return err
}
