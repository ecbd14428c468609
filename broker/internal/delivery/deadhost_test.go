package delivery

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// crowd is several destinations that answer at once, each a host of its own.
type crowd struct {
	urls []string
	got  []atomic.Int64

	mu       sync.Mutex
	arrivals map[string]time.Time // of the requests whose path is /n
}

func newCrowd(t testing.TB, n int) *crowd {
	t.Helper()
	c := &crowd{urls: make([]string, n), got: make([]atomic.Int64, n), arrivals: map[string]time.Time{}}
	for i := range n {
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			now := time.Now()
			c.got[i].Add(1)
			if r.URL.Path != "/" {
				c.mu.Lock()
				c.arrivals[r.URL.Path] = now
				c.mu.Unlock()
			}
		}))
		t.Cleanup(server.Close)
		c.urls[i] = server.URL
	}
	return c
}

func (c *crowd) total() (n int64) {
	for i := range c.got {
		n += c.got[i].Load()
	}
	return n
}

// silentHost accepts connections and says nothing. It returns its URL.
func silentHost(t testing.TB) string {
	t.Helper()
	var lc net.ListenConfig
	listener, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(io.Discard, conn)
			}()
		}
	}()
	return "http://" + listener.Addr().String()
}

// refusingHost is the URL of a port that nobody listens on.
func refusingHost(t testing.TB) string {
	t.Helper()
	var lc net.ListenConfig
	listener, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return "http://" + listener.Addr().String()
}

// publishLater publishes n messages to each host, which are due in an hour.
func publishLater(t testing.TB, e *Engine, n int, urls ...string) {
	t.Helper()
	all := make([]Message, 0, n*len(urls))
	for range n {
		for _, u := range urls { // mixed, as they come
			m := to(u + "/")
			m.Delay, m.Retries = time.Hour, 3
			all = append(all, m)
		}
	}
	for some := range slices.Chunk(all, 2000) {
		if _, err := e.Publish(t.Context(), Publish{Messages: some}); err != nil {
			t.Fatal(err)
		}
	}
}

// release moves the clock, so that what was published for later is due. It does not wait for it.
func release(t testing.TB, e *Engine) {
	t.Helper()
	if _, err := e.pool.Exec(t.Context(), `update setting set clock_offset = clock_offset + interval '1 hour'`); err != nil {
		t.Fatal(err)
	}
	signal(e.due)
}

// TestDeadHostAtSize delivers to nine hosts while a tenth is dead, with as many messages due for it as for each of the others. The
// nine get everything, once, and of the dead one's nothing is lost.
func TestDeadHostAtSize(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("delivers tens of thousands of messages")
	}
	for name, c := range map[string]struct {
		dead func(testing.TB) string
		each int
	}{"silent": {silentHost, 5000}, "refusing": {refusingHost, 1000}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := engine(t, database(t), func(c *Config) { c.Timeout = time.Hour })
			nine, dead := newCrowd(t, 9), c.dead(t)
			publishLater(t, e, c.each, append([]string{dead}, nine.urls...)...)
			release(t, e)
			want := int64(9 * c.each)
			last, at := int64(0), time.Now()
			for nine.total() < want {
				if n := nine.total(); n > last {
					last, at = n, time.Now()
				}
				if time.Since(at) > 20*time.Second { // it goes on, at whatever speed
					t.Fatalf("%d of %d arrived, and no more for a while", last, want)
				}
				time.Sleep(10 * time.Millisecond)
			}
			if n := count(t, e, `select count(*) from delivery_task t join delivery_message m on m.id = t.message_id where m.url = $1`, dead+"/"); n != c.each {
				t.Errorf("%d messages to the dead host are pending, want all %d", n, c.each)
			}
			eventually(t, "the outcomes of the others are stored", func() bool {
				return count(t, e, `select count(*) from delivery_task`) == c.each
			})
			for i := range nine.got {
				if got := nine.got[i].Load(); got != int64(c.each) {
					t.Errorf("host %d got %d messages, want %d", i, got, c.each)
				}
			}
			if n := count(t, e, `select count(*) from delivery_log where state = $1`, Delivered); n != int(want) {
				t.Errorf("%d deliveries are logged", n)
			}
		})
	}
}

