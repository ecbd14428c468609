// Package posthorn is the Go client of the Posthorn message broker: ordered queues with exact
// deduplication over HTTP. It needs nothing but the standard library.
//
//	client, err := posthorn.New("http://127.0.0.1:6632", posthorn.Options{})
//	results, err := client.Push(ctx, []posthorn.Item{{
//		Queue:         "orders.created",
//		Partition:     "customer-42",
//		TransactionID: "order-8891-created",
//		Payload:       map[string]any{"orderId": 8891},
//	}})
//
// # Model
//
// A queue is made of partitions. Messages of one partition are stored and delivered in the order
// in which they were pushed. Within a partition a transaction id is stored at most once per
// deduplication window (3600 s unless the queue says otherwise), which is what makes a repeated
// push harmless. A consumer group reads each partition through one cursor: [Client.Pop] leases the
// next messages, [Client.Ack] moves the cursor past them, and a lease that ends without an ack
// delivers them again. Delivery is therefore at least once. [Client.Consume] does all of that
// around a handler.
//
// Methods are named after the operations of the broker's OpenAPI document.
//
// # What the client promises
//
//   - A 2xx answer is not taken for success. A push item that was not stored makes [Client.Push]
//     return a [*PushError]; an acknowledgment that was refused makes [Client.AckBatch] return an
//     [*AckError]; an extension that renewed nothing is [ErrLeaseExpired].
//   - Payload bytes given as [json.RawMessage] are sent exactly as they are, and payloads are handed
//     out exactly as they were received: numbers, escapes, duplicate keys and white space survive.
//   - Every call ends when its context does. Retries are bounded, spread with jitter and honour
//     Retry-After. An operation that is not safe to repeat is repeated only when the failed attempt
//     cannot have reached the broker, see [RetryPolicy].
//   - Response bodies are always closed and never read beyond Options.MaxResponseBytes.
//   - No goroutine outlives the call that started it (idle HTTP connections aside, see
//     [Client.Close]).
//
// # What it assumes
//
// That the broker speaks version 1 of the API. Fields it does not know are ignored. Deduplication
// makes push retries exact only on queues that have it switched on and within their window.
//
// # How it fails
//
// With errors, never with a panic. An answer that is not 2xx is an [*APIError] (reach it with
// [errors.AsType]); refused items carry the sentinel errors of this package (test them with
// [errors.Is]); everything else wraps the error of net/http or the context.
//
// A [Client] is safe for concurrent use.
package posthorn
