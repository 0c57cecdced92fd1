package vipl_test

import (
	"fmt"

	"viaxdp/vipl"
)

// The model in words, for those who read about a difference.

func (v *refVI) String() string {
	return fmt.Sprintf("%s%d(%v, %v)", v.nic.name, v.nic.index(v), v.level, v.state)
}

func (n *refNic) index(v *refVI) int {
	for i, x := range n.vis {
		if x == v {
			return i
		}
	}
	return -1
}

func (n *refNic) tell(list []refError) (s []string) {
	for _, e := range list {
		s = append(s, fmt.Sprintf("%v: %v (%p)", n.find(e.vi), e.code, e.desc))
	}
	return s
}

func (q *refQueue) String() string {
	if q.isRecv {
		return q.vi.String() + ".recv"
	}
	return q.vi.String() + ".send"
}

func (r *refRegion) String() string {
	for i, x := range r.nic.data {
		if x == r {
			return fmt.Sprintf("%s.mem%d", r.nic.name, i)
		}
	}
	return r.nic.name + ".home"
}

func (s refSegment) String() string {
	if s.region == nil {
		return fmt.Sprintf("nothing+%d:%d", s.off, s.n)
	}
	return fmt.Sprintf("%v+%d:%d", s.region, s.off, s.n)
}

var opNames = map[vipl.Status]string{
	vipl.StatusOpSend: "send", vipl.StatusOpReceive: "receive", vipl.StatusOpRDMAWrite: "write",
	vipl.StatusOpRDMARead: "read", vipl.StatusOpRemoteRDMAWrite: "receive(remote write)",
}

func (d *refDesc) String() string {
	s := fmt.Sprintf("%s of %d", opNames[d.op], d.size())
	if len(d.segs) > 6 {
		s += fmt.Sprintf(" in %d segments", len(d.segs))
	} else {
		s += fmt.Sprintf(" %v", d.segs)
	}
	if d.op == vipl.StatusOpRDMAWrite || d.op == vipl.StatusOpRDMARead {
		s += fmt.Sprintf(" at %v", d.remote)
	}
	if d.hasImm {
		s += " with immediate data"
	}
	if d.fence {
		s += ", fenced"
	}
	if d.format != 0 || d.sum || len(d.flaws) > 0 {
		s += fmt.Sprintf(", wrong: format %d, sum %v, %v", d.format, d.sum, hex(d.flaws))
	}
	return s
}

func hex(list []vipl.Status) (s []string) {
	for _, x := range list {
		s = append(s, fmt.Sprintf("%#x", uint32(x)))
	}
	return s
}
