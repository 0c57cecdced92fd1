package memreg

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

// tableModel is a reference for Table that uses maps and loops.
type tableModel struct {
	*Table
	buf     []byte
	limits  Limits
	tags    []*modelTag
	regions []*modelRegion
	bytes   uint64
}

type modelTag struct {
	*Ptag
	vis  int
	dead bool
}

type modelRegion struct {
	*Region
	from, to int // in buf
	tag      *modelTag
	attr     Attributes
	users    int
	dead     bool
}

func (m *tableModel) live() (n int) {
	for _, r := range m.regions {
		if !r.dead {
			n++
		}
	}
	return n
}

// holders is the number of regions and VIs that a tag has.
func (m *tableModel) holders(tag *modelTag) int {
	n := tag.vis
	for _, r := range m.regions {
		if r.tag == tag && !r.dead {
			n++
		}
	}
	return n
}

func (m *tableModel) createPtag(t *rapid.T) {
	tag, err := m.CreatePtag()
	nstest.Must(t, err)
	m.tags = append(m.tags, &modelTag{Ptag: tag})
}

func (m *tableModel) destroyPtag(t *rapid.T) {
	tag := rapid.SampledFrom(m.tags).Draw(t, "tag")
	users := m.holders(tag)
	var want error
	switch {
	case tag.dead:
		want = ErrPtag
	case users > 0:
		want = ErrBusy
	}
	if err := m.DestroyPtag(tag.Ptag); !errors.Is(err, want) {
		t.Fatalf("DestroyPtag with %d users: %v, want %v", users, err, want)
	}
	tag.dead = tag.dead || want == nil
}

func (m *tableModel) holdPtag(t *rapid.T) {
	tag := rapid.SampledFrom(m.tags).Draw(t, "tag")
	if tag.vis > 0 && rapid.Bool().Draw(t, "release") {
		tag.Release()
		tag.vis--
		return
	}
	if got := tag.Acquire(); got == tag.dead {
		t.Fatalf("Acquire = %v, dead = %v", got, tag.dead)
	}
	if !tag.dead {
		tag.vis++
	}
}

func (m *tableModel) register(t *rapid.T) {
	from := rapid.IntRange(0, len(m.buf)).Draw(t, "from")
	to := rapid.IntRange(from, len(m.buf)).Draw(t, "to")
	tag := rapid.SampledFrom(m.tags).Draw(t, "tag")
	size := uint64(to - from)
	var want error
	switch {
	case size == 0:
		want = ErrLength
	case size > m.limits.MaxBlockBytes, m.live() == m.limits.MaxRegions, m.bytes+size > m.limits.MaxBytes:
		want = ErrLimit
	case tag.dead:
		want = ErrPtag
	}
	register := m.Register
	if rapid.Bool().Draw(t, "foreign") {
		register = func(b []byte, attr Attributes) (*Region, error) {
			return m.RegisterForeign(address(m.buf)+uint64(from), size, attr)
		}
	}
	attr := drawAttributes(t, tag)
	r, err := register(m.buf[from:to], attr)
	if !errors.Is(err, want) {
		t.Fatalf("register [%d, %d): %v, want %v", from, to, err, want)
	}
	if err == nil {
		m.regions = append(m.regions, &modelRegion{Region: r, from: from, to: to, tag: tag, attr: attr})
		m.bytes += size
	}
}

func drawAttributes(t *rapid.T, tag *modelTag) Attributes {
	return Attributes{
		Ptag:            tag.Ptag,
		EnableRDMAWrite: rapid.Bool().Draw(t, "write"),
		EnableRDMARead:  rapid.Bool().Draw(t, "read"),
		CopySends:       rapid.Bool().Draw(t, "copy"),
	}
}

func (m *tableModel) setAttributes(t *rapid.T) {
	if len(m.regions) == 0 {
		return
	}
	r := rapid.SampledFrom(m.regions).Draw(t, "region")
	tag := rapid.SampledFrom(m.tags).Draw(t, "tag")
	attr := drawAttributes(t, tag)
	var want error
	switch {
	case r.dead:
		want = ErrHandle
	case tag.dead:
		want = ErrPtag
	}
	if err := m.SetAttributes(r.Region, attr); !errors.Is(err, want) {
		t.Fatalf("SetAttributes: %v, want %v", err, want)
	}
	if want == nil {
		r.tag, r.attr = tag, attr
	}
}

func (m *tableModel) deregister(t *rapid.T) {
	if len(m.regions) == 0 {
		return
	}
	r := rapid.SampledFrom(m.regions).Draw(t, "region")
	shift := rapid.SampledFrom([]int{0, 0, 0, 1, -1}).Draw(t, "shift")
	var want error
	switch {
	case r.dead:
		want = ErrHandle
	case shift != 0:
		want = ErrStart
	case r.users > 0:
		want = ErrBusy
	}
	if err := m.Deregister(r.Handle(), r.Addr()+uint64(shift)); !errors.Is(err, want) {
		t.Fatalf("Deregister with %d users: %v, want %v", r.users, err, want)
	}
	if want == nil {
		r.dead = true
		m.bytes -= uint64(r.to - r.from)
	}
}

