package queue_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
	"github.com/posthorn/posthorn/broker/internal/seal"
)

func keys(t testing.TB, list string) *seal.Keys {
	t.Helper()
	for name, digit := range map[string]string{"k1": "1", "k2": "2"} {
		list = strings.ReplaceAll(list, name, name+":"+strings.Repeat(digit, 64))
	}
	k, err := seal.Parse("", list)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// encrypted configures an encrypted queue.
func encrypted(t testing.TB, e *queue.Engine, name string) {
	t.Helper()
	options := queue.DefaultOptions()
	options.EncryptionEnabled = true
	if _, err := e.Configure(t.Context(), name, "", "", options); err != nil {
		t.Fatal(err)
	}
}

// canary is what must not be found where it is to be encrypted.
const canary = "4111-1111-1111-1111"

func secret(q, partition, txID string) queue.PushItem {
	return queue.PushItem{Queue: q, Partition: partition, TransactionID: txID, Payload: []byte(`{"card": "` + canary + `", "tx":"` + txID + `"}`)}
}

// plaintext counts the rows of a table that hold the canary, and all.
func plaintext(t testing.TB, pool *pgxpool.Pool, table, column string) (plain, all int) {
	t.Helper()
	sql := fmt.Sprintf(`select count(*) filter (where position($1::bytea in %s) > 0), count(*) from %s`, column, table)
	if err := pool.QueryRow(t.Context(), sql, []byte(canary)).Scan(&plain, &all); err != nil {
		t.Fatal(err)
	}
	return plain, all
}

func connect(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func payloads(r queue.PopResult) (list []string) {
	for _, p := range r.Partitions {
		for _, m := range p.Messages {
			list = append(list, string(m.Payload))
		}
	}
	return list
}

func TestEncryptedPayloads(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	pool := connect(t, url)
	e := broker(t, url, queue.Config{Keys: keys(t, "k1")})
	encrypted(t, e, "cards")
	push(t, e, secret("cards", "a", "1"), secret("cards", "a", "2"), secret("cards", "b", "3"))
	expect(t, "a duplicate", push(t, e, secret("cards", "a", "2"))[0].Status, queue.Duplicate)
	if _, err := e.Transact(t.Context(), queue.Bundle{Push: []queue.PushItem{secret("cards", "a", "4")}}); err != nil {
		t.Fatal(err)
	}
	if plain, all := plaintext(t, pool, "segment", "frames"); plain != 0 || all == 0 {
		t.Errorf("%d of %d segments hold plaintext", plain, all)
	}
	other := broker(t, url, queue.Config{Keys: keys(t, "k2,k1")}) // reads what the first has written, with a cold cache
	got := pop(t, other, queue.PopRequest{Queue: "cards", Partition: "a"})
	expect(t, "popped", ids(got), []string{"1", "2", "4"})
	for i, payload := range payloads(got) {
		if want := string(secret("cards", "a", ids(got)[i]).Payload); payload != want {
			t.Errorf("message %d is %s, want %s", i, payload, want)
		}
	}
	ackAll(t, other, got, queue.DeadLetter)
	if plain, all := plaintext(t, pool, "dead_letter", "payload"); plain != 0 || all == 0 {
		t.Errorf("%d of %d dead letters hold plaintext", plain, all)
	}
	push(t, e, secret("open", "a", "1"))
	if plain, _ := plaintext(t, pool, "segment", "frames"); plain != 1 {
		t.Errorf("%d segments hold plaintext, want that of the queue that is not encrypted", plain)
	}
	options := queue.DefaultOptions() // switched off, what is encrypted still opens
	if _, err := e.Configure(t.Context(), "cards", "", "", options); err != nil {
		t.Fatal(err)
	}
	expect(t, "switched off", payloads(pop(t, e, queue.PopRequest{Queue: "cards", Partition: "b"})), []string{string(secret("cards", "b", "3").Payload)})
}

func TestWithoutAKey(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	pool := connect(t, url)
	lenient := broker(t, url, queue.Config{})
	encrypted(t, lenient, "cards")
	expect(t, "lenient", push(t, lenient, secret("cards", "a", "1"))[0].Status, queue.Queued)
	if plain, _ := plaintext(t, pool, "segment", "frames"); plain != 1 {
		t.Errorf("%d segments hold plaintext", plain)
	}
	strict := broker(t, url, queue.Config{StrictEncryption: true, Spool: openSpool(t, t.TempDir())})
	r := push(t, strict, secret("cards", "a", "2"), item("open", "a", "1"))
	expect(t, "strict", statuses(r), []queue.Status{queue.Failed, queue.Queued})
	if _, err := strict.Transact(t.Context(), queue.Bundle{Push: []queue.PushItem{secret("cards", "a", "3")}}); err == nil {
		t.Error("a transaction stores plaintext in strict mode")
	}
	if plain, all := plaintext(t, pool, "segment", "frames"); plain != 1 || all != 2 {
		t.Errorf("%d of %d segments hold plaintext", plain, all)
	}
}

func TestLostKey(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	with := broker(t, url, queue.Config{Keys: keys(t, "k1")})
	encrypted(t, with, "cards")
	push(t, with, secret("cards", "a", "1"))
	push(t, with, secret("cards", "a", "2"))
	changed := broker(t, url, queue.Config{Keys: keys(t, "k2")})
	push(t, changed, secret("cards", "a", "3"), secret("cards", "a", "4"))
	push(t, with, secret("cards", "a", "5"))

	lenient := broker(t, url, queue.Config{Keys: keys(t, "k2")})
	got := pop(t, lenient, queue.PopRequest{Queue: "cards", Group: "lenient"})
	expect(t, "lenient", ids(got), []string{"1", "2", "3", "4", "5"})
	for i, payload := range payloads(got) {
		if strings.Contains(payload, `{"encrypted":"`) != (i < 2 || i == 4) || strings.Contains(payload, `"card"`) != (i == 2 || i == 3) {
			t.Errorf("message %d is %s", i, payload)
		}
	}

	for name, auto := range map[string]bool{"leased": false, "auto-ack": true} {
		group := "strict " + name
		strict := broker(t, url, queue.Config{Keys: keys(t, "k2"), StrictEncryption: true})
		got = pop(t, strict, queue.PopRequest{Queue: "cards", Group: group, AutoAck: auto})
		expect(t, "readable messages, "+name, ids(got), []string{"3", "4"})
		if !auto {
			ackAll(t, strict, got, queue.Completed)
		}
		expect(t, "after them, "+name, len(ids(pop(t, strict, queue.PopRequest{Queue: "cards", Group: group, AutoAck: auto}))), 0)
		rows, err := connect(t, url).Query(t.Context(), `select transaction_id || ' ' || error from dead_letter where group_name = $1 order by log_offset`, group)
		if err != nil {
			t.Fatal(err)
		}
		var filed []string
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				t.Fatal(err)
			}
			filed = append(filed, line[:1])
			if !strings.Contains(line, "cannot be decrypted") {
				t.Errorf("filed as %s", line)
			}
		}
		expect(t, "dead letters, "+name, filed, []string{"1", "2", "5"})
	}
}

