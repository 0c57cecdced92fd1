package agentd_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/agent/agentd"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
	"viaxdp/vipl/vipltest"
	"viaxdp/xdpnic"
)

// hostsPayload is in frames of the host that are not for a program.
const hostsPayload = "between the hosts, and none of a program's business"

// TestNICsZeroCopyReads shows the effect of a zero-copy queue on NICs of real drivers: its program's memory
// gets what the host receives. Users other than root get none unless the settings name them; the queue that
// they get instead has nothing of it. go run ./internal/lab/vm has such NICs.
func TestNICsZeroCopyReads(t *testing.T) {
	host, peer, mode := nstest.NICs(t)
	for _, c := range []struct {
		name  string
		grant agentd.Grant
		mode  string
		finds bool
	}{
		{"granted", agentd.Grant{Users: []uint32{60001}}, mode, mode == xdpnic.ModeZeroCopy.String()},
		{"default", agentd.Grant{}, xdpnic.ModeNative.String(), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := startAgent(t, host, agentConfig{Ifaces: map[string]agentd.Interface{host.Name: {ZeroCopy: c.grant}}})
			cmd := program(t, 60001, "TestProgramThatReads", socketsEnv+"="+g.socket, nicEnv+"="+host.Name)
			in, err := cmd.StdinPipe()
			nstest.Must(t, err)
			out, err := cmd.StdoutPipe()
			nstest.Must(t, err)
			nstest.Must(t, cmd.Start())
			r := bufio.NewReader(out)
			said := func(prefix string) string {
				t.Helper()
				for {
					line, err := r.ReadString('\n')
					if rest, ok := strings.CutPrefix(strings.TrimSpace(line), prefix); ok {
						return strings.TrimSpace(rest)
					}
					nstest.FatalIf(t, err != nil, "the program does not say %q: %v", prefix, err)
				}
			}
			nstest.Equal(t, "mode", said("mode:"), c.mode)
			nstest.Check(t, peer.Do(func() error { return pings(host.IPv4, 32) }))
			in.Close()
			if got := said("found:"); (got != "0") != c.finds {
				t.Errorf("%s frames of the host's are in the program's memory, want any: %v", got, c.finds)
			}
			nstest.Check(t, nstest.Err(io.Copy(io.Discard, r)))
			nstest.Check(t, cmd.Wait())
		})
	}
}

// TestNICsShared has eight programs of a user share the queues of a NIC of a real driver, and talk with a server on another
// one: programs of root, and of a user without privilege. One dies, and what the others send arrives; another one takes its
// place.
func TestNICsShared(t *testing.T) {
	host, peer, _ := nstest.NICs(t)
	for _, user := range []struct {
		name string
		uid  uint32
	}{{"root", 0}, {"nobody", 65534}} {
		t.Run(user.name, func(t *testing.T) {
			const programs = 8
			a, b := startAgent(t, host, shared(host)), startAgent(t, peer, shared(peer))
			server := startSharer(t, b, host.IPv4, user.uid, 0, oneCPU, nicEnv+"="+peer.Name, fmt.Sprint(arenaEnv, "=", 8+2*programs))
			launch := func(id int) *sharer {
				return launchSharer(t, a, peer.IPv4, user.uid, id, oneCPU, nicEnv+"="+host.Name)
			}
			connect := func(all ...*sharer) {
				t.Helper()
				for _, s := range all {
					s.opened(t)
					s.ask(t, "remote 0")
					s.want(t, "done remote")
				}
			}
			all := []*sharer{launch(0)}
			connect(all...) // the others join it
			for id := 1; id < programs; id++ {
				all = append(all, launch(id))
			}
			connect(all[1:]...)
			talk(t, 10, all...)()
			leases := a.status(t).NICs[0].Leases
			queues := make(map[int]bool)
			for _, l := range leases {
				queues[l.Queue] = true
				nstest.ErrorIf(t, l.Processes < 1 || l.Mode != xdpnic.ModeNative.String() || l.Holder.UID != user.uid, "%+v", l)
			}
			nstest.ErrorIf(t, len(leases) != programs || len(queues) == programs, "%d processes on queues %v", len(leases), queues)
			talked := talk(t, 10, all[1:]...)
			all[0].kill()
			talked()
			all[0] = launch(0)
			connect(all[0])
			talk(t, 10, all...)()
			endAll(t, append(all, server)...)
		})
	}
}

