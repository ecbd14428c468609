package posthorn_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func TestListConsumerGroups(t *testing.T) {
	t.Parallel()
	server := newScript(t, answer(200, `[
		{"name":"g","topics":["q"],"queueName":"q","members":1,"partitionCursors":2,"partitionsWithLag":3,"totalLag":4,"maxTimeLag":301,"state":"Lagging",
		"subscriptionMode":"new","subscriptionTimestamp":"2026-01-02T03:04:05Z","subscriptionCreatedAt":"2026-01-02T03:04:06Z"},
		{"name":"h","topics":["q"],"queueName":"q","state":"Stable","subscriptionMode":"all","subscriptionTimestamp":null,"subscriptionCreatedAt":"2026-01-02T03:04:07Z"}]`))
	got, err := newClient(t, server.URL, posthorn.Options{}).ListConsumerGroups(testContext(t))
	want := []posthorn.ConsumerGroup{{
		Name: "g", Queue: "q", Members: 1, Partitions: 2, Lagging: 3, Lag: 4, MaxTimeLag: 301 * time.Second, State: posthorn.GroupLagging,
		SubscriptionMode: posthorn.SubscribeNew, SubscriptionFrom: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), CreatedAt: time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC),
	}, {Name: "h", Queue: "q", State: posthorn.GroupStable, SubscriptionMode: posthorn.SubscribeAll, CreatedAt: time.Date(2026, 1, 2, 3, 4, 7, 0, time.UTC)}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
	if seen := server.requests(1)[0]; seen.Method != "GET" || seen.Target != "/api/v1/consumer-groups" {
		t.Errorf("sent %s %s", seen.Method, seen.Target)
	}
}

func TestLaggingPartitions(t *testing.T) {
	t.Parallel()
	reply := answer(200, `[{"consumer_group":"g","queue_name":"q","partition_name":"p","partition_id":"pid","worker_id":"w","offset_lag":7,"time_lag_seconds":5400,"lag_hours":1.5,
		"oldest_unconsumed_at":"2026-01-02T03:04:05Z","last_consumed_at":null}]`)
	server := newScript(t, reply, reply, reply)
	client := newClient(t, server.URL, posthorn.Options{})
	want := []posthorn.GroupPartition{{
		ConsumerGroup: "g", Queue: "q", Partition: "p", PartitionID: "pid", LeaseID: "w", Lag: 7, TimeLag: 90 * time.Minute, Oldest: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}}
	targets := []string{"", "?minLagSeconds=2", "?minLagSeconds=0"}
	for i, least := range []time.Duration{0, 1500 * time.Millisecond, -1} {
		got, err := client.LaggingPartitions(testContext(t), least)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
		}
		if seen := server.requests(i + 1)[i]; seen.Target != "/api/v1/consumer-groups/lagging"+targets[i] {
			t.Errorf("sent %s", seen.Target)
		}
	}
}

