package bench

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"viaxdp/hugepages"
	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/testbed"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// DefaultSilence is how long a peer may send nothing. The control connection reveals a dead
// process; a peer on a busy machine is not dead.
const DefaultSilence = 20 * time.Second

// openNIC opens the interface that the parameters name.
func openNIC(p Params, more ...vipl.Option) (_ *vipl.NIC, err error) {
	defer fail.Catch(&err)
	ifi := fail.Must(p.netInterface())
	mode := fail.Must(xdpnic.ParseMode(p.Mode))
	steering := vipl.SteerByRules
	if p.Steer != "" {
		steering = fail.Must(vipl.ParseSteering(p.Steer))
	}
	if p.VI.Agent {
		if p.Agent == "" {
			fail.With("there is no agent here to open the NIC")
		}
		more = append(more, vipl.WithAgent(p.Agent))
	}
	policy := hugepages.Avoid
	if p.Hugepages {
		policy = hugepages.Auto
	}
	return vipl.OpenNIC(ifi.Name, append(more,
		vipl.WithSilence(cmp.Or(p.Silence, max(DefaultSilence, p.WaitLimit))),
		vipl.WithMode(mode, mode != xdpnic.ModeAuto),
		vipl.WithQueue(p.Queue),
		vipl.WithSteering(steering),
		vipl.WithHugepages(policy))...)
}

// factsOf describes this process, and its NIC if there is one.
func factsOf(nic *vipl.NIC) Facts {
	cpus := fail.Must(testbed.AllowedCPUs())
	if nic == nil {
		return Facts{CPUs: cpus}
	}
	info := nic.Info()
	frame := info.MTU + ethernetHeader
	if !info.NIC.MultiBuffer {
		frame = min(frame, info.NIC.ChunkSize-xdpnic.PacketHeadroom-info.NIC.Headroom)
	}
	return Facts{
		Interface: info.Interface, Mode: info.Mode.String(), Features: featureNames(info.NIC.Features),
		MTU: info.MTU, FrameBytes: frame, Memory: info.Arena.Kind.String(), CPUs: cpus,
	}
}

// netInterface is the interface by name, or the one that has the address.
func (p Params) netInterface() (*net.Interface, error) {
	if p.Interface == "" {
		return interfaceWith(p.Local)
	}
	// Not net.InterfaceByName: it answers for the namespace of another thread
	// as well as for ours, and netlink says why there is none.
	l, err := netlink.LinkByName(p.Interface)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", p.Interface, err)
	}
	a := l.Attrs()
	return &net.Interface{Index: a.Index, MTU: a.MTU, Name: a.Name, HardwareAddr: a.HardwareAddr}, nil
}

// interfaceWith finds the interface of this namespace that has an address.
func interfaceWith(addr netip.Addr) (*net.Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for i := range all {
		addrs, err := all[i].Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(addr.AsSlice()) {
				return &all[i], nil
			}
		}
	}
	return nil, fmt.Errorf("no interface here has the address %v", addr)
}

// featureNames lists what a driver says it can do; nil: it says nothing.
func featureNames(f xdpnic.Features) []string {
	if f.XDP == 0 {
		return nil
	}
	return strings.Split(f.XDP.String(), ",")
}
