package torture

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/link"
)

// Unreachables is how often the kernel of the party's namespace has told a
// sender by ICMP that a destination is unreachable (Icmp: OutDestUnreachs).
func (p *Party) Unreachables() (uint64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/net/snmp", p.Pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var names []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || fields[0] != "Icmp:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, name := range names {
			if name == "OutDestUnreachs" && i < len(fields) {
				return strconv.ParseUint(fields[i], 10, 64)
			}
		}
	}
	return 0, errors.New("/proc/net/snmp does not count OutDestUnreachs")
}

// Detach takes the party's XDP program off its interface, as a stranger with
// privilege may.
func (p *Party) Detach() error {
	id, err := p.linkID()
	if err != nil {
		return err
	}
	l, err := link.NewFromID(id)
	if err != nil {
		return err
	}
	return errors.Join(l.Detach(), l.Close())
}

// linkID finds the party's link to its interface among its files. Interface
// numbers would not do: namespaces have the same ones.
func (p *Party) linkID() (link.ID, error) {
	infos, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", p.Pid))
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
	return 0, errors.New("the party has no XDP program attached")
}
