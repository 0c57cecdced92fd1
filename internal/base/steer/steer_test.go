package steer

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

// fakeNIC simulates a NIC with the features in its fields.
type fakeNIC struct {
	rules   map[uint32]Rule // nil: no classifier
	noIPv6  bool
	noIPv4  bool
	chooses bool     // takes no location
	off     bool     // the classifier, which then refuses rules
	table   []uint32 // nil: no table
	queues  int      // of the default table
	set     bool     // the table was set, and is not the default
}

func (f *fakeNIC) Rules() (map[uint32]Rule, error) {
	if f.rules == nil {
		return nil, unix.EOPNOTSUPP
	}
	m := make(map[uint32]Rule)
	for l, r := range f.rules {
		m[l] = r
	}
	return m, nil
}

func (f *fakeNIC) Insert(r Rule) (uint32, error) {
	if f.noIPv6 && r.IPv6 || f.noIPv4 && !r.IPv6 {
		return 0, unix.EINVAL
	}
	if f.off {
		return 0, unix.EOPNOTSUPP
	}
	for l := uint32(15); ; l-- {
		if _, ok := f.rules[l]; !ok {
			f.rules[l] = r
			return l, nil
		}
	}
}

func (f *fakeNIC) InsertAt(l uint32, r Rule) error {
	if _, used := f.rules[l]; used || f.chooses {
		return unix.EINVAL
	}
	f.rules[l] = r
	return nil
}

func (f *fakeNIC) Delete(l uint32) error {
	if _, ok := f.rules[l]; !ok {
		return unix.ENOENT
	}
	delete(f.rules, l)
	return nil
}

func (f *fakeNIC) Table() ([]uint32, error) {
	if f.table == nil {
		return nil, unix.EOPNOTSUPP
	}
	return slices.Clone(f.table), nil
}

func (f *fakeNIC) SetTable(t []uint32) error {
	if f.set = len(t) > 0; f.set {
		f.table = slices.Clone(t)
		return nil
	}
	for i := range f.table {
		f.table[i] = uint32(i % f.queues)
	}
	return nil
}

func (f *fakeNIC) RulesOff() bool { return f.off }

func (f *fakeNIC) has(r Rule) bool {
	for _, x := range f.rules {
		if x == r {
			return true
		}
	}
	return false
}

func TestRules(t *testing.T) {
	other := Rule{Port: 80, Queue: 3}
	before := map[uint32]Rule{15: other, 2: {Port: 4793, Queue: 7}}
	f := &fakeNIC{rules: maps.Clone(before), table: []uint32{0, 1}}
	s, err := Port(f, 4793, 1, RSS)
	nstest.FatalIf(t, err != nil || s.How != Rules, "%+v, %v", s, err)
	if !f.has(Rule{Port: 4793, Queue: 1}) || !f.has(Rule{IPv6: true, Port: 4793, Queue: 1}) || f.has(Rule{Port: 4793, Queue: 7}) || !f.has(other) {
		t.Errorf("rules: %v", f.rules)
	}
	nstest.ErrorIf(t, !slices.Equal(f.table, []uint32{0, 1}), "the table was changed without need")
	if err := errors.Join(s.Undo(), s.Undo()); err != nil || !maps.Equal(f.rules, before) {
		t.Errorf("after Undo: %v, want %v, %v", f.rules, before, err)
	}
}

