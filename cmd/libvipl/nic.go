//go:build cgo

package main

// #include "abi.h"
import "C"

import (
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"unsafe"

	"viaxdp/cmd/libvipl/bigstack"
	"viaxdp/vipl"
)

// nic is a NIC handle.
type nic struct {
	*vipl.NIC
	handle  C.uintptr_t
	words   vipl.PortWatch
	address *C.uint8_t                 // its own, for LocalNicAddress
	length  int                        // of it, in bytes, and of all hosts
	maxDisc int                        // of a requester's discriminator, in bytes
	handles map[uintptr]struct{}       // that go with it; under table.mu
	removed bool                       // its handles have been removed; under table.mu
	log     func(vipl.ErrorDescriptor) // with VIA_VERBOSE, beside the program's handler; else nil

	mu        sync.Mutex
	regions   map[vipl.MemHandle]*vipl.Region
	listeners map[string]*vipl.Listener // by listenAddress
}

// procs is the least number of Go's processors. A calling thread of the program keeps a
// processor, so with one or two of them others would wait.
const procs = 8

//export viago_bind
func viago_bind() { bigstack.Reserve() }

//export viago_started
func viago_started() {
	if runtime.GOMAXPROCS(0) < procs {
		runtime.GOMAXPROCS(procs)
	}
}

//export viago_open
func viago_open(name *C.char, out *C.uintptr_t) C.int {
	bigstack.Reserve()
	n, err := open(C.GoString(name))
	if err == nil {
		*out = n.handle
	}
	return result("VipOpenNic", err)
}

func open(name string) (*nic, error) {
	device := deviceFor(name)
	opts, has, err := options()
	if err != nil {
		return nil, err
	}
	v, err := vipl.OpenNIC(device, opts...)
	if err != nil {
		return nil, err
	}
	own := v.Query().Address
	if has.host == longHost && !own.Is4() {
		v.Close()
		return nil, fmt.Errorf("%s has no IPv4 address, and with VIA_ADDRESS_LEN=%d hosts have no other: give it one (ip addr add), or unset the variable",
			device, longHost)
	}
	if !own.IsValid() {
		own = netip.IPv4Unspecified() // most will get such an address
	}
	n := &nic{
		NIC: v, length: has.host, maxDisc: has.discriminator,
		handles: map[uintptr]struct{}{}, regions: map[vipl.MemHandle]*vipl.Region{},
		listeners: map[string]*vipl.Listener{},
	}
	if verbose() {
		for _, note := range v.Info().Notes {
			fmt.Fprintf(stderr{}, "VipOpenNic: %s: %s\n", device, note)
		}
		n.log = vipl.LogErrors(slog.New(slog.NewTextHandler(stderr{}, &slog.HandlerOptions{Level: slog.LevelDebug})))
		n.ErrorCallback(n.log)
	}
	n.words, _ = v.Watch() // a NIC over AF_XDP has them
	n.handle, err = add(nicKind, n, nil, func(s *C.struct_via_slot, pin *runtime.Pinner) {
		n.watchPort(s, pin)
		n.address = &s.address[0]
		n.length = copy(unsafe.Slice((*byte)(n.address), len(s.address)), n.hostBytes(own))
	})
	if err != nil {
		v.Close()
	}
	return n, err
}

//export viago_close
func viago_close(h C.uintptr_t) C.int {
	return control("VipCloseNic", h, func(n *nic) error {
		defer removeAll(n, h).Wait()
		return n.Close()
	})
}

//export viago_farewell
func viago_farewell() C.int {
	bigstack.Reserve()
	var wait sync.WaitGroup
	table.mu.Lock()
	for i := range table.fresh {
		if e := table.entries[i].Load(); e != nil {
			switch x := e.value.(type) {
			case *nic:
				wait.Go(x.Farewell)
			case *conn:
				wait.Go(func() { _ = x.Reject() }) // the requester may have given up
			}
		}
	}
	table.mu.Unlock()
	wait.Wait()
	vipl.Unpublish()
	return C.VIP_SUCCESS
}

//export viago_poll
func viago_poll(h C.uintptr_t, tend C.int) C.int {
	bigstack.Reserve()
	n := find[nic](h)
	if n == nil {
		return C.VIP_INVALID_PARAMETER
	}
	if tend != 0 {
		n.Tend()
	}
	n.Poll()
	return C.VIP_SUCCESS
}

// Version of the library, as ProviderVersion returns it: major << 16 | minor.
const version = 1 << 16

// maxPtags leaves handles of the process for other things.
const maxPtags = slots / 2

