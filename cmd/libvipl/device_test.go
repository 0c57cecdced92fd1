//go:build cgo

package main

import (
	"net"
	"testing"
)

func TestChoose(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	all := []net.Interface{
		{Name: "lo", Flags: net.FlagUp | net.FlagLoopback},
		{Name: "down", HardwareAddr: mac},
		{Name: "eth0", Flags: net.FlagUp, HardwareAddr: mac},
		{Name: "ens1_f0", Flags: net.FlagUp, HardwareAddr: mac},
		{Name: "nic1", Flags: net.FlagUp, HardwareAddr: mac},
	}
	for name, want := range map[string]string{
		"via_eth0": "eth0", "via_lo": "lo", "eth0": "eth0", "ens1_f0": "ens1_f0", "via_ens9": "eth0",
		"clanvi0": "eth0", "clanvi1": "ens1_f0", "VINIC2": "nic1", "nic1": "nic1", "nic0": "eth0", "nic7": "eth0",
		"whatever": "eth0", "": "eth0", "down": "down",
	} {
		if got := choose(name, all); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
	if got := choose("clanvi0", all[:2]); got != "clanvi0" {
		t.Errorf("without an interface %q: the error should name what was asked for", got)
	}
}

func TestConfigured(t *testing.T) {
	for _, c := range []struct{ setting, name, want string }{
		{"", "/dev/clanvi0", ""},
		{"eth1", "/dev/clanvi0", "eth1"},
		{"clanvi0=a,clanvi1=b,*=c", "/dev/clanvi0", "a"},
		{"clanvi0=a,clanvi1=b,*=c", "/dev/clanvi1", "b"},
		{"*=c, /dev/clanvi0=a", "/dev/clanvi0", "a"},
		{"*=c,clanvi1=b", "/dev/clanvi0", "c"},
		{"clanvi1=b", "/dev/clanvi0", ""},
		{" clanvi0 = a , * = c", "/dev/clanvi0", "a"},
		{"clanvi0=,*=c", "/dev/clanvi0", "c"},
	} {
		base := c.name[len("/dev/"):]
		if got, ok := configured(c.setting, c.name, base); got != c.want || ok != (c.want != "") {
			t.Errorf("%q: %s is %q, %v; want %q", c.setting, c.name, got, ok, c.want)
		}
	}
}
