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
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
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
			cmd := program(t, 60001, "TestProgramThatReads", "", socketsEnv+"="+g.socket, nicEnv+"="+host.Name)
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
			if got := said("mode:"); got != c.mode {
				t.Errorf("%s mode, want %s", got, c.mode)
			}
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

// TestNICsShared has three programs of a user share the queues of a NIC of a real driver, and talk with a server on another
// one. One dies, and what the others send arrives; another one takes its place.
func TestNICsShared(t *testing.T) {
	host, peer, _ := nstest.NICs(t)
	const user = 60001
	cfg := func(ns *nstest.NS) agentConfig {
		return agentConfig{Ifaces: map[string]agentd.Interface{ns.Name: {Processes: 3}}}
	}
	a, b := startAgent(t, host, cfg(host)), startAgent(t, peer, cfg(peer))
	server := b.nic(vipl.WithSilence(waitLimit), vipl.WithMode(xdpnic.ModeNative, true))
	answer(t, server, "server")
	start := func(id int) *sharer {
		s := startSharer(t, a, peer.IPv4, user, id, nicEnv+"="+host.Name)
		s.ask(t, "server 0")
		s.want(t, "done server")
		return s
	}
	talk := func(all ...*sharer) {
		t.Helper()
		for _, s := range all {
			s.ask(t, "talk 10")
		}
		for _, s := range all {
			s.want(t, "done talk")
		}
	}
	all := []*sharer{start(0), start(1), start(2)}
	talk(all...)
	leases := a.status(t).NICs[0].Leases
	queues := make(map[int]bool)
	for _, l := range leases {
		queues[l.Queue] = true
		nstest.ErrorIf(t, l.Processes < 1 || l.Mode != xdpnic.ModeNative.String(), "%+v", l)
	}
	nstest.ErrorIf(t, len(leases) != 3 || len(queues) == 3, "%d processes on queues %v", len(leases), queues)
	for _, s := range all[1:] {
		s.ask(t, "talk 10")
	}
	nstest.Must(t, all[0].cmd.Process.Kill())
	_ = all[0].cmd.Wait()
	for _, s := range all[1:] {
		s.want(t, "done talk")
	}
	all[0] = start(0)
	talk(all...)
	for _, s := range all {
		s.ask(t, "end 0")
		s.want(t, "done end")
	}
}

// TestNICsAllToAll has four programs on each of two NICs of a real driver share its queues, and talk with all of the other.
func TestNICsAllToAll(t *testing.T) {
	host, peer, _ := nstest.NICs(t)
	start := func(ns *nstest.NS) *agent {
		return startAgent(t, ns, agentConfig{Ifaces: map[string]agentd.Interface{ns.Name: {Processes: 4}}})
	}
	allToAll(t, start(host), start(peer), 4)
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
