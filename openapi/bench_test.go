package openapi

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
)

func benchPush(n int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"items":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"queue":"orders.created","partition":"customer-42","transactionId":"order-%d-created","payload":{"orderId":%d,"total":4200}}`, i, i)
	}
	b.WriteString(`]}`)
	return b.Bytes()
}

func benchPushed(n int) []byte {
	var b bytes.Buffer
	b.WriteByte('[')
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"index":%d,"message_id":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b83","transaction_id":"order-%d-created","queueName":"orders.created","status":"queued"}`, i, i)
	}
	b.WriteByte(']')
	return b.Bytes()
}

func benchPopped(n int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"success":true,"queue":"orders.created","partition":"customer-42","partitionId":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84","leaseId":"0198f2c1-5e21-7a02-8f00-1b2c3d4e5f60","consumerGroup":"billing","partitionsClaimed":1,"messages":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"id":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b83","transactionId":"order-%d-created","traceId":null,"data":{"orderId":%d,"total":4200},"producerSub":null,"createdAt":"2026-01-15T10:31:00.123456Z","partitionId":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84","partition":"customer-42","leaseId":"0198f2c1-5e21-7a02-8f00-1b2c3d4e5f60","consumerGroup":"billing","queue":"orders.created","deliveryAttempt":1}`, i, i)
	}
	b.WriteString(`]}`)
	return b.Bytes()
}

// BenchmarkBody compares the compiled check of hot bodies with kin-openapi.
func BenchmarkBody(b *testing.B) {
	spec, err := Load()
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		make func(n int) []byte
		body *body
	}{
		{"push-request", benchPush, spec.operations["push"].body},
		{"push-response", benchPushed, spec.operations["push"].responses[201].body},
		{"pop-response", benchPopped, spec.operations["popQueue"].responses[200].body},
	} {
		for _, n := range []int{1, 10, 100} {
			data := c.make(n)
			for _, way := range []struct {
				name  string
				check func([]byte) *CheckError
			}{
				{"compiled", c.body.check},
				{"kin", func(data []byte) *CheckError { return spec.checkByKin(c.body.schema, data) }},
			} {
				b.Run(fmt.Sprintf("%s/%d/%s", c.name, n, way.name), func(b *testing.B) {
					b.ReportAllocs()
					b.SetBytes(int64(len(data)))
					for b.Loop() {
						if err := way.check(data); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}

func BenchmarkPushItems(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		data := benchPush(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if _, err := PushItems(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCheckPush checks and cuts in one pass.
func BenchmarkCheckPush(b *testing.B) {
	spec, err := Load()
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{1, 10, 100} {
		data := benchPush(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if _, err := spec.CheckPush(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkParameters checks the path and query of a pop.
func BenchmarkParameters(b *testing.B) {
	spec, err := Load()
	if err != nil {
		b.Fatal(err)
	}
	op := spec.operations["popPartition"]
	r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/?batch=100&wait=true&timeout=30000&consumerGroup=billing&partitions=4", nil)
	params := map[string]string{"queue": "orders.created", "partition": "customer-42"}
	b.ReportAllocs()
	for b.Loop() {
		if err := op.CheckRequest(r, params, nil); err != nil {
			b.Fatal(err)
		}
	}
}
