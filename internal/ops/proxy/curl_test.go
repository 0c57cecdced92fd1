package proxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"viaxdp/internal/lab/await"
)

// page is the first bytes of what every server of these tests has.
func page(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{'w', 'e', 'b'})
	r.Read(b)
	return b
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// web is a server of HTTP.
type web struct {
	page []byte

	mu     sync.Mutex
	from   []string // where requests came from
	ranges []string // what they asked for
	left   int      // requests that the others wait for

	gone chan struct{} // has one, if a client went while it was answered
	all  chan struct{} // is closed when none is left
}

// together is how many requests for /together/N wait for each other.
const together = 16

func newWeb(n int) *web {
	return &web{page: page(n), left: together, gone: make(chan struct{}, 1), all: make(chan struct{})}
}

// ServeHTTP answers /N with N bytes, /together/N with N bytes once together clients have asked, and /half/N with
// half of them, then nothing while the client is there. /endless has no end. To a PUT it answers the checksum.
func (s *web) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.from, s.ranges = append(s.from, r.RemoteAddr), append(s.ranges, r.Header.Get("Range"))
	s.mu.Unlock()
	kind, number := filepath.Split(r.URL.Path)
	n, _ := strconv.Atoi(number)
	n = min(n, len(s.page))
	switch {
	case r.Method == http.MethodPut:
		h := sha256.New()
		if _, err := io.Copy(h, r.Body); err != nil {
			s.lost()
			return
		}
		io.WriteString(w, hex.EncodeToString(h.Sum(nil)))
	case number == "endless":
		for r.Context().Err() == nil {
			w.Write(s.page[:16<<10])
			w.(http.Flusher).Flush()
			time.Sleep(time.Millisecond) // so that curl's file stays small
		}
		s.lost()
	case kind == "/half/":
		w.Header().Set("Content-Length", number)
		w.Write(s.page[:n/2])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		s.lost()
	case kind == "/together/":
		s.mu.Lock()
		if s.left--; s.left == 0 {
			close(s.all)
		}
		s.mu.Unlock()
		select {
		case <-s.all:
		case <-r.Context().Done():
		}
		fallthrough
	default:
		http.ServeContent(w, r, "", time.Unix(1, 0), bytes.NewReader(s.page[:n]))
	}
}

// lost notes that a client has gone.
func (s *web) lost() {
	select {
	case s.gone <- struct{}{}:
	default:
	}
}

// seen is where requests came from since the last time, and for which ranges.
func (s *web) seen() (from, ranges []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from, ranges, s.from, s.ranges = s.from, s.ranges, nil, nil
	return from, ranges
}

// curl is the program with arguments, which is killed after the test's time limit.
func curl(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, need(t, "curl", "curl"), append([]string{"-q", "-sS", "--noproxy", "*"}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	return cmd
}

// fetch is a curl that must succeed, and what it says.
func fetch(t *testing.T, args ...string) string {
	t.Helper()
	out, err := curl(t, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("curl %s: %v: %s", args, err, out)
	}
	return string(out)
}

// holds checks that a file has the server's content.
func holds(t *testing.T, file string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes, want %d, or others: %v", filepath.Base(file), len(got), len(want), err)
	}
}

// long is how much is a large file.
func long() int {
	if testing.Short() {
		return 10_000_000
	}
	return 100_000_000
}

