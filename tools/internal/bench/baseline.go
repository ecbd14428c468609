package bench

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The comparison is what a producer would do without a broker: a row per message in one table, deduplicated by a
// unique index, each request a transaction of its own.
const (
	createRows = `
CREATE TABLE %s (
    id             bigint GENERATED ALWAYS AS IDENTITY,
    message_id     uuid NOT NULL,
    queue          text NOT NULL,
    partition      text NOT NULL,
    transaction_id text NOT NULL,
    payload        bytea NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (queue, partition, transaction_id)
)`
	insertRows = `
INSERT INTO %s (message_id, queue, partition, transaction_id, payload)
SELECT m, $1, p, t, d FROM unnest($2::uuid[], $3::text[], $4::text[], $5::bytea[]) AS item (m, p, t, d)
ON CONFLICT DO NOTHING`
	dropRows = `DROP TABLE IF EXISTS %s`
)

// rows is the comparison's table.
type rows struct {
	cfg   Config
	pool  *pgxpool.Pool
	table string
}

// openRows connects to a PostgreSQL on this machine and creates the table.
func openRows(ctx context.Context, cfg Config, run string) (*rows, error) {
	pc, err := pgxpool.ParseConfig(cfg.Baseline)
	if err != nil {
		return nil, fmt.Errorf("baseline URL: %w", err)
	}
	hosts := []string{pc.ConnConfig.Host}
	for _, f := range pc.ConnConfig.Fallbacks {
		hosts = append(hosts, f.Host)
	}
	for _, host := range hosts {
		if strings.HasPrefix(host, "/") { // the directory of a Unix socket
			continue
		}
		if _, err := loopbackAddress(ctx, host); err != nil {
			return nil, fmt.Errorf("baseline: %w", err)
		}
	}
	pc.MaxConns = int32(cfg.Conns)
	if cfg.BaselineConns > 0 {
		pc.MaxConns = int32(cfg.BaselineConns)
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("open baseline: %w", err)
	}
	r := &rows{cfg: cfg, pool: pool, table: pgx.Identifier{"posthorn_bench_" + run}.Sanitize()}
	if _, err := pool.Exec(ctx, fmt.Sprintf(createRows, r.table)); err != nil {
		pool.Close()
		return nil, fmt.Errorf("create the baseline's table: %w", err)
	}
	return r, nil
}

// databaseAddress is where a database listens: the path of a Unix socket, or a TCP port; "" and 0 when there is no URL.
func databaseAddress(rawURL string) (socket string, port int) {
	if rawURL == "" {
		return "", 0
	}
	pc, err := pgx.ParseConfig(rawURL)
	if err != nil {
		return "", 0
	}
	if strings.HasPrefix(pc.Host, "/") {
		return fmt.Sprintf("%s/.s.PGSQL.%d", strings.TrimSuffix(pc.Host, "/"), pc.Port), 0
	}
	return "", int(pc.Port)
}

// close drops the table, also when ctx has ended.
func (r *rows) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	defer r.pool.Close()
	if _, err := r.pool.Exec(ctx, fmt.Sprintf(dropRows, r.table)); err != nil {
		return fmt.Errorf("drop the baseline's table: %w", err)
	}
	return nil
}

// insert runs the comparison for d with as many callers as the broker had.
func (r *rows) insert(ctx context.Context, name string, d time.Duration) (*tally, error) {
	statement := fmt.Sprintf(insertRows, r.table)
	until := time.Now().Add(d)
	most := &budget{}
	most.left.Store(r.cfg.MaxMessages)
	tallies := make([]*tally, r.cfg.Conns)
	errs := make([]error, r.cfg.Conns)
	var wg sync.WaitGroup
	for worker := range r.cfg.Conns {
		t := newTally()
		tallies[worker] = t
		wg.Go(func() {
			b := newRowBatch(r.cfg, name, worker)
			for ctx.Err() == nil && time.Now().Before(until) {
				n := most.take(r.cfg.Batch)
				if n == 0 {
					return
				}
				b.fill(n)
				start := time.Now()
				tag, err := r.pool.Exec(ctx, statement, r.cfg.Queue, b.ids, b.partitions, b.transactions, b.payloads)
				done := time.Now()
				if err != nil {
					errs[worker] = err
					return
				}
				t.push.record(tag.RowsAffected(), done.Sub(start))
				t.last = done
			}
		})
	}
	wg.Wait()
	sum := newTally()
	for i, t := range tallies {
		if errs[i] != nil && ctx.Err() == nil {
			return nil, fmt.Errorf("insert rows: %w", errs[i])
		}
		sum.merge(t)
	}
	return sum, nil
}

// rowBatch holds the parameters of one insert, reused from request to request.
type rowBatch struct {
	cfg          Config
	prefix       string
	sequence     int64
	next         int
	payload      []byte
	ids          []pgtype.UUID
	partitions   []string
	transactions []string
	payloads     [][]byte
}

func newRowBatch(cfg Config, name string, worker int) *rowBatch {
	return &rowBatch{
		cfg: cfg, prefix: name + "-" + strconv.Itoa(worker) + "-", next: worker * cfg.Partitions / cfg.Conns,
		payload: []byte(`"` + strings.Repeat("x", cfg.Payload-2) + `"`),
	}
}

// fill prepares n rows, spread over partitions as the pushes are.
func (b *rowBatch) fill(n int) {
	b.ids, b.partitions, b.transactions, b.payloads = b.ids[:0], b.partitions[:0], b.transactions[:0], b.payloads[:0]
	for i := range n {
		b.ids = append(b.ids, pgtype.UUID{Bytes: newUUIDv7(), Valid: true})
		b.partitions = append(b.partitions, "p-"+strconv.Itoa(b.next))
		b.transactions = append(b.transactions, b.prefix+strconv.FormatInt(b.sequence, 10))
		b.payloads = append(b.payloads, b.payload)
		b.sequence++
		if b.cfg.SpreadItem || i == n-1 {
			b.next = (b.next + 1) % b.cfg.Partitions
		}
	}
}

// newUUIDv7 mints an id as a broker does (RFC 9562): milliseconds since 1970, then random bits.
func newUUIDv7() (id [16]byte) {
	_, _ = rand.Read(id[6:]) // never fails
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(time.Now().UnixMilli()))
	copy(id[:6], ms[2:])
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return id
}
