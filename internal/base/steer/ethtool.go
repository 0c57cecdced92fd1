package steer

import (
	"errors"
	"fmt"
	"slices"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"
)

// Numbers of <linux/ethtool.h>.
const (
	cmdIndirGet  = 0x38
	cmdIndirSet  = 0x39
	cmdRuleCount = 0x2e
	cmdRuleGet   = 0x2f
	cmdRuleAll   = 0x30
	cmdRuleDel   = 0x31
	cmdRuleIns   = 0x32

	flowUDP4 = 0x02
	flowUDP6 = 0x06
	// flowFlags are bits of a flow type that add fields to it.
	flowFlags = 0xe0000000

	locSpecial = 1 << 31 // the driver takes locAny
	locAny     = 0xffffffff
	maxTable   = 1 << 16
)

// Offsets of the ports in the union of flows, in bytes.
const (
	flowBytes = 52
	udp4Dst   = 10 // struct ethtool_tcpip4_spec
	udp6Dst   = 34 // struct ethtool_tcpip6_spec
)

// flowExt is struct ethtool_flow_ext.
type flowExt [20]byte

// flowSpec is struct ethtool_rx_flow_spec.
type flowSpec struct {
	flow     uint32
	value    [flowBytes]byte
	valueExt flowExt
	mask     [flowBytes]byte
	maskExt  flowExt
	_        [4]byte
	queue    uint64
	location uint32
	_        [4]byte
}

// rxnfc is struct ethtool_rxnfc, without the locations at its end.
type rxnfc struct {
	cmd   uint32
	flow  uint32
	data  uint64
	spec  flowSpec
	count uint32
	_     [4]byte
}

// spec returns a rule in the kernel's form. Classifiers require every field that they match: a mask of ones for the
// port, zeros for the rest.
func (r Rule) spec() flowSpec {
	s := flowSpec{flow: flowUDP4, queue: uint64(r.Queue)}
	at := udp4Dst
	if r.IPv6 {
		s.flow, at = flowUDP6, udp6Dst
	}
	s.value[at], s.value[at+1] = byte(r.Port>>8), byte(r.Port)
	s.mask[at], s.mask[at+1] = 0xff, 0xff
	return s
}

// rule parses a specification, if it is one that spec could have made.
func (s *flowSpec) rule() (Rule, bool) {
	r := Rule{Queue: int(s.queue)}
	at := udp4Dst
	switch s.flow &^ flowFlags {
	case flowUDP4:
	case flowUDP6:
		r.IPv6, at = true, udp6Dst
	default:
		return r, false
	}
	r.Port = uint16(s.value[at])<<8 | uint16(s.value[at+1])
	return r, s.flow&flowFlags == 0 && s.mask == r.spec().mask
}

// Interface is the NIC of an interface. It has one owner.
type Interface struct {
	index int // the name may become another interface's
	fd    int // a socket of the interface's network namespace
	nfc   func(c *rxnfc, locations []uint32) error
}

// Open opens an interface of the calling thread's network namespace. The Interface then works from any thread, also when the
// interface has been renamed.
func Open(name string) (*Interface, error) {
	r, err := unix.NewIfreq(name)
	if err != nil {
		return nil, fmt.Errorf("interface name %q is too long", name)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, r); err != nil {
		return nil, errors.Join(fmt.Errorf("interface %q: %w", name, err), unix.Close(fd))
	}
	i := &Interface{index: int(r.Uint32()), fd: fd}
	i.nfc = i.rxnfc
	return i, nil
}

// name returns the interface's name now.
func (i *Interface) name() (string, error) {
	r, err := unix.NewIfreq("")
	if err != nil {
		return "", err
	}
	r.SetUint32(uint32(i.index))
	err = unix.IoctlIfreq(i.fd, unix.SIOCGIFNAME, r)
	return r.Name(), err
}

// Close closes the socket; rules and table stay.
func (i *Interface) Close() error { return unix.Close(i.fd) }

