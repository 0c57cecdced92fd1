package proxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"viaxdp/internal/lab/await"
)

// random is n bytes that look random, always the same for a seed; seed 0 is what every server of these tests has.
func random(n int, seed byte) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// web is a server of HTTP.
type web struct {
	page []byte
	gone chan struct{} // has one, if a client went while it was answered
}

func newWeb(n int) *web { return &web{page: random(n, 0), gone: make(chan struct{}, 1)} }

// ServeHTTP answers /N with N bytes, and /half/N with half of them, then nothing while the client is there. /endless has
// no end. To a PUT it answers the checksum.
func (s *web) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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

// curl downloads from and uploads to an HTTP server through two proxies. The server hears of a curl that is killed, and
// the next one gets the rest.
func TestCurl(t *testing.T) {
	need(t, "curl", "curl")
	site := newWeb(long())
	server := httptest.NewServer(site)
	defer server.Close()
	defer server.CloseClientConnections() // also where the test has failed
	at, file := fmt.Sprint("http://", stacks(t).chain(t, server.Listener.Addr().String())), filepath.Join(t.TempDir(), "file")
	for _, n := range []int{0, 1, 1 << 20, long()} {
		fetch(t, "-o", file, fmt.Sprintf("%s/%d", at, n))
		holds(t, file, site.page[:n])
		if got, want := fetch(t, "-T", file, at+"/up"), sum(site.page[:n]); got != want {
			t.Errorf("%d bytes: the server has got other bytes: %s, want %s", n, got, want)
		}
	}

	const n = 3_000_000
	must(t, os.Remove(file))
	part := curl(t, "-N", "-o", file, fmt.Sprintf("%s/half/%d", at, n))
	must(t, part.Start())
	await.Until(t, "curl has half", func() bool { i, err := os.Stat(file); return err == nil && i.Size() >= n/2 })
	part.Process.Kill()
	part.Wait()
	hears(t, site)
	fetch(t, "-C", "-", "-o", file, fmt.Sprintf("%s/%d", at, n))
	holds(t, file, site.page[:n])
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
