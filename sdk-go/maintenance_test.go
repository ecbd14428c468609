package posthorn_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func TestMaintenance(t *testing.T) {
	t.Parallel()
	server := newScript(t,
		answer(200, `{"maintenanceMode":true,"popMaintenanceMode":false,"bufferedMessages":3,"bufferHealthy":true,"bufferStats":{"pendingCount":3,`+
			`"failedCount":2,"dbHealthy":true,"totalBytes":900,"oldestSeconds":1.5,"failedFiles":{"count":2,"totalBytes":70}}}`),
		answer(200, `{"maintenanceMode":true,"bufferedMessages":0,"bufferHealthy":true,"message":"on"}`),
		answer(409, `{"error":"maintenance needs a spool, and this broker has none"}`),
		answer(200, `{"popMaintenanceMode":true,"message":"m"}`),
		answer(200, `{"popMaintenanceMode":false,"message":"m"}`),
		answer(200, `{"pending":3,"failed":2,"dbHealthy":true,"worker":0}`),
		answer(200, `{"maintenanceMode":true,"popMaintenanceMode":true,"catalogVersion":9,"queues":1,"partitions":2,"shardHeads":[4,5],"parkedPops":6,"dbHealthy":true}`),
		answer(200, `{"status":"ok"}`),
	)
	client := newClient(t, server.URL, posthorn.Options{})
	check := func(what string, got any, err error, want any) {
		t.Helper()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v; want %+v", what, got, err, want)
		}
	}
	state, err := client.Maintenance(testContext(t))
	check("Maintenance", state, err, posthorn.Maintenance{
		Enabled: true, Buffered: 3, BufferedBytes: 900, Oldest: 1500 * time.Millisecond, Healthy: true, DatabaseUp: true, Failed: 2, FailedBytes: 70,
	})
	switched, err := client.SetMaintenance(testContext(t), true)
	check("SetMaintenance", switched, err, posthorn.MaintenanceSwitch{Enabled: true, Healthy: true, Message: "on"})
	_, err = client.SetMaintenance(testContext(t), true)
	if refused, ok := errors.AsType[*posthorn.APIError](err); !ok || refused.Status != 409 {
		t.Errorf("without a spool: %v", err)
	}
	on, err := client.PopMaintenance(testContext(t))
	check("PopMaintenance", on, err, true)
	on, err = client.SetPopMaintenance(testContext(t), false)
	check("SetPopMaintenance", on, err, false)
	buffers, err := client.Buffers(testContext(t))
	check("Buffers", buffers, err, posthorn.Buffers{Pending: 3, Failed: 2, DatabaseUp: true})
	shared, err := client.SharedState(testContext(t))
	if len(shared.Raw) == 0 {
		t.Error("the raw answer is missing")
	}
	shared.Raw = nil
	check("SharedState", shared, err, posthorn.SharedState{
		Maintenance: true, PopMaintenance: true, CatalogVersion: 9, ShardHeads: []int64{4, 5}, ParkedPops: 6, DatabaseUp: true,
	})
	if err := client.Notify(testContext(t), "<q>", ""); err != nil {
		t.Error(err)
	}
	for i, want := range []string{
		"GET /api/v1/system/maintenance ", `POST /api/v1/system/maintenance {"enabled":true}`, `POST /api/v1/system/maintenance {"enabled":true}`,
		"GET /api/v1/system/maintenance/pop ", `POST /api/v1/system/maintenance/pop {"enabled":false}`,
		"GET /api/v1/status/buffers ", "GET /api/v1/system/shared-state ", `POST /internal/api/notify {"queue":"<q>"}`,
	} {
		if seen := server.requests(8)[i]; seen.Method+" "+seen.Target+" "+seen.Body != want {
			t.Errorf("sent %s %s %s\nwant %s", seen.Method, seen.Target, seen.Body, want)
		}
	}
	if err := client.Notify(testContext(t), "\xff", ""); err == nil {
		t.Error("a name that is no UTF-8 was sent")
	}
}
