// Command web is a web server that listens by VIA and by TCP, and a client that uses
// VIA if it can: net/http over package vianet, with a fallback. The client asks at two
// ports; the second one has no VIA listener.
//
//	via-xdp testbed up
//	ip netns exec via0 go run ./examples/web -i via0 &
//	ip netns exec via1 go run ./examples/web -i via1 -connect 10.77.0.1
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"viaxdp/vianet"
	"viaxdp/vipl"
)

const (
	both    = "8080" // port of a server by VIA and by TCP
	onlyTCP = "8081"
)

// waitLimit is how long an answer may take, and a server to end.
const waitLimit = 5 * time.Second

func main() {
	log.SetFlags(0)
	log.SetPrefix("web: ")
	device := flag.String("i", "via0", "interface")
	server := flag.String("connect", "", "`address` of the server; without it, be the server")
	flag.Parse()
	if flag.NArg() > 0 {
		log.Fatalf("%q is too much: -connect names the server", flag.Arg(0))
	}
	if err := run(*device, *server); err != nil {
		log.Fatal(err)
	}
}

func run(device, server string) (err error) {
	nic, err := vipl.OpenNIC(device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, nic.Close()) }()
	stack, err := vianet.New(nic, vianet.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stack.Close()) }()
	if server == "" {
		return serve(stack)
	}
	return ask(stack, server)
}

// serve answers until it is asked to end.
func serve(stack *vianet.Stack) error {
	via, err := stack.Listen("via", ":"+both)
	if err != nil {
		return err
	}
	listeners := []net.Listener{via}
	for _, port := range []string{both, onlyTCP} {
		l, err := net.Listen("tcp", ":"+port)
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
	}

	end := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		local := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		fmt.Fprintf(w, "this came by %s\n", local.Network())
	})
	mux.HandleFunc("POST /end", func(http.ResponseWriter, *http.Request) { close(end) })

	web := &http.Server{Handler: mux}
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { ended <- web.Serve(l) }()
	}
	fmt.Println("waiting for a client")
	select {
	case err := <-ended:
		return err
	case <-end:
	}

	// Shut down the server first, whose connections may be idle, and then the stack.
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	err = errors.Join(web.Shutdown(ctx), stack.Shutdown(ctx))
	fmt.Printf("%d connections by VIA\n", stack.Stats().Accepted)
	return err
}

// ask asks at both ports, and then has the server end.
func ask(stack *vianet.Stack, server string) error {
	var tcp net.Dialer
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return stack.DialOr(ctx, network, address, func(ctx context.Context) (net.Conn, error) {
			return tcp.DialContext(ctx, network, address)
		})
	}}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport, Timeout: waitLimit}
	for _, port := range []string{both, onlyTCP} {
		r, err := client.Get("http://" + net.JoinHostPort(server, port))
		if err != nil {
			return err
		}
		text, err := io.ReadAll(r.Body)
		if err = errors.Join(err, r.Body.Close()); err != nil {
			return err
		}
		fmt.Printf("port %s: %s", port, text)
	}
	s := stack.Stats()
	fmt.Printf("%d connections by VIA, %d the other way\n", s.Dialed, s.FellBack)
	r, err := client.Post("http://"+net.JoinHostPort(server, both)+"/end", "", nil)
	if err != nil {
		return err
	}
	return r.Body.Close()
}
