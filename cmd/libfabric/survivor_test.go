package libfabric

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/cprogram"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testsize"
	"viaxdp/internal/ops/status"
)

// survivor compiles a program of testdata/survivor.
func survivor(t *testing.T, name string, flags ...string) string {
	t.Helper()
	return gcc(t, name, append(flags, "testdata/survivor/"+name+".c", "-lfabric")...)
}

// Clients are killed in the midst of transfers, one after the other. The server notices each, and leaks nothing:
// the sanitizer finds what it does not free. Clients have no sanitizer, with which they take a second of a CPU each to start.
func TestSurvivor(t *testing.T) {
	t.Parallel()
	dir := build(t)
	program, killed := survivor(t, "survivor", strings.Fields(sanitizers)...), survivor(t, "survivor", "-O2")
	b := newBed(t, nstest.Options{MTU: 1500}, "FI_PROVIDER_PATH="+dir+"/asan", "ASAN_OPTIONS=detect_leaks=1", "VIA_SILENCE=2000")
	const clients = 12
	s := b.Start(t, b.A, program, "server", b.A.IPv4.String(), fmt.Sprint(clients))
	others := b.With("FI_PROVIDER_PATH=" + dir + "/prov")
	for i := range clients {
		c := connectedClient(t, others, s, killed, fmt.Sprint(i))
		time.Sleep(time.Duration(i%4*150) * time.Millisecond) // at any step of its transfers
		c.Process.Kill()
		c.Wait()
	}
	if out := s.Finish(t); !strings.Contains(out, fmt.Sprintf("survivor: %d clients", clients)) {
		t.Errorf("it said %q", out)
	}
}

// Peers of an FI_EP_RDM endpoint are killed in the midst of messages, and others end. When they are gone it has no VI
// of theirs, no thread more than at first, and the sanitizer finds nothing that it does not free. Those that are killed have
// no sanitizer.
func TestRDMSurvivor(t *testing.T) {
	t.Parallel()
	dir := build(t)
	program, own := survivor(t, "rdm", strings.Fields(sanitizers)...), t.TempDir()
	b := newBed(t, nstest.Options{MTU: 1500}, "FI_PROVIDER_PATH="+dir+"/asan", "ASAN_OPTIONS=detect_leaks=1", "VIA_SILENCE=2000",
		"VIA_RUNTIME_DIR="+own)
	s := b.Start(t, b.A, program, "server", b.A.IPv4.String())
	once := func() { b.Start(t, b.B, program, "client", b.A.IPv4.String(), "once").Finish(t) }
	if !await.Comes(func() bool { return len(status.Take([]string{own}).Programs) == 1 }) {
		t.Fatalf("no server\n%s", &s.Out)
	}
	once()
	// The server destroys a VI, and then deregisters its memory. The connection by which status.Take has asked it may still be
	// open.
	rest := func(fds int) (h holdings) {
		t.Helper()
		if !await.Comes(func() bool {
			h, _ = held(own, s.Process.Pid)
			return h.cqs > 0 && h.VIs == 0 && h.regions == 0 && h.fds <= fds
		}) {
			t.Fatalf("the server still holds %+v, want at most %d descriptors\n%s", h, fds, &s.Out)
		}
		return h
	}
	killed := survivor(t, "rdm", "-O2")
	others := b.With("FI_PROVIDER_PATH=" + dir + "/prov")
	first := rest(math.MaxInt)
	for round, was := 1, first; ; round++ {
		for i := range 10 {
			c, out := others.Piped(t, b.B, killed, "client", b.A.IPv4.String())
			if i%3 > 0 { // otherwise it connects
				if line, err := out.ReadString('\n'); line != "connected\n" {
					t.Fatalf("a client said %q, %v, %v\n%s", line, err, c.Wait(), &c.Out)
				}
			}
			time.Sleep(time.Duration(i%4*40) * time.Millisecond) // at any step of its messages
			c.Process.Kill()
			c.Wait()
		}
		once()
		last := rest(first.fds)
		nstest.ErrorIf(t, last.cqs != first.cqs, "the server holds %+v, at first %+v", last, first)
		if last.threads <= was.threads+4 {
			break
		}
		if round == 3 { // Go keeps the threads that it needed at once, on a busy machine some more in the first rounds
			t.Errorf("after each of %d rounds the server has more threads: %d, %d before the last one, %d at first", round, last.threads, was.threads, first.threads)
			break
		}
		was = last
	}
	if out := s.End(t); !strings.Contains(out, "rdm: ") {
		t.Errorf("it said %q", out)
	}
}