// curl downloads from and uploads to an HTTP server through two proxies.
func TestCurl(t *testing.T) {
	need(t, "curl", "curl")
	site := newWeb(long())
	server := httptest.NewServer(site)
	defer server.Close()
	defer server.CloseClientConnections() // also where the test has failed
	a, b, hostB := stacks(t)
	near := between(t, a, b, hostB, server.Listener.Addr().String())
	at, dir := "http://"+near.Addr().String(), t.TempDir()

	for _, n := range []int{0, 1, 1 << 20, long()} {
		t.Run(fmt.Sprintf("%d bytes", n), func(t *testing.T) {
			file := filepath.Join(dir, "file")
			fetch(t, "-o", file, fmt.Sprintf("%s/%d", at, n))
			holds(t, file, site.page[:n])
			if got, want := fetch(t, "-T", file, at+"/up"), sum(site.page[:n]); got != want {
				t.Errorf("the server has got other bytes: %s, want %s", got, want)
			}
		})
	}
	t.Run("parallel", func(t *testing.T) {
		args, sizes := []string{"--parallel", "--parallel-immediate", "--parallel-max", fmt.Sprint(together)}, []int{}
		for i := range together {
			sizes = append(sizes, i*100_003)
			args = append(args, "-o", filepath.Join(dir, fmt.Sprint(i)), fmt.Sprintf("%s/together/%d", at, sizes[i]))
		}
		fetch(t, args...)
		for i, n := range sizes {
			holds(t, filepath.Join(dir, fmt.Sprint(i)), site.page[:n])
		}
	})
	t.Run("kept", func(t *testing.T) {
		before, _ := near.Connections()
		site.seen()
		fetch(t, "--http1.1", at+"/1", "-o", os.DevNull, at+"/1000", "-o", os.DevNull, "-T", "curl_test.go", at+"/up", "-o", os.DevNull)
		from, _ := site.seen()
		if after, _ := near.Connections(); after != before+1 || len(from) != 3 || len(slices.Compact(from)) != 1 {
			t.Errorf("3 requests by %d connections: the server has seen %s", after-before, from)
		}
	})
	t.Run("resumed", func(t *testing.T) {
		const n = 3_000_000
		file := filepath.Join(dir, "part")
		part := curl(t, "-N", "-o", file, fmt.Sprintf("%s/half/%d", at, n))
		must(t, part.Start())
		await.Until(t, "curl has half", func() bool { i, err := os.Stat(file); return err == nil && i.Size() >= n/2 })
		part.Process.Kill()
		part.Wait()
		select { // it hears of it
		case <-site.gone:
		case <-time.After(waitLimit):
			t.Fatal("the server waits for a client that is dead")
		}
		site.seen()
		fetch(t, "-C", "-", "-o", file, fmt.Sprintf("%s/%d", at, n))
		holds(t, file, site.page[:n])
		if _, ranges := site.seen(); !slices.Equal(ranges, []string{fmt.Sprintf("bytes=%d-", n/2)}) {
			t.Errorf("it has asked for %q", ranges)
		}
	})
	t.Run("TLS", func(t *testing.T) {
		sealed := httptest.NewUnstartedServer(site)
		sealed.Config.ErrorLog = log.New(io.Discard, "", 0) // of the client that goes
		sealed.StartTLS()
		defer sealed.Close()
		at := "https://" + between(t, a, b, hostB, sealed.Listener.Addr().String()).Addr().String()
		file, roots := filepath.Join(dir, "sealed"), filepath.Join(dir, "roots")
		must(t, os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: sealed.Certificate().Raw}), 0o600))
		for _, n := range []int{0, 1, 1 << 20} {
			fetch(t, "--cacert", roots, "-o", file, fmt.Sprintf("%s/%d", at, n))
			holds(t, file, site.page[:n])
			if got, want := fetch(t, "--cacert", roots, "-T", file, at+"/up"), sum(site.page[:n]); got != want {
				t.Errorf("the server has got other bytes: %s, want %s", got, want)
			}
		}
		if out, err := curl(t, at+"/1").CombinedOutput(); err == nil || !strings.Contains(string(out), "certificate") {
			t.Errorf("without the server's certificate: %v: %s", err, out)
		}
	})
}

// need finds a program that a test runs. Without it the test ends: with a failure when VIA_PEERS=require, as for
// bench's programs, and with a skip elsewhere.
func need(t *testing.T, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
	case os.Getenv("VIA_PEERS") == "require":
		t.Fatalf("%s is not installed (Debian's package %s)", name, pkg)
	default:
		t.Skipf("%s is not installed (Debian's package %s)", name, pkg)
	}
	return path
}

// ownHost is a loopback address for this process alone. On 127.0.0.1 another program could take a free port before
// its user binds it.
func ownHost() string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 64|pid>>16&63, pid>>8&255, pid&255)
}
