package sdkgo

import (
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/posthorn/posthorn/conformance/suite"
	posthorn "github.com/posthorn/posthorn/sdk-go"
)

// TestEveryMethodIsDriven holds the peer to the client: an operation that has a method of its name is offered.
func TestEveryMethodIsDriven(t *testing.T) {
	t.Parallel()
	client, err := posthorn.New("http://127.0.0.1:1", posthorn.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	offered := (&peer{client: client}).operations()
	compared := 0
	for _, described := range suite.Description().Operations() {
		method := strings.ToUpper(described.ID[:1]) + described.ID[1:]
		if _, ok := reflect.TypeOf(client).MethodByName(method); !ok {
			continue
		}
		compared++
		if offered[described.ID] == nil {
			t.Errorf("the peer does not offer %s, which the client has as %s", described.ID, method)
		}
	}
	for id := range offered {
		if _, ok := suite.Description().Operation(id); !ok {
			t.Errorf("the peer offers %s, which is not described", id)
		}
	}
	if compared < 50 {
		t.Errorf("only %d operations have a method of their name", compared)
	}
}

func TestPublication(t *testing.T) {
	t.Parallel()
	two := 2
	for name, c := range map[string]struct {
		header http.Header
		want   posthorn.Publication
	}{
		"nothing": {nil, posthorn.Publication{}},
		"fields": {
			http.Header{
				"Content-Type": {"text/plain"}, "Upstash-Method": {"PUT"}, "Upstash-Delay": {"1d1h"}, "Upstash-Retries": {"2"}, "Upstash-Retry-Delay": {"7"},
				"Upstash-Timeout": {"90s"}, "Upstash-Callback": {"http://c"}, "Upstash-Failure-Callback": {"http://f"}, "Upstash-Deduplication-Id": {"id"},
				"Upstash-Content-Based-Deduplication": {"true"}, "Upstash-Queue-Name": {"q"}, "Upstash-Label": {"l,m"}, "Upstash-Redact-Fields": {"body"},
				"Upstash-Not-Before": {"12"}, "upstash-forward-x-a": {"1", "2"},
			},
			posthorn.Publication{
				ContentType: "text/plain", Method: "PUT", Delay: 25 * time.Hour, Retries: &two, RetryDelay: "7", Timeout: 90 * time.Second, Callback: "http://c",
				FailureCallback: "http://f", DeduplicationID: "id", ContentBased: true, Queue: "q", Labels: []string{"l", "m"}, Redact: "body",
				NotBefore: time.Unix(12, 0), Header: http.Header{"X-A": {"1", "2"}},
			},
		},
		"flow control": {
			http.Header{"Upstash-Flow-Control-Key": {"k"}, "Upstash-Flow-Control-Value": {"parallelism=5, rate=10,period=1m"}},
			posthorn.Publication{Flow: &posthorn.Flow{Key: "k", Parallelism: 5, Rate: 10, Period: time.Minute}},
		},
		"what no field can say": {
			http.Header{
				"Upstash-Delay": {"soon"}, "Upstash-Retries": {"many"}, "Upstash-Not-Before": {"x"}, "Upstash-Content-Based-Deduplication": {"True"},
				"Upstash-Callback-Method": {"PUT"}, "Upstash-Flow-Control-Key": {"k"}, "Upstash-Flow-Control-Value": {"rate=0"}, "X-Own": {"1"},
			},
			posthorn.Publication{More: http.Header{
				"Upstash-Delay": {"soon"}, "Upstash-Retries": {"many"}, "Upstash-Not-Before": {"x"}, "Upstash-Content-Based-Deduplication": {"True"},
				"Upstash-Callback-Method": {"PUT"}, "Upstash-Flow-Control-Key": {"k"}, "Upstash-Flow-Control-Value": {"rate=0"}, "X-Own": {"1"},
			}},
		},
	} {
		got := publication("", c.header, nil)
		for _, header := range []*http.Header{&got.Header, &got.More} {
			if len(*header) == 0 {
				*header = nil
			}
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