// Existing rules for the port: a rule for the queue is used and stays; a rule for another
// queue comes back in any case.
func TestRulesOfOthers(t *testing.T) {
	ours4, ours6 := Rule{Port: 4793, Queue: 1}, Rule{IPv6: true, Port: 4793, Queue: 1}
	theirs4, theirs6 := Rule{Port: 4793, Queue: 2}, Rule{IPv6: true, Port: 4793, Queue: 2}
	for name, before := range map[string]map[uint32]Rule{
		"both for the queue": {3: ours4, 4: ours6},
		"one for the queue":  {3: ours4},
		"both for another":   {3: theirs4, 4: theirs6},
		"for each":           {3: ours4, 4: theirs4},
	} {
		f := &fakeNIC{rules: maps.Clone(before)}
		s, err := Port(f, 4793, 1, Rules)
		if err != nil || len(f.rules) != 2 || !f.has(ours4) || !f.has(ours6) {
			t.Errorf("%s: %v, %v", name, f.rules, err)
			continue
		}
		if r, was := before[3]; was && r == ours4 && f.rules[3] != ours4 {
			t.Errorf("%s: another owner's rule was moved: %v", name, f.rules)
		}
		if err := s.Undo(); err != nil || !maps.Equal(f.rules, before) {
			t.Errorf("%s, after Undo: %v, want %v, %v", name, f.rules, before, err)
		}
	}

	// A driver that takes no location.
	f := &fakeNIC{rules: map[uint32]Rule{3: theirs4}, chooses: true}
	s, err := Port(f, 4793, 1, Rules)
	nstest.Must(t, err)
	if err := s.Undo(); err != nil || len(f.rules) != 1 || !f.has(theirs4) {
		t.Errorf("at any location: %v, %v", f.rules, err)
	}
	// No rule can be added: everything stays as before.
	before := map[uint32]Rule{3: theirs4, 4: theirs6}
	f = &fakeNIC{rules: maps.Clone(before), noIPv4: true}
	if _, err := Port(f, 4793, 1, Rules); !errors.Is(err, unix.EINVAL) || !maps.Equal(f.rules, before) {
		t.Errorf("failed: %v, want %v, %v", f.rules, before, err)
	}
	// A rule that an administrator sets meanwhile stays.
	f = &fakeNIC{rules: map[uint32]Rule{3: theirs4}}
	s, err = Port(f, 4793, 1, Rules)
	nstest.Must(t, err)
	newer := Rule{Port: 4793, Queue: 5}
	f.rules[9] = newer
	if err := s.Undo(); err != nil || len(f.rules) != 1 || f.rules[9] != newer {
		t.Errorf("after a newer rule and Undo: %v, %v", f.rules, err)
	}
}

// After its rule was deleted, a location may hold another rule.
func TestUndoLooks(t *testing.T) {
	f := &fakeNIC{rules: map[uint32]Rule{}}
	s, err := Port(f, 4793, 1, Rules)
	nstest.FatalIf(t, err != nil || len(s.Locations) != 2, "%+v, %v", s, err)
	reused := Rule{Port: 80, Queue: 1}
	f.rules[s.Locations[0]] = reused
	delete(f.rules, s.Locations[1])
	if err := s.Undo(); err != nil || len(f.rules) != 1 || !f.has(reused) {
		t.Errorf("after Undo: %v, %v", f.rules, err)
	}
}

// Another process undoes it, with what was encoded.
func TestResume(t *testing.T) {
	rules := map[uint32]Rule{2: {Port: 4793, Queue: 7}}
	for _, f := range []*fakeNIC{{rules: maps.Clone(rules)}, {table: []uint32{0, 1, 2}, queues: 3}} {
		s, err := Port(f, 4793, 1, RSS)
		nstest.Must(t, err)
		b, err := json.Marshal(s.State)
		nstest.Must(t, err)
		var was State
		nstest.Must(t, json.Unmarshal(b, &was))
		r := Resume(f, 1, was)
		nstest.ErrorIf(t, r.How != s.How, "steered by %v, want %v", r.How, s.How)
		nstest.Check(t, r.Undo())
		if f.rules != nil && !maps.Equal(f.rules, rules) || f.table != nil && !slices.Equal(f.table, []uint32{0, 1, 2}) {
			t.Errorf("after Undo: %+v", f)
		}
	}
}

// classifier answers the kernel's commands as drivers do that choose no
// locations (the table's size comes with the list of rules: igb, ixgbe, mlx5), or
// as those that do.
type classifier struct {
	size    int
	chooses bool
	rules   map[uint32]flowSpec
}

func (f *classifier) nfc(c *rxnfc, locations []uint32) error {
	at := c.spec.location
	switch c.cmd {
	case cmdRuleCount:
		if c.count = uint32(len(f.rules)); f.chooses {
			c.data = locSpecial
		}
	case cmdRuleAll:
		if len(locations) < len(f.rules) {
			return unix.EMSGSIZE
		}
		c.count, c.data = uint32(copy(locations, slices.Collect(maps.Keys(f.rules)))), uint64(f.size)
	case cmdRuleGet:
		if _, there := f.rules[at]; !there {
			return unix.EINVAL
		}
		c.spec = f.rules[at]
	case cmdRuleDel:
		delete(f.rules, at)
	case cmdRuleIns:
		if f.chooses && at == locAny {
			for at = 0; f.rules[at].flow != 0; at++ {
			}
		}
		if int(at) >= f.size {
			return unix.EINVAL
		}
		c.spec.location = at
		f.rules[at] = c.spec
	}
	return nil
}

