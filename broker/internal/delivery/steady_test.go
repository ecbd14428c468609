package delivery

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
)

// TestSteadyStatementsKeepTheirPlans plans the statements of outcomes when there are no tasks, and runs them when there are
// many: they still read only what they are about, and nothing of them is compiled.
func TestSteadyStatementsKeepTheirPlans(t *testing.T) {
	t.Parallel()
	conn := pgtest.Admin(t, database(t))
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`set jit = on`)
	exec(strings.ReplaceAll(sqlSteady, "true)", "false)")) // for the session
	statements := map[string]string{
		"delivered": `('{00000000-0000-0000-0000-000000000001}', '{0}', '{0}', '{7}', '{2026-01-01Z}', '{200}', '{""}', '{""}', 2, 5)`,
		"claim":     `(7, 10, '{}')`,
		"lanes":     `(7, '{1}', '{10}')`,
		"ended":     `('{00000000-0000-0000-0000-000000000003}', '{0}')`,
		"retried":   `('{00000000-0000-0000-0000-000000000004}', '{0}', '{2026-01-01Z}')`,
		"fence":     `('{00000000-0000-0000-0000-000000000002}', '{0}', '{0}', '{7}')`,
	}
	exec(`vacuum analyze delivery_task`) // there is not even a page
	exec(`prepare delivered as ` + sqlDelivered)
	exec(`prepare ended as ` + sqlEnd)
	exec(`prepare claim as ` + sqlClaim)
	exec(`prepare lanes as ` + sqlClaimLanes)
	exec(`prepare retried as ` + sqlRetry)
	exec(`prepare fence as ` + sqlFence)
	for name, args := range statements {
		explain(t, conn, "execute "+name+" "+args)
	}
	exec(`
insert into delivery_task (message_id, target, retried, cancelled, due_at, host, size, lease)
select lpad(to_hex(i), 32, '0')::uuid, 0, 0, false, clock_timestamp(), 1, 100, case when i < 20000 then 7 end from generate_series(1, 20010) as i`)
	for name, args := range statements {
		text := explain(t, conn, "execute "+name+" "+args)
		if strings.Contains(text, `"JIT"`) {
			t.Errorf("%s is compiled\n%s", name, text)
		}
		var explained []struct{ Plan sought }
		if err := json.Unmarshal([]byte(text), &explained); err != nil {
			t.Fatal(err)
		}
		if by := explained[0].Plan.by(); len(by) == 0 || slices.ContainsFunc(by, func(cond string) bool { return cond == "" }) {
			t.Errorf("%s looks tasks up by %q\n%s", name, by, text)
		}
	}
}

// sought is a node of a plan that says by which entries of an index it finds rows.
type sought struct {
	Table string `json:"Relation Name"`
	Node  string `json:"Node Type"`
	By    string `json:"Index Cond"`
	Plans []sought
}

// by are the conditions by which a plan finds tasks; "" for those that it reads as a whole.
func (s sought) by() (conditions []string) {
	if s.Table == "delivery_task" && s.Node != "ModifyTable" {
		conditions = append(conditions, s.By)
	}
	for _, below := range s.Plans {
		conditions = append(conditions, below.by()...)
	}
	return conditions
}
