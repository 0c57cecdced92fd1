package vianet_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"viaxdp/vianet"
)

// gRPC runs over it unchanged: calls, many at once, and a stream of the server.
func TestGRPC(t *testing.T) {
	for _, o := range []vianet.Options{{}, {NoRDMARead: true}} {
		h := inMemory(t, o)
		l := h.listen(t)
		state := health.NewServer()
		server := grpc.NewServer()
		grpc_health_v1.RegisterHealthServer(server, state)
		served := make(chan error, 1)
		go func() { served <- server.Serve(l) }()

		conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				return h.a.DialContext(ctx, "via", address)
			}))
		if err != nil {
			t.Fatal(err)
		}
		client := grpc_health_v1.NewHealthClient(conn)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
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
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []grpc_health_v1.HealthCheckResponse_ServingStatus{
			grpc_health_v1.HealthCheckResponse_SERVING, grpc_health_v1.HealthCheckResponse_NOT_SERVING,
		} {
			if got, err := stream.Recv(); err != nil || got.Status != want {
				t.Errorf("%v, %v, want %v", got, err, want)
			}
			state.SetServingStatus("service 3", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
		}
		cancel()
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}
