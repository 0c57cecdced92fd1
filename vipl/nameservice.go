package vipl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"viaxdp/internal/names"
)

// Where the name service looks without being told.
const (
	DefaultNames = "/etc/via/names"
	DefaultHosts = "/etc/hosts"
)

// namesVariable names the file of names where the program does not.
const namesVariable = "VIA_NAMES"

// The longest discriminator is the same there as here.
var _ [MaxDiscriminatorLen]byte = [names.MaxDisc]byte{}

// NSConfig says where the name service looks: first in a file of names
// (docs/names.md has its format), then in a hosts file (hosts(5)); then it asks the
// system's resolver (DNS). A file that is named here or in the environment must
// exist; /dev/null stands for an empty one.
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
		// Go's own resolver: the C library's cannot be called off.
		config.System = &net.Resolver{PreferGo: true}
	}
	return names.New(config)
}

// NSInit is VipNSInit: starts the name service. The zero NSConfig means the
// defaults. A second NSInit replaces the configuration of the first. Files that
// change are read again by themselves.
//
// ErrNameService: a file that is named does not exist or cannot be read, or a
// file is wrong; the configuration of before stays. ErrInvalidParameter: the NIC was
// closed.
func (n *Nic) NSInit(c NSConfig) error {
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

// NSShutdown is VipNSShutdown: stops the name service. Lookups under way end as
// if it still ran.
//
// ErrInvalidParameter: it does not run, or the NIC was closed.
func (n *Nic) NSShutdown() error {
	const op = "NSShutdown"
	switch {
	case n.closing():
		return closedError(op)
	case n.names.Swap(nil) == nil:
		return opError(op, nil, ErrInvalidParameter, errNoNameService)
	}
	return nil
}

// NSGetHostByName is VipNSGetHostByName: the address of a name, which may have
// several; index 0 is the first. The first source that knows the name answers,
// a file in the order of its lines, DNS in ascending order, IPv4 first. Upper
// and lower case are the same. An address as text, such as 10.0.0.2 or fd00::2,
// is its own address. The discriminator is empty where the source is not the
// file of names, or its line has none.
//
// It returns within five seconds where DNS does not answer; files take as long
// as they take.
//
// ErrNameService: the name is unknown or has not that many addresses, a file
// has become wrong, DNS does not answer, or NSInit was not called.
// ErrInvalidParameter: an empty name, a negative index, or the NIC was closed.
func (n *Nic) NSGetHostByName(name string, index int) (NetAddress, error) {
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

// NSGetHostByAddr is VipNSGetHostByAddr: the name of an address. In the file of
// names a line with a's host and a's discriminator goes before all others; a line
// without a discriminator matches its host, whatever a's discriminator; and where a
// has none, any line of the host matches. Hosts file and DNS go by the host alone.
// It takes as long as NSGetHostByName.
//
// ErrNameService: the address has no name, a file has become wrong, DNS does
// not answer, or NSInit was not called. ErrInvalidParameter: no host, a
// discriminator that is too long, or the NIC was closed.
func (n *Nic) NSGetHostByAddr(a NetAddress) (string, error) {
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

// nameService gives what NSInit has started.
func (n *Nic) nameService(op string) (*names.Resolver, error) {
	if n.closing() {
		return nil, closedError(op)
	}
	r := n.names.Load()
	if r == nil {
		return nil, opError(op, nil, ErrNameService, errNoNameService)
	}
	return r, nil
}

// lookupError gives the code for an error of a lookup, which Close may have
// called off.
func (n *Nic) lookupError(op string, err error) error {
	if n.closing() {
		return closedError(op)
	}
	return opError(op, nil, ErrNameService, err)
}

// untilClosed makes a context that ends when the handle is closed.
func (n *Nic) untilClosed() (context.Context, context.CancelFunc) {
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
