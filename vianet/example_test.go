package vianet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"

	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/lab/memorynic"
	"viaxdp/vianet"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// A web server on one host, and its client on another.
func Example() {
	nic, err := vipl.OpenNIC("eth1")
	if err != nil {
		log.Fatal(err) // says what is missing, and what helps
	}
	defer nic.Close()
	stack, err := vianet.New(nic, vianet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer stack.Close()

	// The server.
	l, err := stack.Listen("via", ":80")
	if err != nil {
		log.Fatal(err)
	}
	go http.Serve(l, http.FileServer(http.Dir("/srv")))

	// The client.
	client := http.Client{Transport: &http.Transport{DialContext: stack.DialContext}}
	r, err := client.Get("http://10.0.0.2/index.html")
	if err != nil {
		log.Fatal(err)
	}
	defer r.Body.Close()
	n, err := io.Copy(io.Discard, r.Body)
	fmt.Println(n, "bytes", err)
}

// An address as package net writes it.
func ExampleAddr() {
	a := vianet.Addr{AddrPort: netip.MustParseAddrPort("[fd00::2]:80")}
	fmt.Println(a.Network(), a)
	// Output: via [fd00::2]:80
}

// exampleHosts runs f with the stacks of two hosts, on NICs in memory.
func exampleHosts(f func(client, server *vianet.Stack) error) {
	var example memorynic.Example
	defer example.End()
	wire := xdpnictest.NewWire()
	example.Cleanup(wire.Close)
	fabric := kagenttest.NewFabric(kagenttest.Faults{})
	var stacks [2]*vianet.Stack
	for i := range stacks {
		nic := memorynic.Open(&example, wire, fabric.Agent(fmt.Sprint("host", i)), memorynic.Config{}).NIC
		s, err := vianet.New(nic, vianet.Options{})
		if err != nil {
			example.Fatal(err)
		}
		example.Cleanup(func() { s.Close() })
		stacks[i] = s
	}
	if err := f(stacks[0], stacks[1]); err != nil {
		fmt.Println(err)
	}
}

// A web server that listens by VIA and by TCP, and a client that uses VIA if the other host has it.
func ExampleStack_DialOr() {
	exampleHosts(func(client, server *vianet.Stack) error {
		via, err := server.Listen("via", ":80")
		if err != nil {
			return err
		}
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			by := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
			fmt.Fprintln(w, "This came by", by.Network())
		})}
		defer web.Close()
		go web.Serve(via)
		go web.Serve(tcp)

		var dialer net.Dialer
		transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return client.DialOr(ctx, network, address, func(ctx context.Context) (net.Conn, error) {
				return dialer.DialContext(ctx, network, address)
			})
		}}
		defer transport.CloseIdleConnections()
		get := func(host string) error {
			r, err := (&http.Client{Transport: transport}).Get("http://" + host)
			if err != nil {
				return err
			}
			defer r.Body.Close()
			text, err := io.ReadAll(r.Body)
			fmt.Print(string(text))
			return err
		}
		return errors.Join(get("10.0.0.2"), get(tcp.Addr().String()))
	})
	// Output:
	// This came by via
	// This came by tcp
}
