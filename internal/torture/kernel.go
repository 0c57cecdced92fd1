package torture

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/link"
)

// Unwanted is what the kernel of a side's namespace has had to do with frames that
// nobody there wants.
type Unwanted struct {
	Frames  uint64 // UDP datagrams that met no socket
	Answers uint64 // of ICMP and ICMPv6, by which senders were told that a destination is unreachable
}

// Unwanted of a side, since the bed was made.
func (b *Bed) Unwanted(side int) (u Unwanted, err error) {
	err = b.Site.Do(side, func() error {
		v4, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		v6, err := os.ReadFile("/proc/thread-self/net/snmp6")
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
			return err
		}
		u, err = unwanted(string(v4), string(v6))
		return err
	})
	return u, err
}

// unwanted finds it in /proc/net/snmp, which has lines of names and of numbers, and in snmp6,
// which has a line for each.
func unwanted(v4, v6 string) (u Unwanted, err error) {
	found := 0
	add := func(name, number string) {
		sum := &u.Frames
		switch name {
		case "Icmp:OutDestUnreachs", "Icmp6OutDestUnreachs":
			sum = &u.Answers
		case "Udp:NoPorts", "Udp6NoPorts":
		default:
			return
		}
		n, bad := strconv.ParseUint(number, 10, 64)
		*sum += n
		err = errors.Join(err, bad)
		found++
	}
	var names []string
	for line := range strings.Lines(v4) {
		f := strings.Fields(line)
		if len(names) != len(f) || names[0] != f[0] {
			names = f
			continue
		}
		for i, name := range names {
			add(f[0]+name, f[i])
		}
	}
	if found != 2 {
		return u, errors.New("/proc/net/snmp does not count what nobody wants")
	}
	for line := range strings.Lines(v6) {
		if f := strings.Fields(line); len(f) == 2 {
			add(f[0], f[1])
		}
	}
	return u, err
}

// Detach takes the party's XDP program off its interface, as a stranger with
// privilege may.
func (p *Party) Detach() error { return detach(p.Pid) }

// detach is Detach for the process that has attached the program.
func detach(pid int) error {
	id, err := linkID(pid)
	if err != nil {
		return err
	}
	l, err := link.NewFromID(id)
	if err != nil {
		return err
	}
	return errors.Join(l.Detach(), l.Close())
}

// linkID finds a process's link to its interface among its files. Interface
// numbers would not do: namespaces have the same ones.
func linkID(pid int) (link.ID, error) {
	infos, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		return 0, err
	}
	for _, name := range infos {
		text, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(text), "link_type:\txdp") {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "link_id:"); ok {
				id, err := strconv.ParseUint(strings.TrimSpace(rest), 10, 32)
				return link.ID(id), err
			}
		}
	}
	return 0, errors.New("the process has no XDP program attached")
}