// TestEncryptedSpool pushes while PostgreSQL is away. What belongs to an encrypted queue, or to one that nobody
// knows yet, lies on the disk encrypted.
func TestEncryptedSpool(t *testing.T) {
	t.Parallel()
	server := pgtest.StartServer(t, nil)
	pgtest.Migrate(t, server.URL())
	dir := t.TempDir()
	buffer := openSpool(t, dir)
	e := broker(t, server.URL(), queue.Config{StatementTimeout: time.Second, Spool: buffer, Keys: keys(t, "k1"), StrictEncryption: true})
	encrypted(t, e, "cards")
	push(t, e, item("open", "a", "0"), secret("cards", "a", "0"))
	if err := server.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	var answered []string
	for _, name := range []string{"cards", "unknown"} {
		r := push(t, e, secret(name, "a", "1"))
		expect(t, name, r[0].Status, queue.Buffered)
		answered = append(answered, r[0].MessageID.String())
	}
	if files := holding(t, dir, canary); len(files) > 0 {
		t.Errorf("plaintext in %v", files)
	}
	expect(t, "a queue that is not encrypted", push(t, e, secret("open", "a", "1"))[0].Status, queue.Buffered)
	if files := holding(t, dir, canary); len(files) == 0 {
		t.Error("the search for plaintext finds nothing where there is some")
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the spool to be drained", drained(buffer))
	got := pop(t, e, queue.PopRequest{Queue: "cards"})
	expect(t, "popped", ids(got), []string{"0", "1"})
	expect(t, "id", got.Partitions[0].Messages[1].ID.String(), answered[0])
	expect(t, "payload", payloads(got)[1], string(secret("cards", "a", "1").Payload))
	got = pop(t, e, queue.PopRequest{Queue: "unknown"})
	expect(t, "id", got.Partitions[0].Messages[0].ID.String(), answered[1])
	expect(t, "payload", payloads(got)[0], string(secret("unknown", "a", "1").Payload))
	if plain, _ := plaintext(t, connect(t, server.URL()), "segment", "frames"); plain != 1 {
		t.Errorf("%d segments hold plaintext, want that of the queue that is not encrypted", plain)
	}
}

// holding lists the files of a directory that hold a text.
func holding(t *testing.T, dir, text string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if bytes.Contains(content, []byte(text)) {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