// connectingClient starts a client of survivor, and returns when it connects, with what it prints then.
func connectingClient(t *testing.T, b *cprogram.Bed, program string, args ...string) (*cprogram.Process, *bufio.Reader) {
	t.Helper()
	p, r := b.Piped(t, b.B, append([]string{program, "client", b.A.IPv4.String()}, args...)...)
	if line, err := r.ReadString('\n'); line != "connecting\n" {
		t.Fatalf("a client said %q, %v, %v\n%s", line, err, p.Wait(), &p.Out)
	}
	return p, r
}

// connectedClient starts a client of survivor, again if the server does not listen yet, and returns when it is connected.
func connectedClient(t *testing.T, b *cprogram.Bed, server *cprogram.Process, program string, args ...string) (p *cprogram.Process) {
	t.Helper()
	if !await.Comes(func() bool {
		var r *bufio.Reader
		p, r = connectingClient(t, b, program, args...)
		line := ""
		for line != "connected\n" { // one that stays may try again
			var err error
			if line, err = r.ReadString('\n'); err != nil {
				p.Wait()
				return false
			}
		}
		go io.Copy(io.Discard, r)
		return true
	}) {
		server.Process.Kill()
		t.Fatalf("no client connects\n%s\nthe server: %v\n%s", &p.Out, server.Wait(), &server.Out)
	}
	return p
}

// holdings are what a process holds.
type holdings struct{ VIs, regions, cqs, tags, fds, threads int }

// held counts them; ok: the process has one connection, as it has at rest.
func held(dir string, pid int) (h holdings, ok bool) {
	for _, p := range status.Take([]string{dir}).Programs {
		if p.PID != pid || len(p.Nics) != 1 {
			continue
		}
		n := p.Nics[0]
		h = holdings{VIs: len(n.VIs), regions: n.Mem.Regions, cqs: len(n.CQs), tags: n.Ptags}
		ok = h.VIs == 1 && n.VIs[0].State == "connected"
	}
	for name, to := range map[string]*int{"fd": &h.fds, "task": &h.threads} {
		entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/%s", pid, name))
		*to = len(entries)
	}
	return h, ok
}

// resident is the memory of a process in bytes.
func resident(pid int) (pages int) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	fmt.Sscan(string(b), new(int), &pages)
	return pages * os.Getpagesize()
}