func TestLocations(t *testing.T) {
	for _, chooses := range []bool{false, true} {
		f := &classifier{size: 3, chooses: chooses, rules: make(map[uint32]flowSpec)}
		i := &Interface{nfc: f.nfc}
		s, err := Port(i, 4793, 1, Rules)
		nstest.FatalIf(t, err != nil, "the driver chooses %v: %v", chooses, err)
		last := Rule{Port: 80, Queue: 2}
		l, err := i.Insert(last)
		if want := map[bool]uint32{false: 0, true: 2}[chooses]; err != nil || l != want {
			t.Errorf("the driver chooses %v: at %d, want %d, %v", chooses, l, want, err)
		}
		if rules, err := i.Rules(); err != nil || len(rules) != 3 || rules[l] != last {
			t.Errorf("the driver chooses %v: %v, %v", chooses, rules, err)
		}
		if _, err := i.Insert(last); err == nil {
			t.Errorf("the driver chooses %v: a fourth rule in a table of three", chooses)
		}
		if err := s.Undo(); err != nil || len(f.rules) != 1 {
			t.Errorf("the driver chooses %v: after Undo: %v, %v", chooses, f.rules, err)
		}
	}
}

// Another process adds a rule after the rules were counted, or deletes one after they were listed. Port and Undo do their work.
func TestRulesOfOthersMeanwhile(t *testing.T) {
	for name, before := range map[string]uint32{"a rule more": cmdRuleAll, "a rule less": cmdRuleGet} {
		other := Rule{Port: 80, Queue: 3}.spec()
		f := &classifier{size: 9, rules: map[uint32]flowSpec{0: other}}
		meanwhile := false
		i := &Interface{nfc: func(c *rxnfc, locations []uint32) error {
			if meanwhile && c.cmd == before {
				meanwhile = false
				if before == cmdRuleAll {
					f.rules[1] = other
				} else {
					delete(f.rules, c.spec.location)
				}
			}
			return f.nfc(c, locations)
		}}
		meanwhile = true
		s, err := Port(i, 4793, 1, Rules)
		nstest.FatalIf(t, err != nil, "%s: %v", name, err)
		delete(f.rules, 1)
		f.rules[0] = other
		meanwhile = true
		if err := s.Undo(); err != nil || len(f.rules) > 2 || f.rules[8].flow != 0 || f.rules[7].flow != 0 {
			t.Errorf("%s: after Undo: %v, %v", name, slices.Collect(maps.Keys(f.rules)), err)
		}
	}
}

func TestRulesOfIPv4Alone(t *testing.T) {
	f := &fakeNIC{rules: map[uint32]Rule{}, noIPv6: true}
	s, err := Port(f, 1, 2, Rules)
	nstest.FatalIf(t, err != nil || len(f.rules) != 1, "%v, %v", f.rules, err)
	nstest.WantErr(t, "the rule for IPv6", s.NoIPv6, unix.EINVAL)
	if err := s.Undo(); err != nil || len(f.rules) != 0 {
		t.Errorf("%v, %v", f.rules, err)
	}
}

// A disabled classifier, the default of ixgbe, lists rules and accepts none. The error explains that it can be
// enabled.
func TestRulesOff(t *testing.T) {
	f := &fakeNIC{rules: map[uint32]Rule{}, off: true}
	if _, err := Port(f, 4793, 1, Rules); !errors.Is(err, ErrRulesOff) || !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("%v", err)
	}
	f.off = false
	nstest.WantErr(t, "turned on", nstest.Err(Port(f, 4793, 1, Rules)), nil)
	if _, err := Port(&fakeNIC{}, 4793, 1, Rules); err == nil || errors.Is(err, ErrRulesOff) {
		t.Errorf("no classifier: %v", err)
	}
}

func TestTable(t *testing.T) {
	f := &fakeNIC{table: []uint32{0, 1, 2, 0}, queues: 3}
	if _, err := Port(f, 4793, 2, Rules); !errors.Is(err, unix.EOPNOTSUPP) || !slices.Equal(f.table, []uint32{0, 1, 2, 0}) {
		t.Fatalf("rules only: %v, table %v", err, f.table)
	}
	s, err := Port(f, 4793, 2, RSS)
	nstest.FatalIf(t, err != nil || s.How != RSS || !slices.Equal(f.table, []uint32{2, 2, 2, 2}),
		"%+v, %v, table %v", s, err, f.table)
	if err := s.Undo(); err != nil || !slices.Equal(f.table, []uint32{0, 1, 2, 0}) {
		t.Errorf("after Undo: %v, %v", f.table, err)
	}
	// A table that an administrator sets meanwhile stays.
	s, err = Port(f, 4793, 2, RSS)
	nstest.Must(t, err)
	f.table = []uint32{1, 1, 1, 1}
	if err := s.Undo(); err != nil || !slices.Equal(f.table, []uint32{1, 1, 1, 1}) {
		t.Errorf("after a change by others and Undo: %v, %v", f.table, err)
	}
}

