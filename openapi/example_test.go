package openapi_test

import (
	"fmt"
	"net/http"

	"github.com/posthorn/posthorn/openapi"
)

// A server checks each request before it acts on it, and each answer before it sends it.
func Example() {
	spec, err := openapi.Load()
	if err != nil {
		fmt.Println(err)
		return
	}
	push, _ := spec.Operation("push")
	r := &http.Request{Method: push.Method}
	err = push.CheckRequest(r, nil, []byte(`{"items":[{"queue":"orders.created","data":{"orderId":8891}}]}`))
	fmt.Println("bad body:", err)
	err = push.CheckResponse(http.StatusCreated, http.Header{"Content-Type": {"application/json"}}, []byte(`[{"index":0}]`))
	fmt.Println("bad answer:", err)
	// Output:
	// bad body: items[0].payload is missing
	// bad answer: [0].message_id is missing
}

func ExampleSpec_CheckPush() {
	spec, err := openapi.Load()
	if err != nil {
		fmt.Println(err)
		return
	}
	items, err := spec.CheckPush([]byte(`{"items":[{"queue":"orders\u002fcreated","payload": {"total": 4200.00} }]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(items[0].Queue, string(items[0].Payload))
	// Output: orders/created {"total": 4200.00}
}