func (m *tableModel) coalesce(t *rapid.T) {
	if len(m.regions) == 0 {
		return
	}
	r := rapid.SampledFrom(m.regions).Draw(t, "region")
	if r.users > 0 && rapid.Bool().Draw(t, "release") {
		r.Release()
		r.users--
		return
	}
	if got := r.Acquire(); got == r.dead {
		t.Fatalf("Acquire = %v, dead = %v", got, r.dead)
	}
	if !r.dead {
		r.users++
	}
}

func (m *tableModel) resolve(t *rapid.T) {
	if len(m.regions) == 0 {
		return
	}
	r := rapid.SampledFrom(m.regions).Draw(t, "region")
	tag := rapid.SampledFrom(append([]*modelTag{nil}, m.tags...)).Draw(t, "tag")
	at := rapid.OneOf(rapid.IntRange(-2, len(m.buf)+2), rapid.IntRange(r.from-2, r.to+2)).Draw(t, "at")
	n := rapid.OneOf(rapid.IntRange(0, len(m.buf)), rapid.IntRange(max(0, r.to-at-2), max(0, r.to-at+2))).Draw(t, "n")
	remote := rapid.Bool().Draw(t, "remote")
	needWrite, needRead := rapid.Bool().Draw(t, "needWrite"), rapid.Bool().Draw(t, "needRead")
	var p *Ptag
	var want error
	if tag != nil {
		p = tag.Ptag
	}
	switch {
	case r.dead:
		want = ErrHandle
	case tag != nil && tag != r.tag:
		want = ErrPtag
	case remote && (needWrite && !r.attr.EnableRDMAWrite || needRead && !r.attr.EnableRDMARead):
		want = ErrRights
	case at < r.from || at+n > r.to:
		want = ErrRange
	}
	resolve := m.Resolve
	if remote {
		var rights Rights
		if needWrite {
			rights |= RemoteWrite
		}
		if needRead {
			rights |= RemoteRead
		}
		resolve = func(h Handle, addr uint64, n uint32, p *Ptag) ([]byte, *Region, error) {
			return m.ResolveRemote(h, addr, n, p, rights)
		}
	}
	seg, got, err := resolve(r.Handle(), address(m.buf)+uint64(at), uint32(n), p)
	if err != want {
		t.Fatalf("(%d, %d) in [%d, %d), remote %v, resolves to %v, want %v", at, n, r.from, r.to, remote, err, want)
	}
	if err == nil && (got != r.Region || len(seg) != n || n > 0 && &seg[0] != &m.buf[at]) {
		t.Fatalf("(%d, %d) resolves to %d other bytes", at, n, len(seg))
	}
	if err == nil && remote {
		r.users++ // until hold draws a release
	}
	if remote {
		return
	}
	part := n
	if want == ErrRange && at >= r.from {
		part, want = max(0, r.to-at), nil
	}
	if want == nil && (n == 0 || part == 0) {
		want = ErrRange
	}
	seg, got, err = m.ResolvePart(r.Handle(), address(m.buf)+uint64(at), uint32(n), p)
	if err != want || err == nil && (got != r.Region || len(seg) != part || &seg[0] != &m.buf[at]) {
		t.Fatalf("of (%d, %d) in [%d, %d), %d other bytes, %v, want %v", at, n, r.from, r.to, len(seg), err, want)
	}
}

func (m *tableModel) check(t *rapid.T) {
	s := m.Stats()
	if s.Regions != m.live() || s.Bytes != m.bytes || s.Registered != uint64(len(m.regions)) {
		t.Fatalf("%+v, want %d regions, %d bytes, %d in all", s, m.live(), m.bytes, len(m.regions))
	}
	for _, r := range m.regions {
		if found := m.Lookup(r.Handle()); (found == r.Region) == r.dead {
			t.Fatalf("Lookup(%#x) = %p, dead = %v", r.Handle(), found, r.dead)
		}
		if r.Users() != r.users {
			t.Fatalf("%d users, want %d", r.Users(), r.users)
		}
		if r.Attributes() != r.attr || r.Ptag() != r.attr.Ptag {
			t.Fatalf("attributes %+v, tag %p, want %+v", r.Attributes(), r.Ptag(), r.attr)
		}
	}
	for _, tag := range m.tags {
		if got, want := tag.Users(), m.holders(tag); got != want {
			t.Fatalf("%d users of a tag, want %d", got, want)
		}
	}
}

func TestTableModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &tableModel{buf: make([]byte, 600), limits: Limits{
			MaxRegions:    rapid.SampledFrom([]int{2, 40, 200}).Draw(t, "regions"),
			MaxBlockBytes: rapid.Uint64Range(1, 700).Draw(t, "block"),
			MaxBytes:      rapid.Uint64Range(1, 20_000).Draw(t, "bytes"),
			MaxPtags:      MaxPtags,
		}}
		var err error
		m.Table, err = NewTable(m.limits)
		nstest.Must(t, err)
		m.createPtag(t)
		t.Repeat(map[string]func(*rapid.T){
			"": m.check, "createPtag": m.createPtag, "destroyPtag": m.destroyPtag, "holdPtag": m.holdPtag,
			"register": m.register, "register2": m.register, "deregister": m.deregister, "hold": m.coalesce, "resolve": m.resolve,
			"setAttributes": m.setAttributes,
		})
	})
}
