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

// Timeout is the time limit of DNS for a lookup.
const Timeout = 5 * time.Second

// ErrUnknown is the cause if all sources answered and none has the name or address.
var ErrUnknown = errors.New("unknown")

// File names a source file; with Optional it need not exist.
type File struct {
	Path     string // "": none
	Optional bool
}

// Config names the sources of a lookup.
type Config struct {
	Names   File          // file of names
	Hosts   File          // hosts file
	System  *net.Resolver // queried last; nil: not at all
	Timeout time.Duration // for System; 0: Timeout
}

// Resolver looks names and addresses up. All methods may be called
// concurrently.
type Resolver struct {
	files   []*file // in the order of lookup
	system  *net.Resolver
	timeout time.Duration
}

// New makes a resolver and reads its files. The error names the file that is wrong or missing.
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

// Lookup returns the addresses of a name, at least one: those of the first source that has it. Addresses of a file
// are in its order, those of DNS in ascending order, IPv4 first, so that the order is always the same. An address
// literal is its own address. Case is ignored.
//
// Errors: ErrUnknown; an error with file and line if a file that was needed is invalid; the error of package net if
// DNS failed or timed out.
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

// addresses sorts an answer of DNS. Servers rotate theirs: otherwise a lookup of the first address and one of the
// second could return the same one.
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

// Reverse returns the name of an address: the first name of its first line in the first file that has one, or the
// first of DNS. In a file of names, a line with the same discriminator precedes all others. A line without one
// matches its host with any discriminator. A line with another one matches only an address without. Hosts files and
// DNS are searched by host only. Errors are those of Lookup.
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
			return nil // use the valid names of an answer with invalid ones
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

// ask queries the system's resolver.
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

// unknown returns the error if no source has the name. It lists the sources that were queried.
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
