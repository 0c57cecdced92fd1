package vipl_test

import (
	"math/rand/v2"
	"slices"

	"viaxdp/vipl"
)

// The operations of random programs that move data.

// operations and how often they come up.
var operations = []struct {
	weight int
	do     func(*model)
}{
	{30, (*model).exchange},
	{8, (*model).postReceives},
	{20, (*model).takeSome},
	{12, (*model).connectSome},
	{4, (*model).disconnectSome},
	{3, (*model).settle},
	{2, (*model).arm},
	{1, (*model).setVI},
	{1, (*model).setRegion},
	{1, (*model).deregister},
	{1, (*model).destroyVI},
	{1, (*model).resizeCQ},
	{1, (*model).destroyCQ},
	{1, (*model).destroyPtag},
	{1, (*model).alter},
	{1, (*model).misPost},
	{2, (*model).look},
}

// operation does one.
func (m *model) operation() {
	sum := 0
	for _, o := range operations {
		sum += o.weight
	}
	x := m.randomSource("operation", sum)
	for _, o := range operations {
		if x -= o.weight; x < 0 {
			o.do(m)
			return
		}
	}
}

// allVIs are the VIs of both NICs for which ok holds.
func (m *model) allVIs(ok func(*refVI) bool) (list []*refVI) {
	for _, n := range m.nics {
		for _, v := range n.vis {
			if ok(v) {
				list = append(list, v)
			}
		}
	}
	return list
}

// anyVI picks a VI, one for which better holds if there is one, mostly.
func (m *model) anyVI(better func(*refVI) bool) *refVI {
	list := m.allVIs(better)
	if len(list) == 0 || m.randomSource("any VI", 10) == 9 {
		list = m.allVIs(func(*refVI) bool { return true })
	}
	return list[m.randomSource("VI", len(list))]
}

func isConnected(v *refVI) bool { return v.state == vipl.Connected }

// dataSize draws the length of a segment. Frames hold 1424 bytes.
func (m *model) dataSize() int {
	switch m.randomSource("size", 8) {
	case 0, 1, 2:
		return m.randomSource("bytes", 64)
	case 3:
		return [...]int{1423, 1424, 1425, 2848, 4272}[m.randomSource("bytes", 5)]
	case 4, 5, 6:
		return m.randomSource("bytes", 1500)
	}
	return m.randomSource("bytes", 12000)
}

// segments draws data segments of a VI's NIC with at most most bytes. Wild ones
// may name memory that the VI may not use.
func (m *model) segments(v *refVI, most int, wild bool) (segs []refSegment) {
	count := m.randomSource("segments", 4)
	size := m.dataSize
	if many := m.randomSource("many", 16); many == 15 || wild && many > 12 {
		count = m.randomSource("segments", vipl.MaxSegments+1)
		size = func() int { return m.randomSource("bytes", 64) }
		if wild && m.randomSource("too many", 2) == 1 {
			count = vipl.MaxSegments + 1
		}
	}
	regions := v.nic.usable(v.tag)
	for range count {
		s := refSegment{n: min(size(), most)}
		if len(regions) == 0 {
			s.n = 0
		}
		switch {
		case wild && m.randomSource("wrong segment", 8) == 7:
			s.off = m.randomSource("offset", 5000)
			if m.randomSource("region", 2) == 1 {
				s.region = v.nic.data[m.randomSource("region", dataRegions)]
				s.off = len(s.region.bytes) - m.randomSource("offset", 100)
			}
		case len(regions) == 0:
			s.region = v.nic.data[0]
		default:
			s.region = regions[m.randomSource("region", len(regions))]
			s.n = min(s.n, len(s.region.bytes))
			s.off = m.randomSource("offset", len(s.region.bytes)-s.n+1)
		}
		most -= s.n
		segs = append(segs, s)
	}
	return segs
}

// usable are the data regions that VIs with that tag may use.
func (n *refNIC) usable(tag *refTag) (list []*refRegion) {
	for _, r := range n.data {
		if tag == nil || tag == r.tag {
			list = append(list, r)
		}
	}
	return list
}

