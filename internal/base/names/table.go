package names

import "net/netip"

// table is a file, ready for lookups. It does not change. The zero table is
// that of an empty file.
type table struct {
	byName map[string][]Address // by folded name, in the order of the file
	exact  map[Address]string   // the first name of that host with that discriminator
	host   map[netip.Addr]string
}

func newTable(entries []Entry) *table {
	t := &table{
		byName: make(map[string][]Address),
		exact:  make(map[Address]string, len(entries)),
		host:   make(map[netip.Addr]string, len(entries)),
	}
	for _, e := range entries {
		for _, name := range e.Names {
			key := fold(name)
			t.byName[key] = append(t.byName[key], e.Address)
		}
		if _, ok := t.exact[e.Address]; !ok {
			t.exact[e.Address] = e.Names[0]
		}
		if _, ok := t.host[e.Host]; !ok {
			t.host[e.Host] = e.Names[0]
		}
	}
	return t
}

// name gives the name of an address: that of the host with that very
// discriminator; for an address with a discriminator, else that of the host by
// itself; for one without, else the first of the host with any.
func (t *table) name(a Address) (string, bool) {
	if name, ok := t.exact[a]; ok {
		return name, true
	}
	if a.Disc == "" {
		name, ok := t.host[a.Host]
		return name, ok
	}
	name, ok := t.exact[Address{Host: a.Host}]
	return name, ok
}
