package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/cprogram"
	"viaxdp/internal/lab/nstest"
)

// A setuid program ignores the settings of the user who runs it. The library runs no program of that user as the owner.
func TestSetuid(t *testing.T) {
	t.Parallel()
	lib := library(t)
	dir := cprogram.SharedDir(t)
	var fs unix.Statfs_t
	nstest.Must(t, unix.Statfs(dir, &fs))
	if fs.Flags&unix.ST_NOSUID != 0 {
		nstest.Lacks(t, "%s: mounted nosuid", dir)
	}
	proof := filepath.Join(dir, "proof") // in a directory that is root's
	callers := exec.Command("gcc", "-x", "c", "-o", filepath.Join(dir, "via-xdp"), "-")
	callers.Stdin = strings.NewReader("#include <fcntl.h>\nint main(void) { return creat(\"" + proof + "\", 0600); }\n")
	nstest.Must(t, callers.Run())
	program := filepath.Join(dir, "wrong")
	nstest.Must(t, exec.Command("cp", compilers[0].compile(t, lib, "wrong"), program).Run())
	nstest.Must(t, os.Chmod(program, 0o755|os.ModeSetuid))

	b := newBed(t, 1500, "VIA_AGENT=auto", "PATH="+dir, "VIA_STATE_DIR="+filepath.Join(dir, "state"), "GODEBUG=gctrace=1")
	b.As = &syscall.Credential{Uid: 65534, Gid: 65534}
	out := one(t, b, program, "server", "via0")
	if _, err := os.Stat(proof); err == nil {
		t.Error("it ran a program of its caller as root")
	}
	nstest.ErrorIf(t, !strings.Contains(out, "wrong:") || strings.Contains(out, "gc 1 "), "it said %q", out)
}

// A program that opens a NIC before its interface has an address can connect when it gets one.
func TestLateAddress(t *testing.T) {
	t.Parallel()
	lib := library(t)
	open := filepath.Join(t.TempDir(), "open") // made by the program when its NIC is open
	b := newBed(t, 1500, "OPEN="+open)
	link := b.A.Link(t)
	addresses, err := b.A.Netlink().AddrList(link, netlink.FAMILY_ALL)
	nstest.Must(t, err)
	for _, a := range addresses {
		nstest.Must(t, b.A.Netlink().AddrDel(link, &a))
	}
	program := compiler{"gcc", "-O2 -Wall -Wextra -Werror"}.compile(t, lib, "process")
	p := b.With("ADDRESS="+b.A.IPv4.String()).Start(t, b.A, program, "unaddressed", "via0")
	await.Until(t, "the NIC is open", func() bool { _, err := os.Stat(open); return err == nil })
	address := &net.IPNet{IP: b.A.IPv4.AsSlice(), Mask: net.CIDRMask(24, 32)}
	nstest.Must(t, b.A.Netlink().AddrAdd(link, &netlink.Addr{IPNet: address}))
	p.Finish(t)
}