func TestGetConsumerGroup(t *testing.T) {
	t.Parallel()
	server := newScript(t, answer(200, `{"a":{"partitions":[{"partition":"p","workerId":"w","lastConsumedAt":"2026-01-02T03:04:05Z","totalConsumed":8,"offsetLag":2,"timeLagSeconds":3,"leaseActive":true}]},
		"b":{"partitions":[]}}`), answer(404, `{"error":"Consumer group not found"}`))
	client := newClient(t, server.URL, posthorn.Options{})
	got, err := client.GetConsumerGroup(testContext(t), "a/b")
	want := map[string][]posthorn.GroupPartition{"a": {{
		ConsumerGroup: "a/b", Queue: "a", Partition: "p", LeaseID: "w", LastConsumed: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Consumed: 8, Lag: 2, TimeLag: 3 * time.Second,
	}}, "b": {}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
	if _, err := client.GetConsumerGroup(testContext(t), ""); !errors.Is(err, posthorn.ErrNotFound) {
		t.Errorf("error %v", err)
	}
	for i, want := range []string{"/api/v1/consumer-groups/a%2Fb", "/api/v1/consumer-groups/__QUEUE_MODE__"} {
		if seen := server.requests(2)[i]; seen.Method != "GET" || seen.Target != want {
			t.Errorf("sent %s %s", seen.Method, seen.Target)
		}
	}
}

func TestSubscribe(t *testing.T) {
	t.Parallel()
	server := newScript(t, cut, answer(200, `{"success":true,"consumerGroup":"g","newTimestamp":"2026-01-02T03:04:05.000000Z","rowsUpdated":2}`))
	n, err := newClient(t, server.URL, posthorn.Options{}).Subscribe(testContext(t), "g", time.Date(2026, 1, 2, 4, 4, 5, 6000, time.FixedZone("", 3600)))
	if err != nil || n != 2 {
		t.Errorf("got %d, %v", n, err)
	}
	if seen := server.requests(2)[1]; seen.Method != "POST" || seen.Target != "/api/v1/consumer-groups/g/subscription" || seen.Body != `{"subscriptionTimestamp":"2026-01-02T03:04:05.000006Z"}` {
		t.Errorf("sent %+v", seen)
	}
}

func TestSeek(t *testing.T) {
	t.Parallel()
	reply := answer(200, `{"success":true,"partitionsUpdated":3}`)
	server := newScript(t, reply, reply, answer(404, `{"error":"No partition found for this consumer group and queue"}`))
	client := newClient(t, server.URL, posthorn.Options{})
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, opts := range []posthorn.SeekOptions{{Queue: "q", ToEnd: true}, {ConsumerGroup: "g", Queue: "q/1", Partition: "p", To: at}} {
		if n, err := client.Seek(testContext(t), opts); err != nil || n != 3 {
			t.Errorf("got %d, %v", n, err)
		}
	}
	if _, err := client.Seek(testContext(t), posthorn.SeekOptions{Queue: "q", ToEnd: true}); !errors.Is(err, posthorn.ErrNotFound) {
		t.Errorf("error %v", err)
	}
	for i, want := range []string{
		`/api/v1/consumer-groups/__QUEUE_MODE__/queues/q/seek {"toEnd":true}`,
		`/api/v1/consumer-groups/g/queues/q%2F1/partitions/p/seek {"timestamp":"2026-01-02T03:04:05Z"}`,
	} {
		if seen := server.requests(3)[i]; seen.Method != "POST" || seen.Target+" "+seen.Body != want {
			t.Errorf("sent %+v\nwant %s", seen, want)
		}
	}
}

// TestSeekIsNotRepeated: what was pushed since a first seek to the end would be skipped.
func TestSeekIsNotRepeated(t *testing.T) {
	t.Parallel()
	server := newScript(t, cut)
	if _, err := newClient(t, server.URL, posthorn.Options{}).Seek(testContext(t), posthorn.SeekOptions{Queue: "q", ToEnd: true}); err == nil {
		t.Error("a seek without an answer succeeded")
	}
	server.requests(1)
}

func TestSeekRefusesWhatHasNoTarget(t *testing.T) {
	t.Parallel()
	server := newScript(t)
	client := newClient(t, server.URL, posthorn.Options{})
	for want, opts := range map[string]posthorn.SeekOptions{
		"option Queue is empty":                        {ToEnd: true},
		"one of the options ToEnd and To must be set":  {Queue: "q"},
		"one of the options ToEnd and To must be set ": {Queue: "q", ToEnd: true, To: time.Now()},
		"Partition \"\\xff\" is not valid UTF-8":       {Queue: "q", Partition: "\xff", ToEnd: true},
		"ConsumerGroup \"\\xff\" is not valid UTF-8":   {Queue: "q", ConsumerGroup: "\xff", ToEnd: true},
		"Queue \"\\xff\" is not valid UTF-8":           {Queue: "\xff", ToEnd: true},
	} {
		if _, err := client.Seek(testContext(t), opts); err == nil || !strings.Contains(err.Error(), strings.TrimSpace(want)) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	server.requests(0)
}

func TestDeleteConsumerGroup(t *testing.T) {
	t.Parallel()
	server := newScript(t,
		answer(200, `{"success":true,"consumerGroup":"g","deletedPartitions":4,"metadataDeleted":true}`),
		answer(200, `{"success":false,"consumerGroup":"g","queueName":"a b","deletedPartitions":0,"metadataDeleted":false}`))
	client := newClient(t, server.URL, posthorn.Options{})
	got, err := client.DeleteConsumerGroup(testContext(t), "g", posthorn.DeleteGroupOptions{})
	if want := (posthorn.GroupDeletion{Existed: true, Partitions: 4}); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	got, err = client.DeleteConsumerGroup(testContext(t), "g", posthorn.DeleteGroupOptions{Queue: "a b", KeepSubscription: true})
	if want := (posthorn.GroupDeletion{}); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := client.DeleteConsumerGroup(testContext(t), "", posthorn.DeleteGroupOptions{}); err == nil {
		t.Error("deleted a group without a name")
	}
	for i, want := range []string{"/api/v1/consumer-groups/g?deleteMetadata=true", "/api/v1/consumer-groups/g/queues/a%20b?deleteMetadata=false"} {
		if seen := server.requests(2)[i]; seen.Method != "DELETE" || seen.Target != want || seen.Body != "" {
			t.Errorf("sent %+v\nwant %s", seen, want)
		}
	}
}
