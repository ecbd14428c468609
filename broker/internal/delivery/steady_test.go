package delivery

import (
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
		"fence":     `('{00000000-0000-0000-0000-000000000002}', '{0}', '{0}', '{7}')`,
	}
	exec(`prepare delivered as ` + sqlDelivered)
	exec(`prepare fence as ` + sqlFence)
	for name, args := range statements {
		explain(t, conn, "execute "+name+" "+args)
	}
	exec(`
insert into delivery_task (message_id, target, retried, cancelled, due_at, host, size, lease)
select lpad(to_hex(i), 32, '0')::uuid, 0, 0, false, clock_timestamp(), 1, 100, 7 from generate_series(1, 20000) as i`)
	for name, args := range statements {
		text := explain(t, conn, "execute "+name+" "+args)
		if strings.Contains(text, `"JIT"`) {
			t.Errorf("%s is compiled\n%s", name, text)
		}
		if !strings.Contains(text, `"delivery_task_pkey"`) {
			t.Errorf("%s does not go by the key of a task\n%s", name, text)
		}
	}
}