// drawSend makes a descriptor for the send queue, or nil.
func (m *model) drawSend(v *refVI, wild bool) *refDesc {
	d := m.newDesc(v, vipl.StatusOpSend)
	if d == nil {
		return nil
	}
	most := v.most
	if wild {
		most += 100
	}
	d.wild = wild
	d.segs = m.segments(v, most, wild)
	d.fence = m.randomSource("fence", 6) == 5
	if d.hasImm = m.randomSource("immediate", 3) == 2; d.hasImm {
		d.imm = uint32(m.randomSource("data", 1<<20))
	}
	switch m.randomSource("RDMA", 9) {
	case 3, 4, 5:
		m.drawRDMA(v, d, vipl.StatusOpRDMAWrite, wild)
	case 6, 7, 8:
		m.drawRDMA(v, d, vipl.StatusOpRDMARead, wild)
	}
	if wild {
		switch m.randomSource("wrong", 16) {
		case 14:
			d.sum = true
		case 15:
			d.format = formatReserved + m.randomSource("format", 4)
			if d.op != vipl.StatusOpSend {
				d.format = []int{formatReserved, formatBit, formatCount, formatRemote, formatEmpty}[m.randomSource("format", 5)]
			}
		}
	}
	return d
}

// drawRDMA makes an RDMA operation of d, if there is memory that it may touch,
// or else if it is wild.
func (m *model) drawRDMA(v *refVI, d *refDesc, op vipl.Status, wild bool) {
	reads, n := op == vipl.StatusOpRDMARead, d.size()
	if wild {
		d.op = op
		other := m.nics[m.randomSource("NIC", 2)]
		if v.peer != nil {
			other = v.peer.nic
		}
		if m.randomSource("wrong region", 8) != 7 {
			d.remote.region = other.data[m.randomSource("region", dataRegions)]
			d.remote.off = m.randomSource("offset", len(d.remote.region.bytes)+1) - m.randomSource("before", 2)
		}
		return
	}
	if v.state != vipl.Connected || reads && (!v.read || !v.peer.read) || !reads && !v.peer.write {
		return
	}
	open := slices.DeleteFunc(v.peer.nic.usable(v.peer.tag), func(r *refRegion) bool {
		return reads && !r.read || !reads && !r.write || len(r.bytes) < n
	})
	if len(open) == 0 {
		return
	}
	d.op = op
	if reads {
		d.hasImm = false
	}
	r := open[m.randomSource("region", len(open))]
	d.remote = refSegment{region: r, off: m.randomSource("offset", len(r.bytes)-n+1)}
	if v.peer.nic == v.nic && d.overlaps() {
		d.op = vipl.StatusOpSend // a write to itself has no defined order
	}
}

// overlaps reports whether source and destination have bytes in common.
func (d *refDesc) overlaps() bool {
	n := d.size()
	return slices.ContainsFunc(d.segs, func(s refSegment) bool {
		return s.region == d.remote.region && s.off < d.remote.off+n && d.remote.off < s.off+s.n
	})
}

// exchange posts a batch of sends on one VI without a look at completions. The
// other side has posted receives for them, but for some of the wild ones.
func (m *model) exchange() {
	v := m.anyVI(isConnected)
	wild := m.randomSource("wild", 6) == 5
	var batch []*refDesc
	for range 1 + m.randomSource("batch", 8) {
		if d := m.drawSend(v, wild && m.randomSource("this one", 3) == 2); d != nil {
			batch = append(batch, d)
		}
	}
	if v.state == vipl.Connected {
		batch = m.supply(v.peer, batch)
		if v.peer.nic == v.nic { // a message to where it comes from
			batch = slices.DeleteFunc(batch, func(d *refDesc) bool {
				l := accessesOf(v, d)
				bad := slices.ContainsFunc(l, func(a access) bool {
					return a.write && slices.ContainsFunc(l, func(b access) bool { return !b.write && a.region == b.region })
				})
				if bad {
					d.putBack()
				}
				return bad
			})
		}
	}
	if len(batch) > 0 && m.randomSource("fill", 2) == 0 {
		m.fill(v, batch[0])
	}
	upset := v.upsets(batch)
	if upset {
		m.settle()
	}
	for i, d := range batch {
		if m.faults && (v.upsets(batch[i:i+1]) || len(v.wrongs(d)) > 0) {
			m.settle() // what this breaks off may be lost
		}
		m.postSend(v, d)
	}
	if upset {
		m.settle()
	}
}

// supply posts receives for a batch, where too few are. What no receive can be
// had for, or what would not fit, leaves the batch.
func (m *model) supply(p *refVI, batch []*refDesc) (good []*refDesc) {
	waiting := p.recv.items[p.recv.done:]
	for _, d := range batch {
		if d.consumes() && !(d.wild && m.randomSource("no receive", 2) == 1) {
			var head *refDesc
			if len(waiting) > 0 {
				head, waiting = waiting[0], waiting[1:]
				if len(head.flaws) > 0 {
					waiting = nil
				}
			} else if head = m.drawRecv(p, d.size()); head != nil {
				m.postReceive(p, head)
			}
			if head == nil || !d.wild && d.op == vipl.StatusOpSend && head.room() < d.size() {
				d.putBack()
				if head != nil {
					waiting = append([]*refDesc{head}, waiting...)
				}
				continue
			}
		}
		good = append(good, d)
	}
	return good
}

