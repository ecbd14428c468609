package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// script is a small broker in memory, with the answers that a test wants to see in a report.
type script struct {
	mu     sync.Mutex
	seen   map[string]bool
	queued []message
	acked  map[string]int
	pops   int

	status func(item int) string // status of the n-th pushed item; nil means queued
	http   func(request int) int // HTTP status of the n-th push; nil means 201
	delay  time.Duration         // of each push
	pushes int
	items  int

	lose func(n int) bool // whether the n-th publish is accepted and never delivered; nil means none is
	sent int
}

type message struct {
	TransactionID string          `json:"transactionId"`
	PartitionID   string          `json:"partitionId"`
	LeaseID       string          `json:"leaseId"`
	Data          json.RawMessage `json:"data"`
}

func startScript(t *testing.T, s *script) string {
	t.Helper()
	s.seen, s.acked = map[string]bool{}, map[string]int{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v1/push", s.push)
	mux.HandleFunc("GET /api/v1/pop/queue/{queue}", s.pop)
	mux.HandleFunc("POST /api/v1/ack/batch", s.ack)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.RequestURI, "/v2/publish/") { // a mux would clean the destination
			s.publish(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func (s *script) push(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Items []struct {
			Queue, Partition, TransactionID string
			Payload                         json.RawMessage
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(body.Items) > 0 { // the run's first request is empty
		s.pushes++
		time.Sleep(s.delay)
		if s.http != nil {
			if status := s.http(s.pushes); status != http.StatusCreated {
				http.Error(w, `{"error":"scripted"}`, status)
				return
			}
		}
	}
	results := []map[string]any{}
	for i, item := range body.Items {
		s.items++
		status := "queued"
		if s.status != nil {
			status = s.status(s.items)
		}
		if s.seen[item.TransactionID] {
			status = "duplicate"
		}
		s.seen[item.TransactionID] = true
		if status == "queued" {
			s.queued = append(s.queued, message{TransactionID: item.TransactionID, PartitionID: "id-of-" + item.Partition, Data: item.Payload})
		}
		results = append(results, map[string]any{"index": i, "transaction_id": item.TransactionID, "queueName": item.Queue, "status": status})
	}
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(results)
}

func (s *script) pop(w http.ResponseWriter, r *http.Request) {
	batch, err := strconv.Atoi(r.FormValue("batch"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(batch, len(s.queued))
	if n == 0 {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	s.pops++
	lease := ""
	if r.FormValue("autoAck") != "true" {
		lease = fmt.Sprintf("lease-%d", s.pops)
	}
	out := s.queued[:n]
	s.queued = s.queued[n:]
	for i := range out {
		out[i].LeaseID = lease
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"success": true, "queue": r.PathValue("queue"), "partitionId": out[0].PartitionID, "leaseId": lease, "messages": out,
	})
}

func (s *script) ack(w http.ResponseWriter, r *http.Request) {
	var body struct {
		ConsumerGroup   string
		Acknowledgments []struct{ TransactionID, PartitionID, LeaseID, Status string }
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	results := []map[string]any{}
	for i, a := range body.Acknowledgments {
		ok := s.seen[a.TransactionID] && a.PartitionID != "" && a.LeaseID != "" && a.Status == "completed"
		if ok {
			s.acked[a.TransactionID]++
		}
		results = append(results, map[string]any{"index": i, "success": ok})
	}
	_ = json.NewEncoder(w).Encode(results)
}

// publish delivers a message, twice, before it is answered.
func (s *script) publish(w http.ResponseWriter, r *http.Request) {
	_, destination, _ := strings.Cut(r.RequestURI, "/v2/publish/")
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.sent++
	n := s.sent
	s.mu.Unlock()
	id := "msg_" + strconv.Itoa(n)
	time.Sleep(s.delay)
	for range 2 {
		if s.lose != nil && s.lose(n) {
			break
		}
		req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, destination, bytes.NewReader(body))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		req.Header.Set("Upstash-Message-Id", id)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		_ = res.Body.Close()
	}
	_ = json.NewEncoder(w).Encode(map[string]string{"messageId": id})
}
