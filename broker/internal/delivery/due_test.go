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

// TestDueIsAnIndexRange looks for what is due among a million tasks that are not. Each look reads a range of an index, as
// the plans and the pages that were read show, whether the table's statistics are fresh or not there yet.
func TestDueIsAnIndexRange(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("fills a table")
	}
	url := database(t)
	conn := pgtest.Admin(t, url)
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
	looks := []struct {
		name, sql, args string
		pages           int // most that it may touch
	}{
		{"claim", sqlClaim, `(1, 500, '{}')`, 10_000}, // 300 rows with their entries in six indexes
		{"claim without some hosts", sqlClaim, `(1, 500, ` + hosts + `)`, 10_000},
		{"next due", sqlNextDue, ``, 50},
		{"due left", sqlDueLeft, ``, 50},
		{"park", sqlPark, `(` + hosts + `, 2000)`, 2_000},
		{"find parked", sqlFindParked, ``, 50},
		{"claim from lanes", sqlClaimLanes, `(1, array[1,2,3]::bigint[], array[10,10,10]::integer[])`, 50},
		{"gates to look at", sqlWoken, `(1000)`, 50},
		{"dead brokers", sqlReap, ``, 50},
	}
	for i, look := range looks {
		exec(fmt.Sprintf("prepare look_%d as %s", i, look.sql))
	}
	check := func(when string) {
		t.Helper()
		for i, look := range looks {
			var text string
			for range 7 { // after the fifth time PostgreSQL may think of a plan for all arguments
				text = explain(t, conn, fmt.Sprintf("execute look_%d %s", i, look.args))
			}
			var explained []struct {
				Plan plan
				Time float64 `json:"Execution Time"`
			}
			if err := json.Unmarshal([]byte(text), &explained); err != nil {
				t.Fatal(err)
			}
			p := explained[0].Plan
			if tables := strings.Join(p.scanned(), " "); strings.Contains(tables, "delivery_task") {
				t.Errorf("%s, %s: scans %s\n%s", when, look.name, tables, text)
			}
			if pages := p.Hit + p.Read; pages > look.pages {
				t.Errorf("%s, %s: touches %d pages\n%s", when, look.name, pages, text)
			}
			t.Logf("%s, %s: %.2f ms, %d pages", when, look.name, explained[0].Time, p.Hit+p.Read)
		}
	}
	exec(`alter table delivery_task set (autovacuum_enabled = off)`)
	fill(1_000_000, "1 day")
	fill(300, "-1 minute")
	check("without statistics")
	exec(`analyze delivery_task`)
	check("with statistics")
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
