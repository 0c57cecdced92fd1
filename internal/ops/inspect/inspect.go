// Package inspect reports what an interface can do: driver, queues, modes, limits.
//
// Everything but trying works without privilege, and changes nothing. The functions may
// be called concurrently; they work in the network namespace of the calling thread.
package inspect

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/bpf"
	"viaxdp/internal/lab/testbed"
	"viaxdp/xdpnic"
)

// tryPort is the UDP port of the program that is attached for a moment, which no frame of a VI has.
const tryPort = 4857

// Interface is what an interface can do.
type Interface struct {
	Name     string   `json:"name"`
	Index    int      `json:"index"`
	Driver   string   `json:"driver"`
	MAC      string   `json:"mac"`
	Up       bool     `json:"up"`
	MTU      int      `json:"mtu"`
	Queues   Queues   `json:"queues"`
	Features []string `json:"xdp_features"` // of the driver, as netdev netlink reports
	Program  string   `json:"program"`      // XDP program attached now; empty: none
	Modes    []Mode   `json:"modes"`        // best first
	Limits   []Limit  `json:"limits"`
	Notes    []string `json:"notes,omitempty"` // what could not be learnt and why
}

// Queues of an interface.
type Queues struct {
	RX       int `json:"rx"`
	TX       int `json:"tx"`
	Combined int `json:"combined"` // queues that do both, if the driver reports them
	RXRing   int `json:"rx_ring"`  // entries of a hardware ring; 0: not known
	TXRing   int `json:"tx_ring"`
}

// Mode is a way to run XDP on an interface.
type Mode struct {
	Mode     string `json:"mode"`
	Possible bool   `json:"possible"` // as far as the driver says
	Tried    bool   `json:"tried"`
	Reached  bool   `json:"reached"` // a socket was bound and a program attached
	Reason   string `json:"reason,omitempty"`
}

// Limit is a bound on what can be used.
type Limit struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	Meaning string `json:"meaning"`
}

// Look describes an interface of this network namespace. With try it attaches a program
// and opens a queue in each mode for a moment, which needs root and may reset the link
// of a real NIC.
func Look(name string, try bool) (Interface, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return Interface{}, fmt.Errorf("interface %s: %w: ip link shows those of this network namespace", name, err)
	}
	a := l.Attrs()
	info := Interface{
		Name: a.Name, Index: a.Index, MAC: a.HardwareAddr.String(), MTU: a.MTU,
		Up:     a.RawFlags&unix.IFF_UP != 0,
		Queues: Queues{RX: a.NumRxQueues, TX: a.NumTxQueues},
		Driver: l.Type(), Features: []string{},
	}
	info.askDriver()
	features, err := xdpnic.QueryFeatures(a.Index)
	if err != nil {
		info.note("XDP features", err)
	} else if features.XDP != 0 {
		info.Features = strings.Split(features.XDP.String(), ",")
	}
	if at, ok, err := bpf.AttachedTo(a.Index); err != nil {
		info.note("XDP program", err)
	} else if ok {
		info.Program = at.String()
	}
	info.modes(features, err == nil)
	if try {
		if err := testbed.Require(testbed.Sockets, testbed.Programs); err != nil {
			return info, err
		}
		info.try()
	}
	info.limits(features)
	return info, nil
}

// Gone reports whether an error of looking at an interface means that there is none of that name.
func Gone(err error) bool { return errors.As(err, new(netlink.LinkNotFoundError)) }

// Names lists the interfaces here that have some flags, without the loopback.
func Names(flags net.Flags) ([]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, ifi := range all {
		if ifi.Flags&net.FlagLoopback == 0 && ifi.Flags&flags == flags {
			names = append(names, ifi.Name)
		}
	}
	return names, nil
}

func (i *Interface) note(what string, err error) {
	i.Notes = append(i.Notes, fmt.Sprintf("%s: %v", what, err))
}