// shared is the configuration of an agent whose programs share the queues of a NIC, root's too: processes do not share a
// zero-copy queue, which root's programs would get.
func shared(ns *nstest.NS) agentConfig {
	return agentConfig{Ifaces: map[string]agentd.Interface{ns.Name: {Mode: xdpnic.ModeNative}}}
}

// oneCPU has a program use one processor. In an emulated machine, threads of many programs that look for work take more time than
// their messages.
const oneCPU = "GOMAXPROCS=1"

// TestNICsAllToAll has up to sixteen programs on each of two NICs of a real driver share its queues, and talk with all of the
// other. Every rule about data holds for a program beside fourteen others on each queue. With -short there are four programs, and
// the rules are left out.
func TestNICsAllToAll(t *testing.T) {
	host, peer, _ := nstest.NICs(t)
	agents := []*agent{startAgent(t, host, shared(host)), startAgent(t, peer, shared(peer))}
	all := allToAll(t, agents[0], agents[1], 0, 4, oneCPU)
	if testing.Short() {
		endAll(t, all...)
		return
	}
	others, last := all[:len(all)-4], all[len(all)-4:]
	endAll(t, last...) // some rules have two handles on each NIC
	vipltest.Run(t, vipltest.Config{Groups: dataGroups, Burst: 100_000, Open: func(t testing.TB) (a, b *vipl.NIC) {
		var nics []*vipl.NIC
		for _, g := range agents {
			await.Until(t, "there is room for one more program", func() bool { return len(g.status(t).NICs[0].Leases) < agentd.DefaultProcesses })
			n, err := g.open(vipl.WithArena(48<<20), vipl.WithSilence(waitLimit))
			nstest.Must(t, err)
			t.Cleanup(func() { nstest.Check(t, n.Close()) })
			nstest.FatalIf(t, n.Info().NIC.Sharing.Partition == 0, "the NIC does not share a queue")
			nics = append(nics, n)
		}
		return nics[0], nics[1]
	}})
	endAll(t, others...)
}

// TestProgramThatReads is a program of TestNICsZeroCopyReads. It only opens all queues, and searches its memory
// when its standard input ends.
func TestProgramThatReads(t *testing.T) {
	socket, ok := os.LookupEnv(socketsEnv)
	if !ok {
		t.Skip("a program of TestNICsZeroCopyReads")
	}
	var all []*agentclient.Agent
	for queue, queues := 0, 1; queue < queues; queue++ {
		a, err := agentclient.Open(socket, true, kagent.Config{Interface: os.Getenv(nicEnv), Queue: queue, ArenaBytes: 16 << 20})
		nstest.Must(t, err)
		defer a.Close()
		all, queues = append(all, a), a.Info().Queues
	}
	fmt.Println("mode:", all[0].Info().Mode)
	nstest.Must(t, nstest.Err(io.Copy(io.Discard, os.Stdin)))
	found := 0
	for _, a := range all {
		found += bytes.Count(a.Arena().Bytes(), []byte(hostsPayload))
	}
	fmt.Println("found:", found)
}

// pings sends echo requests until n were answered.
func pings(to netip.Addr, n int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	tv := unix.NsecToTimeval(int64(100 * time.Millisecond))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return err
	}
	const echo, echoReply = 8, 0
	answer := make([]byte, 2048)
	for end := time.Now().Add(waitLimit); n > 0; {
		m := append([]byte{echo, 0, 0, 0, 0x56, 0x49, 0, byte(n)}, hostsPayload...)
		binary.BigEndian.PutUint16(m[2:], internetChecksum(m))
		if err := unix.Sendto(fd, m, 0, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
			return err
		}
		for {
			got, err := unix.Read(fd, answer)
			if err != nil { // none has come
				break
			}
			if got > 28 && answer[20] == echoReply && bytes.HasSuffix(answer[:got], []byte(hostsPayload)) {
				n--
				break
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d pings of %v were not answered", n, to)
		}
	}
	return nil
}

func internetChecksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) > 0 {
		sum += uint32(b[0]) << 8
	}
	for sum>>16 > 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