// Messages, reads and writes of several clients go on while clients and server are killed and started again. A client that
// stays connects again each time. All data is checked. Whenever there is nothing but that connection, server and client
// hold what they held at first: VIs, regions, queues, descriptors and threads. VIA_TRAFFIC is how long it runs: 12 s in CI.
func TestTraffic(t *testing.T) {
	t.Parallel()
	build(t)
	program := survivor(t, "survivor", "-O2")
	dir := t.TempDir()
	b := newBed(t, nstest.Options{MTU: 1500}, "VIA_SILENCE=2500")
	some := 4 * time.Second
	if testsize.Every() {
		some = 12 * time.Second
	}
	duration := testsize.Duration(t, "VIA_TRAFFIC", time.Second, some)
	b.Most = duration + 3*cprogram.Limit
	here, there := agents(t, b, b.Most) // the clients share a queue
	own := []string{"VIA_RUNTIME_DIR=" + dir, "VIA_VERBOSE=0"}
	b, here = there.With(own...), here.With(own...)
	b.As, here.As = nil, nil
	random := rand.New(rand.NewPCG(testsize.Seed(t), 0))
	tr := &traffic{T: t, bed: here, program: program, dir: dir, first: map[int]holdings{}, memory: map[int]int{}}
	tr.serve()
	tr.stays = connectedClient(t, b, tr.server, program, "0", "forever")
	clients := make([]*cprogram.Process, 3)
	kills, hasty, ends, servers, rests := 0, 0, 0, 0, 0
	for began, step := time.Now(), 1; time.Since(began) < duration || rests == 0; step++ {
		i := random.IntN(len(clients))
		if c := clients[i]; c != nil {
			if random.IntN(3) > 0 {
				c.Process.Kill()
				kills++
			} else {
				c.Process.Signal(syscall.SIGTERM)
				ends++
			}
			tr.over(c)
		}
		if random.IntN(3) == 0 { // one that is killed while it connects
			c, _ := connectingClient(t, b, program, fmt.Sprint(i+1))
			time.Sleep(time.Duration(random.IntN(40)) * time.Millisecond) // at any step of it
			c.Process.Kill()
			c.Wait()
			hasty++
		}
		clients[i] = connectedClient(t, b, tr.server, program, fmt.Sprint(i+1))
		time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
		switch {
		case step%40 == 0: // clients that lose the server end
			tr.server.Process.Kill()
			tr.server.Wait()
			for i, c := range clients {
				if c != nil {
					tr.over(c)
				}
				clients[i] = nil
			}
			tr.serve()
			servers++
		case step%10 == 0:
			for i, c := range clients {
				if c != nil {
					c.Process.Kill()
					tr.over(c)
				}
				clients[i] = nil
			}
			tr.rest()
			rests++
		}
	}
	for _, c := range clients {
		if c != nil {
			c.Process.Kill()
			tr.over(c)
		}
	}
	tr.rest()
	for _, p := range []*cprogram.Process{tr.stays, tr.server} {
		p.End(t)
	}
	t.Logf("%d clients killed, %d more while they connected, %d ended, %d servers killed, %d rests; at rest %+v; server: %s",
		kills, hasty, ends, servers, rests, tr.last, &tr.server.Out)
}

// traffic is the state of TestTraffic.
type traffic struct {
	*testing.T
	bed           *cprogram.Bed
	program, dir  string
	server, stays *cprogram.Process
	first         map[int]holdings // of each process, at its first rest
	memory        map[int]int
	last          [2]holdings
}

// serve starts a server.
func (t *traffic) serve() {
	t.server = t.bed.Start(t, t.bed.A, t.program, "server", t.bed.A.IPv4.String())
}

// over waits for the end of a client, which must not have found wrong data.
func (t *traffic) over(c *cprogram.Process) {
	t.Helper()
	if err := c.Wait(); err != nil && (strings.Contains(c.Out.String(), "wrong") || c.ProcessState.ExitCode() > 1) {
		t.Fatalf("a client: %v\n%s", err, &c.Out)
	}
}

// rest waits until server and the client that stays have nothing but their connection, and compares.
func (t *traffic) rest() {
	t.Helper()
	for i, p := range []*cprogram.Process{t.server, t.stays} {
		pid := p.Process.Pid
		var now holdings
		least, samples := holdings{}, 0 // at first: a read or write has a region for as long as it runs
		settled := await.Comes(func() bool {
			var ok bool
			now, ok = held(t.dir, pid)
			if was, known := t.first[pid]; known { // Go may keep a thread or two
				return ok && now.VIs == was.VIs && now.regions <= was.regions+1 && now.cqs == was.cqs && now.tags == was.tags &&
					now.fds <= was.fds && now.threads <= was.threads+2
			}
			if !ok {
				samples = 0
				return false
			}
			if samples++; samples == 1 || now.regions < least.regions {
				least = now
			}
			return samples == 50
		})
		if !settled {
			t.Fatalf("%v holds %+v, at first %+v\n%s", p.Args, now, t.first[pid], &p.Out)
		}
		const most = 32 << 20
		if _, known := t.first[pid]; !known {
			t.first[pid], t.memory[pid] = least, resident(pid)
		} else if grown := resident(pid) - t.memory[pid]; grown > most {
			t.Fatalf("%v has grown by %d bytes", p.Args, grown)
		}
		t.last[i] = now
	}
}
