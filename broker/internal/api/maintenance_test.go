package api

import (
	"net/http"
	"testing"
)

// TestMaintenanceWithoutASpool is refused with a reason, and everything else is answered.
func TestMaintenanceWithoutASpool(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	for _, c := range []struct {
		method, path, body string
		status             int
		answer             string
	}{
		{"POST", "/api/v1/system/maintenance", `{"enabled":true}`, 409, `{"error":"maintenance needs a spool, and this broker has none"}`},
		{"POST", "/api/v1/system/maintenance", `{"enabled":1}`, 400, `{"error":"enabled (boolean) is required"}`},
		{"POST", "/api/v1/system/maintenance", `{"enabled":false}`, 200, `{"maintenanceMode":false,"bufferedMessages":0,"bufferHealthy":false,"message":"pushes go to PostgreSQL"}`},
		{"GET", "/api/v1/system/maintenance", ``, 200, `{"maintenanceMode":false,"popMaintenanceMode":false,"bufferedMessages":0,"bufferHealthy":false,` +
			`"bufferStats":{"pendingCount":0,"failedCount":0,"dbHealthy":true,"totalBytes":0,"oldestSeconds":0,"failedFiles":{"count":0,"totalBytes":0}}}`},
		{"GET", "/api/v1/status/buffers", ``, 200, `{"pending":0,"failed":0,"dbHealthy":true,"worker":0}`},
		{"POST", "/api/v1/system/maintenance/pop", `{"enabled":true}`, 200, `{"popMaintenanceMode":true,"message":"pops find nothing"}`},
		{"GET", "/api/v1/system/maintenance/pop", ``, 200, `{"popMaintenanceMode":true,"message":"pops find nothing"}`},
		{"PUT", "/testing/faults", `{}`, 500, `{"error":"internal error"}`}, // this engine was opened without a set of faults
	} {
		if got := b.do(c.method, c.path, c.body); got.status != c.status || string(got.body) != c.answer {
			t.Errorf("%s %s %s: %d %s, want %d %s", c.method, c.path, c.body, got.status, got.body, c.status, c.answer)
		}
	}
}

// TestTestRoutesAreAbsent answers the routes for tests as any unknown one where they are not served.
func TestTestRoutesAreAbsent(t *testing.T) {
	t.Parallel()
	b := start(t, func(cfg *Config) { cfg.Testing = false })
	for path, method := range map[string]string{"/testing/faults": http.MethodPut, "/testing/clock": http.MethodPost} {
		if got := b.do(method, path, `{}`); got.status != 404 || string(got.body) != `{"error":"Not Found","code":"no_such_route"}` {
			t.Errorf("%s %s: %d %s", method, path, got.status, got.body)
		}
	}
}

func TestParseGroup(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]string{
		"q/p": {"q", "p"}, "a%2Fb/c%25": {"a/b", "c%"}, "ü/ ": {"ü", " "},
		"q": {}, "q/": {}, "/p": {}, "q/p/r": {}, "q%/p": {}, "q/%zz": {}, "": {},
	} {
		g, ok := parseGroup(text)
		if ok != (want[0] != "") || ok && [2]string{g.Queue, g.Partition} != want {
			t.Errorf("%q: %+v, %v", text, g, ok)
		}
	}
}
