// Package side has the common start of the examples: flags, an open NIC with a
// protection tag, and a connection. Example pingpong does not use it and shows all of
// it in one place.
package side

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"net/netip"
	"time"

	"viaxdp/vipl"
)

// WaitLimit is how long an example waits for the other side, once connected.
const WaitLimit = 5 * time.Second

// Side is one of the two programs that talk: the server, which waits, or the client,
// which has the server's address.
type Side struct {
	NIC    *vipl.NIC
	Tag    *vipl.Ptag
	Server bool

	remote vipl.NetAddress // the server, for the client
	local  vipl.NetAddress // for the server
}

// Main is the main function of an example: it reads the flags, opens the NIC,
// calls run and ends the program. name is the discriminator of connections.
func Main(name string, run func(*Side) error) {
	log.SetFlags(0)
	log.SetPrefix(name + ": ")
	device := flag.String("i", "via0", "interface")
	server := flag.String("connect", "", "`address` of the server; without it, be the server")
	flag.Parse()
	if flag.NArg() > 0 {
		log.Fatalf("%q is too much: -connect names the server", flag.Arg(0))
	}
	if err := open(name, *device, *server, run); err != nil {
		log.Fatal(err)
	}
}

func open(name, device, server string, run func(*Side) error) (err error) {
	s := &Side{Server: server == ""}
	s.local.Discriminator, s.remote.Discriminator = []byte(name), []byte(name)
	if !s.Server {
		if s.remote.Host, err = netip.ParseAddr(server); err != nil {
			return err
		}
	}
	if s.NIC, err = vipl.OpenNIC(device); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.NIC.Close()) }() // ends everything made of it
	if s.Tag, err = s.NIC.CreatePtag(); err != nil {
		return err
	}
	if s.Server {
		fmt.Println("waiting for a client")
	}
	return run(s)
}

// Connect connects a VI: the server's with the next client, the client's with the
// server.
func (s *Side) Connect(vi *vipl.VI) error {
	if s.Server {
		request, err := s.NIC.ConnectWait(s.local, -1)
		if err != nil {
			return err
		}
		return request.Accept(vi)
	}
	for end := time.Now().Add(WaitLimit); ; time.Sleep(10 * time.Millisecond) {
		_, err := vi.ConnectRequest(s.local, s.remote, WaitLimit)
		// The server may not wait yet.
		if !errors.Is(err, vipl.ErrNoMatch) || time.Now().After(end) {
			return err
		}
	}
}
