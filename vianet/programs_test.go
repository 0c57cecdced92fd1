package vianet_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	"viaxdp/internal/lab/nstest"
	"viaxdp/vianet"
	"viaxdp/xdpnic/xdpnictest"
)

// A server that echoes the body with its checksum, and serves n bytes at /bytes?n=.
var handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	if n, err := strconv.Atoi(r.FormValue("n")); err == nil {
		w.Write(randomBytes(n, byte(n)))
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Checksum", fmt.Sprintf("%x", sha256.Sum256(body)))
	w.Write(body)
})

// net/http runs unchanged over a Stack: HTTP/1.1, in the clear and over TLS, and HTTP/2 over TLS, a hundred
// requests at once, with bodies from nothing to a megabyte in both directions; also with losses.
func TestHTTP(t *testing.T) {
	const one, two = "HTTP/1.1", "HTTP/2.0"
	read, write := vianet.Options{}, vianet.Options{NoRDMARead: true}
	for _, test := range []struct {
		name, proto string
		secure      bool
		options     vianet.Options
		faults      xdpnictest.Faults
	}{
		{name: "1.1, read", proto: one, options: read}, {name: "1.1, write", proto: one, options: write},
		{name: "1.1, TLS", proto: one, secure: true}, {name: "1.1, loss", proto: one, faults: lossy},
		{name: "2, TLS, read", proto: two, secure: true, options: read},
		{name: "2, TLS, write", proto: two, secure: true, options: write},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := inMemory(t, test.options)
			h.wire.SetFaults(test.faults)
			server := httptest.NewUnstartedServer(handler)
			server.Listener.Close()
			server.Listener = h.listen(t)
			server.EnableHTTP2 = test.proto == two
			if test.secure {
				server.StartTLS()
			} else {
				server.Start()
			}
			defer server.Close()
			client := server.Client()
			transport := client.Transport.(*http.Transport)
			transport.DialContext = h.a.DialContext
			if test.secure {
				transport.TLSClientConfig.ServerName = "example.com" // as its certificate says
			}
			defer transport.CloseIdleConnections()

			var wait sync.WaitGroup
			for i := range 40 {
				wait.Go(func() {
					err := request(client, server.URL, test.proto, i)
					nstest.ErrorIf(t, err != nil, "request %d: %v", i, err)
				})
			}
			wait.Wait()
			if test.faults.Loss > 0 {
				h.wasLossy(t)
			}
		})
	}
}

// request sends a body of a size of its own and checks what comes back, then fetches another.
func request(client *http.Client, url, proto string, i int) error {
	size := []int{0, 1, 1000, 50_000}[i%4]
	if i%20 == 0 {
		size = 1 << 20
	}
	body := randomBytes(size, byte(i))
	r, err := client.Post(url, "application/octet-stream", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer r.Body.Close()
	got, err := io.ReadAll(r.Body)
	switch {
	case err != nil:
		return err
	case r.Proto != proto:
		return fmt.Errorf("%s, not %s", r.Proto, proto)
	case r.Header.Get("Checksum") != fmt.Sprintf("%x", sha256.Sum256(body)):
		return fmt.Errorf("the server got other bytes than %d", len(body))
	case !bytes.Equal(got, body):
		return fmt.Errorf("%d bytes came back of %d", len(got), len(body))
	}
	n := 3000 * i
	r, err = client.Get(fmt.Sprintf("%s/bytes?n=%d", url, n))
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if got, err = io.ReadAll(r.Body); err != nil || !bytes.Equal(got, randomBytes(n, byte(n))) {
		return fmt.Errorf("%d bytes of %d, %w", len(got), n, err)
	}
	return nil
}
