//go:build cgo

package main

// #include "abi.h"
import "C"

import (
	"fmt"
	"net/netip"
	"unsafe"

	"viaxdp/vipl"
)

//export viago_ns_init
func viago_ns_init(h C.uintptr_t) C.int {
	return control("VipNSInit", h, func(n *nic) error {
		c, err := nameSources()
		if err != nil {
			return err
		}
		return n.NSInit(c)
	})
}

// nameSources is where names are looked up, by environment. docs/libvipl.md lists the variables.
func nameSources() (vipl.NSConfig, error) {
	c := vipl.NSConfig{Names: variable("VIA_NAMES"), Hosts: variable("VIA_HOSTS")}
	switch text := variable("VIA_DNS"); text {
	case "", "1":
	case "0":
		c.NoDNS = true
	default:
		return c, &vipl.OpError{Op: "NSInit", Return: vipl.ErrNameService, Err: fmt.Errorf("$VIA_DNS is %q: want 0 or 1", text)}
	}
	return c, nil
}

//export viago_ns_shutdown
func viago_ns_shutdown(h C.uintptr_t) C.int {
	return control("VipNSShutdown", h, func(n *nic) error { return n.NSShutdown() })
}

//export viago_ns_by_name
func viago_ns_by_name(h C.uintptr_t, name *C.char, out *C.VIP_NET_ADDRESS, index C.VIP_ULONG) C.int {
	return control("VipNSGetHostByName", h, func(n *nic) error {
		if index > 1<<31 {
			return vipl.ErrNameService
		}
		a, err := n.hostByName(C.GoString(name), int(index))
		if err == nil {
			n.putAddress(out, vipl.NetAddress{Host: a})
		}
		return err
	})
}

// hostByName is address number index of a name, of those that are as long as the
// NIC's: the program has room for no other, nor for a discriminator.
func (n *nic) hostByName(name string, index int) (netip.Addr, error) {
	for i, had := 0, false; ; i++ { // had: this host's own address
		a, err := n.NSGetHostByName(name, i)
		if err != nil {
			return netip.Addr{}, err
		}
		// Many a /etc/hosts has this host's name at 127.0.1.1, where no peer is.
		own := n.own()
		if a.Host.IsLoopback() && own.IsValid() {
			a.Host = own
		}
		if !n.hasRoom(a.Host) || had && a.Host == own {
			continue
		}
		had = had || a.Host == own
		if index--; index < 0 {
			return a.Host, nil
		}
	}
}

//export viago_ns_by_address
func viago_ns_by_address(h C.uintptr_t, address *C.VIP_NET_ADDRESS, out *C.char, length *C.VIP_ULONG) C.int {
	return control("VipNSGetHostByAddr", h, func(n *nic) error {
		a, err := n.getAddress(address)
		if err != nil {
			return err
		}
		name, err := n.NSGetHostByAddr(a)
		if err != nil {
			return err
		}
		return putText(out, length, name)
	})
}

// putText gives the program a text if it has room, and its length including the zero at
// its end.
func putText(out *C.char, length *C.VIP_ULONG, text string) error {
	room := *length
	*length = C.VIP_ULONG(len(text) + 1)
	if room < *length {
		return vipl.ErrResource
	}
	b := unsafe.Slice((*byte)(unsafe.Pointer(out)), len(text)+1)
	b[copy(b, text)] = 0
	return nil
}
