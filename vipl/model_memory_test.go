package vipl_test

import (
	"slices"

	"viaxdp/vipl"
)

// Memory and descriptors of the model: making them, and writing a descriptor of
// the model into one of the library.

const (
	slotsPerHome = 48
	slotBytes    = 4096 // 32 bytes and 254 segments: one more than is allowed
	dataRegions  = 4
)

// dataSizes are the bytes of data regions, by their number.
var dataSizes = [dataRegions]int{48 << 10, 20 << 10, 32 << 10, 5000}

// register makes the data region with number i of the NIC, in the arena or, the
// odd ones, anywhere.
func (m *model) register(n *refNIC, i int) *refRegion {
	r := &refRegion{nic: n, tag: n.tags[m.randomSource("tag", modelTags)]}
	m.drawRights(r)
	var err error
	if i%2 == 0 {
		r.real, err = n.host.AllocMem(dataSizes[i], r.attributes())
	} else {
		r.real, err = n.host.RegisterMem(make([]byte, dataSizes[i]), r.attributes())
	}
	m.noError("register memory", err)
	clear(r.real.Bytes())
	r.bytes = make([]byte, dataSizes[i])
	return r
}

// drawRights draws what peers may do with the memory.
func (m *model) drawRights(r *refRegion) {
	r.write, r.read = m.randomSource("no RDMA write", 4) != 3, m.randomSource("no RDMA read", 6) != 5
}

func (m *model) registerHome(n *refNIC, tag *refTag) *refRegion {
	r := &refRegion{nic: n, tag: tag}
	var err error
	r.real, err = n.host.AllocMem(slotsPerHome*slotBytes, r.attributes())
	m.noError("register memory", err)
	for i := range slotsPerHome {
		d, err := r.real.Descriptor(i*slotBytes, vipl.MaxSegments+1)
		m.noError("lay a descriptor", err)
		r.slots = append(r.slots, d)
	}
	return r
}

func (r *refRegion) attributes() vipl.MemAttributes {
	return vipl.MemAttributes{Ptag: r.tag.real, EnableRDMAWrite: r.write, EnableRDMARead: r.read}
}

// uses counts the descriptors on q that are posted and use the region for
// certain, and those that are wrong and may.
func (q *refQueue) uses(r *refRegion) (sure, perhaps int) {
	for _, d := range q.items[q.done:] {
		used := d.home == r
		if used {
			sure++
		}
		for _, s := range d.segs {
			used = used || s.region == r && s.n > 0
		}
		switch {
		case used && len(d.flaws) > 0:
			perhaps++
		case used:
			sure++
		}
	}
	return sure, perhaps
}

func (v *refVI) attributes() vipl.VIAttributes {
	a := vipl.VIAttributes{Level: v.level, MaxTransferSize: v.most, EnableRDMAWrite: v.write, EnableRDMARead: v.read}
	if v.tag != nil {
		a.Ptag = v.tag.real
	}
	return a
}

// newDesc takes a descriptor that may be posted on v; nil: all are in use, or
// have another tag.
func (m *model) newDesc(v *refVI, op vipl.Status) *refDesc {
	var free []*refRegion
	for _, h := range v.nic.homes {
		if len(h.slots) > 0 && (v.tag == nil || h.tag == v.tag) {
			free = append(free, h)
		}
	}
	if len(free) == 0 {
		return nil
	}
	h := free[m.randomSource("home", len(free))]
	d := &refDesc{op: op, home: h, real: h.slots[0]}
	h.slots = h.slots[1:]
	return d
}

// putBack gives up a descriptor that was not posted.
func (d *refDesc) putBack() { d.home.slots = append(d.home.slots, d.real) }

// What can be wrong with the format of a descriptor.
const (
	formatReserved = 1 + iota
	formatBit
	formatCount
	formatOperation // a send only
	formatRemote    // RDMA only
	formatEmpty     // RDMA only
)

