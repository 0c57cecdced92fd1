package vianet_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"

	"viaxdp/vianet"
	"viaxdp/vipl"
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
					if err := request(client, server.URL, test.proto, i); err != nil {
						t.Errorf("request %d: %v", i, err)
					}
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

// grpc connects to a server with the services that register adds, until the end of the test. piece is the size of
// the writes to the connection.
func (h *hosts) grpc(t *testing.T, ours, theirs credentials.TransportCredentials, piece int, register func(*grpc.Server)) *grpc.ClientConn {
	t.Helper()
	l := h.listen(t)
	server := grpc.NewServer(grpc.Creds(theirs), grpc.WriteBufferSize(piece))
	register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(),
		grpc.WithTransportCredentials(ours), grpc.WithWriteBufferSize(piece),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return h.a.DialContext(ctx, "via", address)
		}))
	must(t, err)
	t.Cleanup(func() {
		err := conn.Close()
		server.Stop()
		check(t, errors.Join(err, <-served))
	})
	return conn
}

// echoes is a server whose streams echo what they receive.
type echoes struct {
	grpc_testing.UnimplementedTestServiceServer
}

func (echoes) FullDuplexCall(stream grpc_testing.TestService_FullDuplexCallServer) error {
	for {
		m, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = stream.Send(&grpc_testing.StreamingOutputCallResponse{Payload: m.Payload})
		}
		if err != nil {
			return err
		}
	}
}

// Messages of 1 MiB flow both ways on one stream at once: over TLS, whose records use a ring, and in the clear in
// pieces so large that they are transfers; also with losses.
func TestGRPCStream(t *testing.T) {
	const size = 1 << 20
	messages := 8
	if testing.Short() {
		messages = 2
	}
	for _, test := range []struct {
		name         string
		secure, loss bool
	}{{"TLS", true, false}, {"TLS, loss", true, true}, {"in the clear", false, false}, {"in the clear, loss", false, true}} {
		t.Run(test.name, func(t *testing.T) {
			h := inMemory(t, vianet.Options{})
			if test.loss {
				h.wire.SetFaults(lossy)
			}
			ours, theirs := insecure.NewCredentials(), insecure.NewCredentials()
			if test.secure {
				certified := httptest.NewTLSServer(nil)
				certified.Close()
				trust := certified.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
				ours = credentials.NewTLS(&tls.Config{RootCAs: trust, ServerName: "example.com"})
				theirs = credentials.NewServerTLSFromCert(&certified.TLS.Certificates[0])
			}
			conn := h.grpc(t, ours, theirs, 256<<10, func(server *grpc.Server) {
				grpc_testing.RegisterTestServiceServer(server, echoes{})
			})
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			stream, err := grpc_testing.NewTestServiceClient(conn).FullDuplexCall(ctx)
			must(t, err)
			sent := make(chan error, 1)
			go func() {
				var err error
				for i := 0; i < messages && err == nil; i++ {
					err = stream.Send(&grpc_testing.StreamingOutputCallRequest{
						Payload: &grpc_testing.Payload{Body: randomBytes(size, byte(i))},
					})
				}
				sent <- errors.Join(err, stream.CloseSend())
			}()
			for i := range messages {
				m, err := stream.Recv()
				if err != nil || !bytes.Equal(m.Payload.GetBody(), randomBytes(size, byte(i))) {
					t.Fatalf("message %d: %d bytes, %v", i, len(m.GetPayload().GetBody()), err)
				}
			}
			if m, err := stream.Recv(); err != io.EOF {
				t.Errorf("after the last message: %v, %v", m, err)
			}
			check(t, <-sent)
			for i, n := range []*vipl.NIC{h.nicA, h.nicB} {
				if s := n.Counters(); test.secure && s.Writes == 0 || !test.secure && s.Reads == 0 {
					t.Errorf("side %d: no large data went by RDMA: %+v", i, s)
				}
			}
			if test.loss {
				h.wasLossy(t)
			}
		})
	}
}
