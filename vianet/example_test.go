package vianet_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/netip"

	"viaxdp/vianet"
	"viaxdp/vipl"
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