//export viago_query_nic
func viago_query_nic(h C.uintptr_t, out *C.VIP_NIC_ATTRIBUTES) C.int {
	return control("VipQueryNic", h, func(n *nic) error {
		q := n.Query()
		setPointer(unsafe.Pointer(&out.LocalNicAddress), 0) // before out is assigned as a whole
		*out = C.VIP_NIC_ATTRIBUTES{
			ProviderVersion: version,
			NicAddressLen:   C.VIP_UINT16(n.length),
			ThreadSafe:      boolean(q.ThreadSafe), MaxDiscriminatorLen: C.VIP_UINT16(n.maxDisc),
			MaxRegisterBytes: C.VIP_ULONG(q.MaxRegisterBytes), MaxRegisterRegions: C.VIP_ULONG(q.MaxRegisterRegions),
			MaxRegisterBlockBytes: C.VIP_ULONG(q.MaxRegisterBlockBytes), MaxVI: C.VIP_ULONG(q.MaxVI),
			MaxDescriptorsPerQueue: C.VIP_ULONG(q.MaxDescriptorsPerQueue),
			MaxSegmentsPerDesc:     C.VIP_ULONG(q.MaxSegmentsPerDesc),
			MaxCQ:                  C.VIP_ULONG(q.MaxCQ), MaxCQEntries: C.VIP_ULONG(q.MaxCQEntries),
			MaxTransferSize: C.VIP_ULONG(q.MaxTransferSize), NativeMTU: C.VIP_ULONG(q.NativeMTU),
			MaxPtags:                C.VIP_ULONG(min(q.MaxPtags, maxPtags)),
			ReliabilityLevelSupport: C.VIP_RELIABILITY_LEVEL(q.ReliabilityLevels),
			RDMAReadSupport:         C.VIP_RELIABILITY_LEVEL(q.RDMAReadLevels),
		}
		for i := 0; i < len(q.Name) && i < len(out.Name)-1; i++ {
			out.Name[i] = C.VIP_CHAR(q.Name[i])
		}
		out.LocalNicAddress = (*C.VIP_UINT8)(unsafe.Pointer(n.address))
		return nil
	})
}

//export viago_error_callback
func viago_error_callback(h, context, handler C.uintptr_t) C.int {
	return control("VipErrorCallback", h, func(n *nic) error {
		if handler == 0 {
			n.ErrorCallback(n.log)
			return nil
		}
		n.ErrorCallback(func(e vipl.ErrorDescriptor) {
			if n.log != nil {
				n.log(e)
			}
			var v C.uintptr_t
			if e.VI != nil {
				v = handleOf(e.VI)
			}
			C.via_call_error(handler, context, n.handle, v, known(e.CQ), address(e.Descriptor),
				C.uint64_t(e.Op), C.int(e.Resource), C.int(e.Code))
		})
		return nil
	})
}

// maxFound is more hosts, and more hops, than any list has.
const maxFound = 1 << 20

//export viago_discover
func viago_discover(h C.uintptr_t, list *C.VIP_AUTODISCOVERY_LIST) C.int {
	return control("VipQuerySystemManagementInfo", h, func(n *nic) error { return n.discover(list) })
}

func (n *nic) discover(list *C.VIP_AUTODISCOVERY_LIST) error {
	room := 0
	if list.ADAddrArray != nil {
		if list.NumAdAddrs > maxFound {
			return vipl.ErrInvalidParameter
		}
		room = int(list.NumAdAddrs)
	}
	found, err := n.Discover()
	if err != nil {
		return err
	}
	addrs := unsafe.Slice(list.ADAddrArray, room)
	most, count := int(min(list.NumberOfHops, maxFound)), 0
	list.NumberOfHops = 0
	for _, x := range found {
		if x.Hops > most || !n.hasRoom(x.Address) {
			continue
		}
		if count < room && addrs[count] != nil {
			n.putAddress(addrs[count], vipl.NetAddress{Host: x.Address})
			list.NumberOfHops = max(list.NumberOfHops, C.VIP_ULONG(x.Hops))
		}
		count++
	}
	list.NumAdAddrs = C.VIP_ULONG(count)
	if count > room {
		return vipl.ErrResource
	}
	return nil
}

// own is the NIC's address, or none.
func (n *nic) own() netip.Addr { return n.Query().Address }

// hasRoom reports whether a program that relies on NicAddressLen has room for a host.
func (n *nic) hasRoom(a netip.Addr) bool { return len(n.hostBytes(a)) == n.length }

func boolean(b bool) C.VIP_BOOLEAN {
	if b {
		return C.VIP_TRUE
	}
	return C.VIP_FALSE
}