// locations returns the locations of all rules, and the size of the table unless the driver chooses locations
// itself. The size comes from the list command, also if the list is empty; many drivers leave it out of the
// reply to the count command.
func (i *Interface) locations() (used []uint32, size uint64, chooses bool, err error) {
	for range listAttempts {
		if used, size, chooses, err = i.list(); !errors.Is(err, unix.EMSGSIZE) {
			break // else there are more rules than were counted
		}
	}
	return used, size, chooses, err
}

func (i *Interface) list() (used []uint32, size uint64, chooses bool, err error) {
	c := rxnfc{cmd: cmdRuleCount}
	if err := i.nfc(&c, nil); err != nil {
		return nil, 0, false, err
	}
	chooses = c.data&locSpecial != 0
	if chooses && c.count == 0 {
		return nil, 0, chooses, nil
	}
	used = make([]uint32, c.count)
	c = rxnfc{cmd: cmdRuleAll, count: c.count}
	if err := i.nfc(&c, used); err != nil {
		return nil, 0, chooses, err
	}
	return used[:min(int(c.count), len(used))], c.data, chooses, nil
}

// listAttempts bounds how often the rules are listed again because another process adds or deletes some meanwhile.
const listAttempts = 10

// Rules returns the rules that match only a port.
func (i *Interface) Rules() (rules map[uint32]Rule, err error) {
	for range listAttempts {
		if rules, err = i.rules(); err == nil || !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			break // else a rule that was listed may be gone
		}
	}
	return rules, err
}

func (i *Interface) rules() (map[uint32]Rule, error) {
	used, _, _, err := i.locations()
	if err != nil {
		return nil, err
	}
	rules := make(map[uint32]Rule)
	for _, l := range used {
		c := rxnfc{cmd: cmdRuleGet}
		c.spec.location = l
		if err := i.nfc(&c, nil); err != nil {
			return nil, err
		}
		if r, ok := c.spec.rule(); ok {
			rules[l] = r
		}
	}
	return rules, nil
}

// Insert adds a rule at a free location.
func (i *Interface) Insert(r Rule) (uint32, error) {
	used, size, chooses, err := i.locations()
	if err != nil {
		return 0, err
	}
	location := uint32(locAny)
	if !chooses {
		// The last locations, since rules at lower ones win.
		free := int64(min(size, locAny)) - 1
		for free >= 0 && slices.Contains(used, uint32(free)) {
			free--
		}
		if free < 0 {
			return 0, unix.ENOSPC
		}
		location = uint32(free)
	}
	return i.insert(r, location)
}

// InsertAt adds a rule at a location.
func (i *Interface) InsertAt(location uint32, r Rule) error {
	_, err := i.insert(r, location)
	return err
}

func (i *Interface) insert(r Rule, location uint32) (uint32, error) {
	c := rxnfc{cmd: cmdRuleIns, spec: r.spec()}
	c.spec.location = location
	err := i.nfc(&c, nil)
	return c.spec.location, err
}

// ntuple is the kernel's name of the feature that enables a classifier; ethtool -K calls it ntuple.
const ntuple = "rx-ntuple-filter"

// RulesOff reports whether the NIC has a disabled classifier, the default of ixgbe: the driver then refuses rules.
// Unlike the other methods it works in the calling thread's network namespace.
func (i *Interface) RulesOff() bool {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return false
	}
	defer e.Close()
	name, err := i.name()
	return err == nil && off(e, name, ntuple)
}

// off reports whether a feature could be enabled.
func off(e *ethtool.Ethtool, name, feature string) bool {
	all, err := e.FeaturesWithState(name)
	f := all[feature]
	return err == nil && f.Available && !f.NeverChanged && !f.Active
}

// Delete removes a rule.
func (i *Interface) Delete(location uint32) error {
	c := rxnfc{cmd: cmdRuleDel}
	c.spec.location = location
	return i.nfc(&c, nil)
}
