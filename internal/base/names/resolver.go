package names

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Timeout is how long DNS may take for a lookup.
const Timeout = 5 * time.Second

// ErrUnknown is the cause where all sources answered and none knows it.
var ErrUnknown = errors.New("unknown")

// File names a file to look in; with Optional it need not exist.
type File struct {
	Path     string // "": none
	Optional bool
}

// Config says where to look.
type Config struct {
	Names   File          // file of names
	Hosts   File          // hosts file
	System  *net.Resolver // asked last; nil: not
	Timeout time.Duration // for System; 0: Timeout
}

// Resolver looks names and addresses up. All methods may be called
// concurrently.
type Resolver struct {
	files   []*file // in the order in which they are asked
	system  *net.Resolver
	timeout time.Duration
}

// New makes a resolver and reads its files. The error says which of them is
// wrong or missing.
func New(c Config) (*Resolver, error) {
	r := &Resolver{
		files: []*file{
			{path: c.Names.Path, optional: c.Names.Optional, parse: ParseNames},
			{path: c.Hosts.Path, optional: c.Hosts.Optional, parse: ParseHosts},
		},
		system: c.System, timeout: cmp.Or(c.Timeout, Timeout),
	}
	for _, f := range r.files {
		if _, err := f.load(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Lookup gives the addresses of a name, at least one: those of the first source
// that knows it, a file's in its order, those of DNS in ascending order, IPv4
// first, so that they come in the same order every time. An address literal is
// its own address. Upper and lower case are the same.
//
// ErrUnknown; an error that names file and line where a file that had to be
// asked is wrong; the error of package net where DNS failed or the time was
// over.
func (r *Resolver) Lookup(ctx context.Context, name string) ([]Address, error) {
	if host, err := netip.ParseAddr(name); err == nil {
		return []Address{{Host: plain(host)}}, nil
	}
	for _, f := range r.files {
		t, err := f.load()
		if err != nil {
			return nil, err
		}
		if found := t.byName[fold(name)]; len(found) > 0 {
			return slices.Clone(found), nil
		}
	}
	var hosts []netip.Addr
	err := r.ask(ctx, quote(name), func(ctx context.Context) (err error) {
		hosts, err = r.system.LookupNetIP(ctx, "ip", name)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(hosts) == 0 {
		return nil, r.unknown(quote(name))
	}
	return addresses(hosts), nil
}

// addresses brings an answer of DNS in order. Servers rotate theirs: without
// that, asking for the first address and then for the second could give the
// same one twice.
func addresses(hosts []netip.Addr) []Address {
	for i := range hosts {
		hosts[i] = plain(hosts[i])
	}
	slices.SortFunc(hosts, netip.Addr.Compare)
	all := make([]Address, 0, len(hosts))
	for _, host := range slices.Compact(hosts) {
		all = append(all, Address{Host: host})
	}
	return all
}

// Reverse gives the name of an address: the first name of its first line in the
// first file that has one, or the first that DNS gives. In a file of names the
// discriminator counts: a line with the same one goes before all; a line
// without one names the host, whatever the discriminator; a line with another
// one is taken only for an address without. Hosts files and DNS look at the host
// alone. Errors are those of Lookup.
func (r *Resolver) Reverse(ctx context.Context, a Address) (string, error) {
	a.Host = plain(a.Host)
	for _, f := range r.files {
		t, err := f.load()
		if err != nil {
			return "", err
		}
		if name, ok := t.name(a); ok {
			return name, nil
		}
	}
	var found []string
	err := r.ask(ctx, a.Host.String(), func(ctx context.Context) (err error) {
		if found, err = r.system.LookupAddr(ctx, a.Host.String()); len(found) > 0 {
			return nil // the good ones of an answer that has bad ones too
		}
		return err
	})
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", r.unknown(a.Host.String())
	}
	return strings.TrimSuffix(found[0], "."), nil
}

// ask asks the system's resolver.
func (r *Resolver) ask(ctx context.Context, what string, question func(context.Context) error) error {
	if r.system == nil {
		return r.unknown(what)
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	err := question(ctx)
	if wrong, ok := errors.AsType[*net.DNSError](err); ok && wrong.IsNotFound {
		return r.unknown(what)
	}
	if err != nil {
		return fmt.Errorf("%s: no file has it, and DNS failed: %w", what, err)
	}
	return nil
}

// unknown is the error if no source knows it. It lists the sources that were asked.
func (r *Resolver) unknown(what string) error {
	var asked []string
	for _, f := range r.files {
		if f.path != "" {
			asked = append(asked, "not in "+f.path)
		}
	}
	if r.system != nil {
		asked = append(asked, "not in DNS")
	} else {
		asked = append(asked, "DNS is switched off")
	}
	return fmt.Errorf("%s is %w: %s", what, ErrUnknown, strings.Join(asked, ", "))
}
