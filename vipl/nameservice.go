package vipl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"viaxdp/internal/base/names"
)

// The files that the name service reads by default.
const (
	DefaultNames = "/etc/via/names"
	DefaultHosts = "/etc/hosts"
)

// namesVariable is the environment variable that names the file of names if the program does not.
const namesVariable = "VIA_NAMES"

// Package names has the same limit for discriminators.
var _ [MaxDiscriminatorLen]byte = [names.MaxDisc]byte{}

// NSConfig configures the name service. It looks in a file of names first (docs/names.md has its format), then in a
// hosts file (hosts(5)), and then asks the system's resolver (DNS). A file that is named here or in the environment
// must exist; /dev/null stands for an empty one.
type NSConfig struct {
	Names string // "": that in $VIA_NAMES, else DefaultNames if it exists
	Hosts string // "": DefaultHosts if it exists
	NoDNS bool
}

func (c NSConfig) resolver() (*names.Resolver, error) {
	own := cmp.Or(c.Names, os.Getenv(namesVariable))
	config := names.Config{
		Names: names.File{Path: cmp.Or(own, DefaultNames), Optional: own == ""},
		Hosts: names.File{Path: cmp.Or(c.Hosts, DefaultHosts), Optional: c.Hosts == ""},
	}
	if !c.NoDNS {
		// Go's own resolver: a lookup of the C library cannot be cancelled.
		config.System = &net.Resolver{PreferGo: true}
	}
	return names.New(config)
}

// NSInit is VipNSInit: it starts the name service. The zero NSConfig means the defaults. A second NSInit replaces
// the configuration of the first. Files that change are read again automatically.
//
// Errors: ErrNameService if a named file does not exist or cannot be read, or if a file is malformed; the previous
// configuration remains. ErrInvalidParameter if the NIC is closed.
func (n *NIC) NSInit(c NSConfig) error {
	const op = "NSInit"
	if n.closing() {
		return closedError(op)
	}
	r, err := c.resolver()
	if err != nil {
		return opError(op, nil, ErrNameService, err)
	}
	n.names.Store(r)
	return nil
}

// NSShutdown is VipNSShutdown: it stops the name service. Lookups that are under way complete normally.
//
// Errors: ErrInvalidParameter if the name service does not run, or the NIC is closed.
func (n *NIC) NSShutdown() error {
	const op = "NSShutdown"
	switch {
	case n.closing():
		return closedError(op)
	case n.names.Swap(nil) == nil:
		return opError(op, nil, ErrInvalidParameter, errNoNameService)
	}
	return nil
}

// NSGetHostByName is VipNSGetHostByName: it returns the address with the given index, from 0, of a name. The first
// source that knows the name answers: a file in the order of its lines, DNS in ascending order, IPv4 first. Case is
// ignored. An address as text, such as 10.0.0.2 or fd00::2, is its own address. The discriminator is empty if the
// source is not the file of names, or its line has none.
//
// If DNS does not answer, it returns within five seconds. Reading files has no time limit.
//
// Errors: ErrNameService if the name is unknown or has fewer addresses, if a file has become malformed, if DNS does
// not answer, or if NSInit was not called. ErrInvalidParameter for an empty name, for a negative index, and if the
// NIC is closed.
func (n *NIC) NSGetHostByName(name string, index int) (NetAddress, error) {
	const op = "NSGetHostByName"
	switch {
	case name == "":
		return NetAddress{}, opError(op, nil, ErrInvalidParameter, errors.New("an empty name"))
	case index < 0:
		return NetAddress{}, opError(op, nil, ErrInvalidParameter, fmt.Errorf("index %d: the first is 0", index))
	}
	r, err := n.nameService(op)
	if err != nil {
		return NetAddress{}, err
	}
	ctx, cancel := n.untilClosed()
	defer cancel()
	all, err := r.Lookup(ctx, name)
	if err != nil {
		return NetAddress{}, n.lookupError(op, err)
	}
	if index >= len(all) {
		return NetAddress{}, opError(op, nil, ErrNameService,
			fmt.Errorf("%q has %d addresses, none with index %d", name, len(all), index))
	}
	a := NetAddress{Host: all[index].Host}
	if disc := all[index].Disc; disc != "" {
		a.Discriminator = []byte(disc)
	}
	return a, nil
}

// NSGetHostByAddr is VipNSGetHostByAddr: it returns the name of an address. In the file of names a line with a's
// host and a's discriminator precedes all others. A line without a discriminator matches its host, whatever a's
// discriminator. If a has no discriminator, any line of the host matches. The hosts file and DNS are searched by
// host only. It takes as long as NSGetHostByName.
//
// Errors: ErrNameService if the address has no name, if a file has become malformed, if DNS does not answer, or if
// NSInit was not called. ErrInvalidParameter for no host, for a discriminator that is too long, and if the NIC is
// closed.
func (n *NIC) NSGetHostByAddr(a NetAddress) (string, error) {
	const op = "NSGetHostByAddr"
	if !a.Host.IsValid() {
		return "", opError(op, nil, ErrInvalidParameter, errors.New("an address without a host"))
	}
	if err := a.check(op, nil); err != nil {
		return "", err
	}
	r, err := n.nameService(op)
	if err != nil {
		return "", err
	}
	ctx, cancel := n.untilClosed()
	defer cancel()
	name, err := r.Reverse(ctx, names.Address{Host: a.Host, Disc: string(a.Discriminator)})
	if err != nil {
		return "", n.lookupError(op, err)
	}
	return name, nil
}

var errNoNameService = errors.New("the name service does not run: call NSInit first")

// nameService returns the resolver that NSInit has started.
func (n *NIC) nameService(op string) (*names.Resolver, error) {
	if n.closing() {
		return nil, closedError(op)
	}
	r := n.names.Load()
	if r == nil {
		return nil, opError(op, nil, ErrNameService, errNoNameService)
	}
	return r, nil
}

// lookupError returns the error of a failed lookup, which Close may have cancelled.
func (n *NIC) lookupError(op string, err error) error {
	if n.closing() {
		return closedError(op)
	}
	return opError(op, nil, ErrNameService, err)
}

// untilClosed returns a context that ends when the handle is closed.
func (n *NIC) untilClosed() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		select {
		case <-n.closed:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