// The kernel's default table is restored as the default, and a table that was set as that table.
func TestDefaultTable(t *testing.T) {
	for _, c := range []struct {
		before []uint32
		set    bool
	}{
		{[]uint32{0, 1, 2, 0}, false}, // of three queues
		{[]uint32{0, 0, 0, 0}, true},
		{[]uint32{0, 1, 0, 1}, true},
		{[]uint32{0, 0, 1, 2}, true}, // igb spreads so, and knows by itself
	} {
		f := &fakeNIC{table: slices.Clone(c.before), queues: 3, set: c.set}
		s, err := Port(f, 4793, 2, RSS)
		nstest.FatalIf(t, err != nil || !f.set, "%v: %v", c.before, err)
		if err := s.Undo(); err != nil || !slices.Equal(f.table, c.before) || f.set != c.set {
			t.Errorf("%v, set %v: after Undo %v, set %v, %v", c.before, c.set, f.table, f.set, err)
		}
	}
}

func TestNothing(t *testing.T) {
	_, err := Port(&fakeNIC{}, 4793, 0, RSS)
	if err == nil || !strings.Contains(err.Error(), "rule: ") || !strings.Contains(err.Error(), "indirection table: ") {
		t.Errorf("%v", err)
	}
	if _, err := Port(&fakeNIC{table: []uint32{0}}, 4793, 0, Off); err == nil {
		t.Error("steered although it is off")
	}
}

// Rules there and back.
func TestRuleSpec(t *testing.T) {
	for _, want := range []Rule{{Port: 4793, Queue: 3}, {IPv6: true, Port: 0x1234}} {
		s := want.spec()
		if got, ok := s.rule(); !ok || got != want {
			t.Errorf("%+v: %+v, %v", want, got, ok)
		}
		s.mask[0] = 0xff // another owner's rule, which matches an address, too
		if _, ok := s.rule(); ok {
			t.Error("another's rule was taken for ours")
		}
	}
}

// A NIC with neither feature returns errors that Port passes on.
func TestInterface(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{Queues: 2})
	nstest.Check(t, ns.Do(func() error {
		i, err := Open(ns.Name)
		if err != nil {
			return err
		}
		defer i.Close()
		if _, err := Port(i, 4793, 1, RSS); !errors.Is(err, unix.EOPNOTSUPP) {
			return errors.Join(errors.New("a veth steers"), err)
		}
		if i.RulesOff() {
			return errors.New("a veth has a classifier")
		}
		// Another feature, which a veth has: on, and then off.
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		const feature = "tx-tcp-segmentation"
		for _, on := range []bool{true, false} {
			if err := e.Change(ns.Name, map[string]bool{feature: on}); err != nil {
				return err
			}
			if off(e, ns.Name, feature) == on {
				return fmt.Errorf("%s is turned on: %v, and is said not to be so", feature, on)
			}
		}
		return nil
	}))
	if _, err := Open("a-name-that-is-too-long"); err == nil {
		t.Error("a name of 23 bytes was taken")
	}
}

// An Interface stays the interface that was opened when that is renamed and another one gets its name.
func TestRenamed(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{Queues: 2})
	var i *Interface
	nstest.Must(t, ns.Do(func() (err error) { i, err = Open(ns.Name); return }))
	defer i.Close()
	nl := ns.Netlink()
	link := ns.Link(t)
	nstest.Must(t, nl.LinkSetName(link, "via7"))
	nstest.WantErr(t, "the table of a veth that was renamed", nstest.Err(i.Table()), unix.EOPNOTSUPP)
	other := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: ns.Name}, PeerName: "via8"}
	nstest.Must(t, nl.LinkAdd(other))
	defer nl.LinkDel(other)
	nstest.Must(t, nl.LinkDel(link))
	nstest.WantErr(t, "the table of an interface that was removed", nstest.Err(i.Table()), unix.ENODEV)
}

func TestParse(t *testing.T) {
	for h := Rules; h <= Off; h++ {
		if got, err := Parse(h.String()); err != nil || got != h {
			t.Errorf("%v: %v, %v", h, got, err)
		}
	}
	if _, err := Parse("auto"); err == nil {
		t.Error("auto was taken")
	}
}