// TestRefusingHostLeavesWorkers: attempts that fail at once wait for their commits, and such a host does not get a worker for
// each of them. One that answers may have all.
func TestRefusingHostLeavesWorkers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reach reach
		most  int // workers that the host may hold
	}{"refusing": {silent, heldFactor * firstLimit}, "answering": {answered, 64}} {
		var begun []*job
		d := newDispatcher(Config{Workers: 64, HostConcurrency: 64}, func(j *job) { begun = append(begun, j) })
		jobs := make([]*job, 200)
		for i := range jobs {
			jobs[i] = &job{host: 1}
		}
		d.add(jobs, false)
		for sent := 0; sent < len(begun); sent++ { // none of them is committed
			d.sent(begun[sent], c.reach)
		}
		if len(begun) > c.most || c.reach == answered && len(begun) != c.most {
			t.Errorf("%s: %d workers are held, want %d at most", name, len(begun), c.most)
		}
		if c.reach == answered {
			continue
		}
		held := len(begun)
		d.add([]*job{{host: 2}}, false)
		if len(begun) != held+1 {
			t.Errorf("%s: another host has no worker", name)
		}
		// Each commit lets it go on, to the end.
		for i := 0; i < len(begun); i++ {
			if i >= held {
				d.sent(begun[i], c.reach)
			}
			d.done(begun[i])
		}
		if len(begun) != 201 || !d.idle() {
			t.Errorf("%s: %d of 201 were begun", name, len(begun))
		}
	}
}

// BenchmarkDeadHost measures what a dead host costs nine others: how fast they get a backlog of theirs, and how long a fresh
// message to them takes from the publish to its arrival, with the dead host's messages due and without, in turns. The ratios
// are those of the medians: 1 means that it costs nothing.
func BenchmarkDeadHost(b *testing.B) {
	for name, dead := range map[string]func(testing.TB) string{"silent": silentHost, "refusing": refusingHost} {
		b.Run(name, func(b *testing.B) {
			const each, fresh, rounds = 2000, 2000, 3
			median := func(list []float64) float64 {
				slices.Sort(list)
				return list[len(list)/2]
			}
			for b.Loop() {
				var rates, p99s [2][]float64 // without the dead host, and with it
				measureHosts(b, each, fresh, "")
				for range rounds {
					for i, url := range []string{"", dead(b)} {
						rate, p99 := measureHosts(b, each, fresh, url)
						rates[i], p99s[i] = append(rates[i], rate), append(p99s[i], float64(p99.Microseconds())/1000)
					}
				}
				b.ReportMetric(median(rates[0]), "alone-msg/s")
				b.ReportMetric(median(rates[1]), "msg/s")
				b.ReportMetric(median(rates[1])/median(rates[0]), "rate-ratio")
				b.ReportMetric(median(p99s[0]), "alone-p99-ms")
				b.ReportMetric(median(p99s[1]), "p99-ms")
				b.ReportMetric(median(p99s[1])/median(p99s[0]), "p99-ratio")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// measureHosts delivers a backlog to nine hosts, and then fresh messages; dead is the URL of a tenth that has as much to
// get, and gets none of it; "" means that there is none.
func measureHosts(b *testing.B, each, fresh int, dead string) (rate float64, p99 time.Duration) {
	b.Helper()
	e := engine(b, database(b), func(c *Config) { c.Timeout = time.Hour })
	defer e.Stop()
	nine := newCrowd(b, 9)
	urls := nine.urls
	if dead != "" {
		urls = append([]string{dead}, urls...)
	}
	publishLater(b, e, each, urls...)
	want := int64(9 * each)
	release(b, e)
	began := time.Now()
	eventually(b, "the backlog arrives", func() bool { return nine.total() >= want })
	rate = float64(want) / time.Since(began).Seconds()

	const publishers = 8
	sent := make([]time.Time, fresh)
	var wg sync.WaitGroup
	for p := range publishers {
		wg.Go(func() {
			for i := p; i < fresh; i += publishers {
				m := to(nine.urls[i%9] + "/" + strconv.Itoa(i))
				sent[i] = time.Now()
				if _, err := e.Publish(b.Context(), Publish{Messages: []Message{m}}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	eventually(b, "the fresh messages arrive", func() bool { return nine.total() >= want+int64(fresh) })
	took := make([]time.Duration, fresh)
	nine.mu.Lock()
	defer nine.mu.Unlock()
	for i := range fresh {
		took[i] = nine.arrivals["/"+strconv.Itoa(i)].Sub(sent[i])
	}
	slices.Sort(took)
	return rate, took[fresh*99/100]
}