// drawRecv makes a receive with room for n bytes, or nil.
func (m *model) drawRecv(v *refVI, n int) *refDesc {
	regions := v.nic.usable(v.tag)
	if n > 0 && len(regions) == 0 {
		return nil
	}
	d := m.newDesc(v, vipl.StatusOpReceive)
	if d == nil {
		return nil
	}
	for room := n + m.randomSource("room", 3); room > 0 && len(regions) > 0; {
		r := regions[m.randomSource("region", len(regions))]
		k := min(room, len(r.bytes))
		if m.randomSource("split", 3) == 2 {
			k = m.randomSource("bytes", k+1)
		}
		if len(d.segs) > 20 {
			k = min(room, len(r.bytes))
		}
		d.segs = append(d.segs, refSegment{r, m.randomSource("offset", len(r.bytes)-k+1), k})
		room -= k
	}
	if last := len(d.segs) - 1; last >= 0 && d.segs[last].n > 0 && m.randomSource("past the region", 6) == 5 {
		s := &d.segs[last] // what it must hold is there, and not all that it names
		s.off = len(s.region.bytes) - s.n
		s.n += 1 + m.randomSource("bytes", 12000)
		if m.randomSource("behind", 2) == 1 {
			d.segs = append(d.segs, refSegment{s.region, 0, 10})
		}
	}
	return d
}

// postReceive posts a receive, and waits first and afterwards if it breaks the
// connection.
func (m *model) postReceive(v *refVI, d *refDesc) {
	upset := v.state == vipl.Connected && v.reliable() && v.recv.head() == nil && len(v.wrongs(d)) > 0
	if upset {
		m.settle()
	}
	m.postRecv(v, d)
	if upset {
		m.settle()
	}
}

// postReceives posts receives of any size, now and then wrong ones.
func (m *model) postReceives() {
	v := m.anyVI(isConnected)
	wild := m.randomSource("wild", 6) == 5
	for range 1 + m.randomSource("batch", 6) {
		d := m.newDesc(v, vipl.StatusOpReceive)
		if d == nil {
			return
		}
		d.segs = m.segments(v, 1<<20, wild)
		if wild && m.randomSource("wrong", 4) == 3 {
			d.format = []int{formatReserved, formatBit, formatCount, formatOperation}[m.randomSource("format", 4)]
		}
		m.postReceive(v, d)
	}
}

// upsets reports whether a batch causes anything but plain completions.
func (v *refVI) upsets(batch []*refDesc) bool {
	if v.state != vipl.Connected {
		return false
	}
	waiting := v.peer.recv.items[v.peer.recv.done:]
	for _, d := range batch {
		if len(v.wrongs(d)) > 0 {
			if v.reliable() {
				return true
			}
			continue
		}
		var head *refDesc
		if len(waiting) > 0 {
			head = waiting[0]
		}
		if v.decisionOf(d, head) != arrives {
			return true
		}
		if d.consumes() {
			waiting = waiting[1:]
		}
		for len(waiting) > 0 && len(waiting[0].flaws) > 0 {
			if v.reliable() {
				return true
			}
			waiting = waiting[1:]
		}
	}
	return false
}

// fill has the program write new bytes where d sends from, or at the other side
// where it reads from.
func (m *model) fill(v *refVI, d *refDesc) {
	segs := d.segs
	if d.op == vipl.StatusOpRDMARead {
		segs = []refSegment{{d.remote.region, d.remote.off, d.size()}}
	}
	for _, s := range segs {
		if s.n == 0 || !s.usable(nil) {
			continue
		}
		var l accesses
		l.add(s, access{write: true})
		if m.clash(l, false) {
			m.settle()
		}
		x := rand.New(rand.NewPCG(uint64(m.randomSource("pattern", 1<<16)), 0))
		b := s.bytes()
		for i := 0; i < len(b); i += 8 {
			for j, w := i, x.Uint64(); j < min(i+8, len(b)); j++ {
				b[j] = byte(w)
				w >>= 8
			}
		}
		copy(s.region.real.Bytes()[s.off:], b)
	}
}