// encode writes d into the library's descriptor. What the program may leave
// there is left there.
func (m *model) encode(d *refDesc) {
	x := d.real
	segs := make([]vipl.DataSegment, 0, len(d.segs))
	for _, s := range d.segs {
		segs = append(segs, d.home.nic.segment(s))
	}
	x.Control, x.Reserved, x.ImmediateData = 0, 0, 0x55
	remote := vipl.AddressSegment{}
	if s := d.remote; s.region != nil {
		remote = s.region.real.Remote(s.off)
	} else {
		remote.Handle = 0x5a5a5a5a
	}
	switch d.op {
	case vipl.StatusOpRDMAWrite:
		x.SetRDMAWrite(remote, segs...)
	case vipl.StatusOpRDMARead:
		x.SetRDMARead(remote, segs...)
	default:
		x.SetSegments(segs...)
	}
	if d.hasImm || d.op == vipl.StatusOpReceive && m.randomSource("immediate bit", 2) == 1 {
		x.SetImmediate(d.imm) // in a receive it means nothing
	}
	if d.fence {
		x.Control |= vipl.ControlQFence
	}
	if d.sum {
		x.Length++
	}
	switch d.format {
	case formatReserved:
		x.Reserved = 1
	case formatBit:
		x.Control |= 0x10
	case formatCount:
		x.SegCount = 0xffff
	case formatOperation:
		x.Control |= 3
	case formatRemote:
		x.AddressSegment().Reserved = 1
	case formatEmpty:
		x.SegCount = 0
	}
}

// segment names the memory for the library.
func (n *refNIC) segment(s refSegment) vipl.DataSegment {
	if s.region == nil {
		h := vipl.MemHandle(0)
		if len(n.gone) > 0 {
			h = n.gone[len(n.gone)-1]
		}
		return vipl.DataSegment{Data: n.data[0].real.Addr() + uint64(s.off), Handle: h, Length: uint32(s.n)}
	}
	return s.region.real.Segment(s.off, s.n)
}

// setRegion changes tag and rights of memory.
func (m *model) setRegion() {
	m.settle()
	n := m.nics[m.randomSource("NIC", 2)]
	regions := append(slices.Clone(n.data), n.homes...)
	r := regions[m.randomSource("region", len(regions))]
	m.returns("memory without a tag", r.real.SetAttributes(vipl.MemAttributes{}), vipl.ErrInvalidPtag)
	r.tag = n.tags[m.randomSource("tag", modelTags)]
	if !slices.Contains(n.homes, r) {
		m.drawRights(r)
	}
	m.note("%v gets attributes %+v", r, r.attributes())
	m.noError("Region.SetAttributes", r.real.SetAttributes(r.attributes()))
	a, err := r.real.Query()
	m.noError("Region.Query", err)
	if a != r.attributes() {
		m.differ("%v: attributes %+v, want %+v", r, a, r.attributes())
	}
}

// deregister ends a region, which descriptors that are posted forbid, and makes
// another one.
func (m *model) deregister() {
	m.settle()
	n := m.nics[m.randomSource("NIC", 2)]
	regions := append(slices.Clone(n.data), n.homes...)
	i := m.randomSource("region", len(regions))
	r := regions[i]
	sure, perhaps := 0, 0
	for _, v := range n.vis {
		s, p := v.recv.uses(r)
		sure, perhaps = sure+s, perhaps+p
	}
	switch {
	case sure > 0:
		m.note("deregister %v, which is in use", r)
		m.returns("deregister memory in use", r.real.Deregister(), vipl.ErrResource)
	case perhaps == 0 && i < len(n.data):
		m.note("deregister %v", r)
		h := r.real.Handle()
		m.noError("Deregister", r.real.Deregister())
		m.returns("deregister twice", r.real.Deregister(), vipl.ErrInvalidParameter)
		_, err := r.real.Query()
		m.returns("query deregistered memory", err, vipl.ErrInvalidParameter)
		n.gone = append(n.gone, h)
		n.data[i] = m.register(n, i)
	}
}

// destroyPtag destroys a tag that nothing carries, and makes another one.
func (m *model) destroyPtag() {
	n := m.nics[m.randomSource("NIC", 2)]
	tag := n.tags[m.randomSource("tag", modelTags)]
	has := func(r *refRegion) bool { return r.tag == tag }
	used := slices.ContainsFunc(n.data, has) || slices.ContainsFunc(n.homes, has) ||
		slices.ContainsFunc(n.vis, func(v *refVI) bool { return v.tag == tag })
	m.note("destroy a tag, in use: %v", used)
	if used {
		m.returns("destroy a tag in use", tag.real.Destroy(), vipl.ErrResource)
		return
	}
	m.noError("Ptag.Destroy", tag.real.Destroy())
	m.returns("destroy a tag twice", tag.real.Destroy(), vipl.ErrInvalidParameter)
	*tag = *m.newTag(n)
}