// askDriver reads by ethtool what netlink does not report.
func (i *Interface) askDriver() {
	e, err := ethtool.NewEthtool()
	if err != nil {
		i.note("ethtool", err)
		return
	}
	defer e.Close()
	if d, err := e.DriverName(i.Name); err == nil && d != "" {
		i.Driver = d
	}
	if c, err := e.GetChannels(i.Name); err == nil {
		i.Queues.Combined = int(c.CombinedCount)
		if n := int(c.RxCount + c.CombinedCount); n > 0 {
			i.Queues.RX = n
		}
		if n := int(c.TxCount + c.CombinedCount); n > 0 {
			i.Queues.TX = n
		}
	}
	if r, err := e.GetRing(i.Name); err == nil {
		i.Queues.RXRing, i.Queues.TXRing = int(r.RxPending), int(r.TxPending)
	}
}

// modes are those that the driver's features allow; generic mode works
// everywhere.
func (i *Interface) modes(f xdpnic.Features, known bool) {
	native := f.XDP.Has(xdpnic.FeatureBasic | xdpnic.FeatureRedirect)
	zeroCopy := native && f.XDP.Has(xdpnic.FeatureZeroCopy)
	why := func(ok bool, bit string) string {
		switch {
		case ok:
			return ""
		case !known:
			return "the kernel does not tell (Linux 6.3 does)"
		}
		return "the driver does not offer " + bit
	}
	i.Modes = []Mode{
		{Mode: xdpnic.ModeZeroCopy.String(), Possible: zeroCopy, Reason: why(zeroCopy, xdpnic.FeatureZeroCopy.String())},
		{Mode: xdpnic.ModeNative.String(), Possible: native, Reason: why(native, xdpnic.FeatureRedirect.String())},
		{Mode: xdpnic.ModeGeneric.String(), Possible: true},
	}
}

// try reaches for each mode on its own.
func (i *Interface) try() {
	for n := range i.Modes {
		m := &i.Modes[n]
		err := i.reach(m.Mode)
		m.Tried, m.Reached, m.Reason = true, err == nil, "" // whatever was expected of it
		if err != nil {
			m.Reason = strings.ReplaceAll(err.Error(), "\n", "; ")
		}
	}
}

// reach attaches a program and binds a socket, for a moment.
func (i *Interface) reach(name string) error {
	want, err := xdpnic.ParseMode(name)
	if err != nil {
		return err
	}
	_, _, err = xdpnic.Climb(want, true, func(mode xdpnic.Mode) (err error) {
		program, err := bpf.NewRedirect(bpf.RedirectConfig{
			Port: tryPort, MaxQueues: 1, Frags: !mode.Generic() && i.MTU > bpf.PageMTU,
		})
		if err != nil {
			return err
		}
		where := bpf.Native
		if mode.Generic() {
			where = bpf.Generic
		}
		var q *xdpnic.Queue
		if err = program.Attach(i.Index, where); err == nil {
			q, err = xdpnic.Open(xdpnic.Config{Ifindex: i.Index, RxChunks: 64, TxChunks: 64, Mode: mode, Require: true})
		}
		if err == nil {
			err = program.Register(0, q.FD())
		}
		err = errors.Join(err, program.Close()) // before the socket, so that no frame finds it closed
		if q != nil {
			err = errors.Join(err, q.Close())
		}
		return err
	})
	return err
}

func (i *Interface) limits(f xdpnic.Features) {
	add := func(name, value, meaning string) {
		i.Limits = append(i.Limits, Limit{name, value, meaning})
	}
	add("frame", fmt.Sprint(xdpnic.MaxChunk-xdpnic.PacketHeadroom),
		"bytes of a frame in one chunk; longer ones are chained")
	add("native_mtu", fmt.Sprint(bpf.PageMTU),
		"largest MTU for a native program without multi-buffer support on veth")
	add("segments", fmt.Sprint(xdpnic.MaxSegs), "ring entries of a frame in copy mode")
	if f.ZCMaxSegs > 0 {
		add("zero_copy_segments", fmt.Sprint(f.ZCMaxSegs), "ring entries of a frame in zero-copy mode")
	}
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim); err == nil {
		value := "unlimited"
		if lim.Cur != unix.RLIM_INFINITY {
			value = fmt.Sprint(lim.Cur)
		}
		add("memlock", value, "bytes that a process without CAP_IPC_LOCK may register")
	}
}
