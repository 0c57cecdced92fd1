package vianet_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/interop/grpc_testing"

	"viaxdp/vianet"
	"viaxdp/vipl"
)

// grpc connects to a server with the services that register gives it, until the end of the test. What either writes
// to a connection at once is a piece.
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

// gRPC runs over it unchanged: calls, many at once, and a stream of the server.
func TestGRPC(t *testing.T) {
	for _, o := range []vianet.Options{{}, {NoRDMARead: true}} {
		h := inMemory(t, o)
		state := health.NewServer()
		conn := h.grpc(t, insecure.NewCredentials(), insecure.NewCredentials(), 32<<10, func(server *grpc.Server) {
			grpc_health_v1.RegisterHealthServer(server, state)
		})
		client := grpc_health_v1.NewHealthClient(conn)
		ctx, cancel := context.WithTimeout(t.Context(), ackDelay)
		var wait sync.WaitGroup
		for i := range 20 {
			service := fmt.Sprint("service ", i)
			state.SetServingStatus(service, grpc_health_v1.HealthCheckResponse_SERVING)
			wait.Go(func() {
				for range 10 {
					r, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
					if err != nil || r.Status != grpc_health_v1.HealthCheckResponse_SERVING {
						t.Errorf("%s: %v, %v", service, r, err)
						return
					}
				}
			})
		}
		wait.Wait()

		stream, err := client.Watch(ctx, &grpc_health_v1.HealthCheckRequest{Service: "service 3"})
		must(t, err)
		for _, want := range []grpc_health_v1.HealthCheckResponse_ServingStatus{
			grpc_health_v1.HealthCheckResponse_SERVING, grpc_health_v1.HealthCheckResponse_NOT_SERVING,
		} {
			if got, err := stream.Recv(); err != nil || got.Status != want {
				t.Errorf("%v, %v, want %v", got, err, want)
			}
			state.SetServingStatus("service 3", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
		}
		cancel()
	}
}

// echoes is a server whose streams give back what comes.
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

// Messages of 1 MiB go both ways on one stream at once, over TLS, whose records a ring takes, and in the clear in
// such pieces that they are transfers; also where frames are lost.
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
			ctx, cancel := context.WithTimeout(t.Context(), ackDelay)
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
