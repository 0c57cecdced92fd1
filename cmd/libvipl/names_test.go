//go:build cgo

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/lab/memorynic"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// The NIC's address replaces loopback addresses of a name, and has one index.
func TestLoopbackNames(t *testing.T) {
	cable := xdpnictest.NewWire()
	t.Cleanup(cable.Close)
	n := &nic{NIC: memorynic.Open(t, cable, kagenttest.NewFabric(kagenttest.Faults{}).Agent("a"), memorynic.Config{}).NIC}
	own := n.own()
	n.length = own.BitLen() / 8
	hosts := filepath.Join(t.TempDir(), "hosts")
	nstest.Must(t, os.WriteFile(hosts, fmt.Appendf(nil, "127.0.1.1 h\n::1 h\n%v h\n10.0.0.77 h\n", own), 0o666))
	nstest.Must(t, n.NSInit(vipl.NSConfig{Names: os.DevNull, Hosts: hosts, NoDNS: true}))
	for i, want := range []string{own.String(), "10.0.0.77"} {
		a, err := n.hostByName("h", i)
		nstest.Must(t, err)
		nstest.Equal(t, fmt.Sprint("index ", i), a.String(), want)
	}
	_, err := n.hostByName("h", 2)
	nstest.WantErr(t, "index 2", err, vipl.ErrNameService)
}
