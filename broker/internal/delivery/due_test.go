package delivery

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
)

// plan is a node of what EXPLAIN prints.
type plan struct {
	Node  string `json:"Node Type"`
	Table string `json:"Relation Name"`
	Hit   int    `json:"Shared Hit Blocks"`
	Read  int    `json:"Shared Read Blocks"`
	Plans []plan
}

// scanned are the tables that a plan reads from one end to the other.
func (p plan) scanned() (tables []string) {
	if p.Node == "Seq Scan" {
		tables = append(tables, p.Table)
	}
	for _, below := range p.Plans {
		tables = append(tables, below.scanned()...)
	}
	return tables
}

// look is a statement that must not read what it does not want.
type look struct {
	name, sql, args string
	pages           int // most that it may touch
}

// explainLooks holds statements to ranges of indexes, by their plans and by the pages that they touch.
func explainLooks(t *testing.T, conn *pgx.Conn, when string, looks []look) {
	t.Helper()
	for _, l := range looks {
		if _, err := conn.Exec(t.Context(), "prepare look as "+l.sql); err != nil {
			t.Fatalf("%s: %v", l.name, err)
		}
		var text string
		for range 7 { // after the fifth time PostgreSQL may think of a plan for all arguments
			text = explain(t, conn, "execute look "+l.args)
		}
		if _, err := conn.Exec(t.Context(), "deallocate look"); err != nil {
			t.Fatal(err)
		}
		var explained []struct {
			Plan plan
			Time float64 `json:"Execution Time"`
		}
		if err := json.Unmarshal([]byte(text), &explained); err != nil {
			t.Fatal(err)
		}
		p := explained[0].Plan
		if tables := strings.Join(p.scanned(), " "); strings.Contains(tables, "delivery_") && !strings.Contains(tables, "delivery_broker") && !strings.Contains(tables, "delivery_wake") {
			t.Errorf("%s, %s: scans %s\n%s", when, l.name, tables, text)
		}
		if pages := p.Hit + p.Read; pages > l.pages {
			t.Errorf("%s, %s: touches %d pages\n%s", when, l.name, pages, text)
		}
		t.Logf("%s, %s: %.2f ms, %d pages", when, l.name, explained[0].Time, p.Hit+p.Read)
	}
}

// TestDueIsAnIndexRange looks for what is due among a million tasks that are not. Each look reads a range of an index,
// whether the table's statistics are fresh or not there yet.
func TestDueIsAnIndexRange(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("fills a table")
	}
	conn := pgtest.Admin(t, database(t))
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	fill := func(n int, from string) {
		t.Helper()
		exec(fmt.Sprintf(`
insert into delivery_task (message_id, target, retried, cancelled, due_at, host, size)
select lpad(to_hex(extract(epoch from clock_timestamp())::bigint * 10000000 + i), 32, '0')::uuid, 0, 0, false, clock_timestamp() + interval '%s' + i * interval '1 ms', i %% 100, 100
from generate_series(1, %d) as i`, from, n))
	}
	const hosts = `'{0,1,2,3,4,5,6,7,8,9}'`
	looks := []look{
		{"claim", sqlClaim, `(1, 500, '{}')`, 10_000}, // 300 rows with their entries in six indexes
		{"claim without some hosts", sqlClaim, `(1, 500, ` + hosts + `)`, 10_000},
		{"next due", sqlNextDue, ``, 50},
		{"due left", sqlDueLeft, `(clock_timestamp())`, 50},
		{"park", sqlPark, `(` + hosts + `, 2000)`, 2_000},
		{"find parked", sqlFindParked, ``, 50},
		{"claim from lanes", sqlClaimLanes, `(1, array[1,2,3]::bigint[], array[10,10,10]::integer[])`, 50},
		{"gates to look at", sqlWoken, `(1000)`, 50},
		{"dead brokers", sqlReap, ``, 50},
	}
	exec(`alter table delivery_task set (autovacuum_enabled = off)`)
	fill(1_000_000, "1 day")
	fill(300, "-1 minute")
	explainLooks(t, conn, "without statistics", looks)
	exec(`analyze delivery_task`)
	explainLooks(t, conn, "with statistics", looks)
}

// TestSweepIsAnIndexRange looks for what is past its time among much that is not.
func TestSweepIsAnIndexRange(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("fills tables")
	}
	conn := pgtest.Admin(t, database(t))
	for _, table := range []string{"delivery_message", "delivery_task", "delivery_log", "delivery_dead_letter", "delivery_dedup"} {
		if _, err := conn.Exec(t.Context(), fmt.Sprintf(`alter table %s set (autovacuum_enabled = off)`, table)); err != nil {
			t.Fatal(err)
		}
	}
	const ids = `md5(i::text)::uuid`
	for _, sql := range []string{
		`insert into delivery_message (id, created_at, not_before, method, url, caller_ip, header, settings, body)
select ` + ids + `, clock_timestamp(), clock_timestamp(), 'POST', 'http://example.com/', '', '', '{}', repeat('x', 100)::bytea from generate_series(1, 100000) i`,
		`insert into delivery_task (message_id, target, retried, cancelled, due_at, host, size)
select ` + ids + `, 0, 0, false, clock_timestamp() + interval '1 day', i, 100 from generate_series(1000, 100000) i`,
		`insert into delivery_log (message_id, target, time, state, retried)
select ` + ids + `, 0, clock_timestamp() - case when i <= 300 then interval '100 days' else interval '0' end, 1, 0 from generate_series(1, 100000) i`,
		`insert into delivery_dead_letter
select ` + ids + `, ` + ids + `, 0, 0, clock_timestamp() - case when i <= 300 then interval '100 days' else interval '0' end, '', 0, '', '' from generate_series(1, 100000) i`,
		`insert into delivery_dedup
select sha256(i::text::bytea), '', false, clock_timestamp() - case when i <= 300 then interval '100 days' else interval '0' end from generate_series(1, 100000) i`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	var some string
	if err := conn.QueryRow(t.Context(), `select array_agg(`+ids+`)::text from generate_series(1, 1000) i`).Scan(&some); err != nil {
		t.Fatal(err)
	}
	looks := []look{
		{"log", sqlTrim, `('90 days', 1000)`, 6_000},
		{"dead letters", sqlTrimDead, `('90 days', 1000)`, 6_000},
		{"deduplication ids", sqlTrimDedup, `('90 days', 1000)`, 6_000},
		{"messages", sqlTrimMessages, `('` + some + `')`, 30_000},
	}
	explainLooks(t, conn, "without statistics", looks)
	if _, err := conn.Exec(t.Context(), `analyze`); err != nil {
		t.Fatal(err)
	}
	explainLooks(t, conn, "with statistics", looks)
}

// explain runs a statement, takes back what it did, and returns how it was done.
func explain(t *testing.T, conn *pgx.Conn, statement string) (text string) {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.QueryRow(t.Context(), "explain (analyze, buffers, format json) "+statement).Scan(&text); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	return text
}
