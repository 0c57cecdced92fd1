//go:build cgo

package main

import (
	"net"
	"path"
	"strconv"
	"strings"
)

// deviceFor finds the interface for the device name of an old program. In order:
// $VIA_DEVICE; the interface of that name, without directory; the interface named after
// its last underscore; if the name ends in a number N, candidate number N; the first
// candidate.
func deviceFor(name string) string {
	base := path.Base(name)
	if to, ok := configured(variable("VIA_DEVICE"), name, base); ok {
		return to
	}
	all, err := net.Interfaces()
	if err != nil {
		return base
	}
	return choose(base, all)
}

// configured reads $VIA_DEVICE: one interface for all names, or name=interface
// by commas, where a name may be * for all others.
func configured(setting, name, base string) (to string, ok bool) {
	for _, item := range strings.Split(setting, ",") {
		of, dev, named := strings.Cut(item, "=")
		of, dev = strings.TrimSpace(of), strings.TrimSpace(dev)
		switch {
		case named && (of == "" || dev == ""): // half an item: it means no device
		case !named && of != "":
			return of, true
		case named && (of == name || of == base):
			return dev, true
		case named && of == "*":
			to, ok = dev, true
		}
	}
	return to, ok
}

// choose finds the interface for a name without directory among all.
func choose(base string, all []net.Interface) string {
	for _, want := range []string{base, base[strings.LastIndexByte(base, '_')+1:]} {
		for i := range all {
			if all[i].Name == want {
				return want
			}
		}
	}
	var up []string
	for i := range all {
		if all[i].Flags&net.FlagUp != 0 && all[i].Flags&net.FlagLoopback == 0 && len(all[i].HardwareAddr) > 0 {
			up = append(up, all[i].Name)
		}
	}
	digits := base[len(strings.TrimRight(base, "0123456789")):]
	if n, err := strconv.Atoi(digits); err == nil && n < len(up) {
		return up[n]
	}
	if len(up) > 0 {
		return up[0]
	}
	return base
}
