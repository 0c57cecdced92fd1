package peers

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// listening says whether a socket of this network namespace awaits messages or
// connections at a port: of this thread, as the main one's may be another.
func (s socket) listening() (bool, error) { return s.listeningOf("thread-self") }

// listeningOf is listening for the namespace of a process.
func (s socket) listeningOf(pid string) (bool, error) {
	for _, version := range []string{"", "6"} {
		table, err := os.ReadFile("/proc/" + pid + "/net/" + string(s.Network) + version)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return false, err
		}
		if s.in(string(table)) {
			return true, nil
		}
	}
	return false, nil
}

// States of a socket in the tables, include/net/tcp_states.h: TCP_LISTEN, and
// TCP_CLOSE, which is that of a UDP socket without a peer.
const (
	stateListen = "0A"
	stateClose  = "07"
)

// in looks for the socket in a table of /proc/net:
//
//	sl  local_address rem_address   st ...
//	 0: 00000000:3419 00000000:0000 0A ...
//
// Addresses and ports are hexadecimal, proc(5).
func (s socket) in(table string) bool {
	state := stateListen
	if s.Network == udp {
		state = stateClose
	}
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 4 || f[3] != state {
			continue
		}
		_, hex, _ := strings.Cut(f[1], ":")
		if port, err := strconv.ParseUint(hex, 16, 16); err == nil && int(port) == s.Port {
			return true
		}
	}
	return false
}
