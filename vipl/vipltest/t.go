package vipltest

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"viaxdp/vipl"
)

// T is the test of a rule: a pair of NICs on one link, and what rules need
// again and again. What its methods make is gone when the rule ends, and the
// NICs are as they were; that this works is tested with it.
type T struct {
	testing.TB
	A, B *vipl.NIC

	t      *testing.T
	config Config
	errors *errorLog

	vis     []*vipl.VI
	cqs     []*vipl.CQ
	regions []*vipl.Region
	tags    []*vipl.Ptag
	told    bool // what the NICs have counted
}

func newT(t *testing.T, c Config, a, b *vipl.NIC) *T {
	x := &T{TB: t, A: a, B: b, t: t, config: c, errors: &errorLog{}}
	x.watch(a, b)
	t.Cleanup(x.tidy)
	return x
}

// watch gathers the asynchronous errors of NICs for asyncError.
func (t *T) watch(nics ...*vipl.NIC) {
	for _, n := range nics {
		n.ErrorCallback(t.errors.add)
	}
}

// openPair opens NICs of the rule's own, which it may close.
func (t *T) openPair() (a, b *vipl.NIC) {
	t.Helper()
	a, b = t.config.Open(t.t)
	t.watch(a, b)
	t.Cleanup(t.tidy) // before they are closed
	return a, b
}

// openSilent opens NICs of the rule's own; after silence they hear nothing of
// each other.
func (t *T) openSilent() (a, b *vipl.NIC, silence func()) {
	t.Helper()
	if t.config.OpenSilent == nil {
		t.Skip("no way to silence a peer")
	}
	a, b, silence = t.config.OpenSilent(t.t)
	t.A, t.B = a, b // watch reports on them
	t.watch(a, b)
	t.Cleanup(t.tidy)
	return a, b, silence
}

// sub runs a part of the rule, with what it makes gone at its end.
func (t *T) sub(name string, f func(t *T)) {
	t.t.Run(name, func(tt *testing.T) {
		x := &T{TB: tt, A: t.A, B: t.B, t: tt, config: t.config, errors: t.errors}
		tt.Cleanup(func() {
			x.tidy()
			t.told = t.told || x.told
		})
		f(x)
	})
}

var (
	allLevels      = []vipl.ReliabilityLevel{vipl.UnreliableDelivery, vipl.ReliableDelivery, vipl.ReliableReception}
	reliableLevels = allLevels[1:]
)

// levels are those at which every message arrives.
func (t *T) levels() []vipl.ReliabilityLevel {
	if t.config.Lossy {
		return reliableLevels
	}
	return allLevels
}

// eachOf runs f for some levels.
func (t *T) eachOf(levels []vipl.ReliabilityLevel, f func(t *T, level vipl.ReliabilityLevel)) {
	for _, level := range levels {
		t.sub(level.String(), func(t *T) { f(t, level) })
	}
}

// must ends the rule by an error.
func (t *T) must(err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantErr checks that an operation returned the code; nil means success.
func (t *T) wantErr(what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// errOf and errOf2 are the error of a call that returns one or two results more.
func errOf[A any](_ A, err error) error          { return err }
func errOf2[A, B any](_ A, _ B, err error) error { return err }

// errorIf marks the rule as failed if something is wrong.
func (t *T) errorIf(wrong bool, format string, args ...any) {
	t.Helper()
	if wrong {
		t.Errorf(format, args...)
	}
}

// equal checks that a value is what it should be.
func equal[V comparable](t *T, what string, got, want V) {
	t.Helper()
	t.errorIf(got != want, "%s: %+v, want %+v", what, got, want)
}

// same checks that a queue gave this descriptor.
func (t *T) same(got, want *vipl.Descriptor) {
	t.Helper()
	t.errorIf(got != want, "another descriptor: %p, want %p", got, want)
}

// within waits for what a channel gives.
func within[V any](t *T, what string, c <-chan V) V {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(ackDelay):
		t.Fatalf("never came: %s", what)
		panic("unreachable")
	}
}

// vi makes a VI without completion queues.
func (t *T) vi(n *vipl.NIC, a vipl.VIAttributes) *vipl.VI {
	t.Helper()
	return t.viOn(n, a, nil, nil)
}

// viOn makes a VI whose queues are bound to completion queues.
func (t *T) viOn(n *vipl.NIC, a vipl.VIAttributes, send, recv *vipl.CQ) *vipl.VI {
	t.Helper()
	v, err := n.CreateVI(a, send, recv)
	t.must(err)
	t.vis = append(t.vis, v)
	return v
}

func (t *T) cq(n *vipl.NIC, entries int) *vipl.CQ {
	t.Helper()
	c, err := n.CreateCQ(entries)
	t.must(err)
	t.cqs = append(t.cqs, c)
	return c
}

func (t *T) tag(n *vipl.NIC) *vipl.Ptag {
	t.Helper()
	p, err := n.CreatePtag()
	t.must(err)
	t.tags = append(t.tags, p)
	return p
}

// alloc makes memory in the NIC's arena. Without a tag in a it gets one of its own.
func (t *T) alloc(n *vipl.NIC, size int, a vipl.MemAttributes) *vipl.Region {
	t.Helper()
	if a.Ptag == nil {
		a.Ptag = t.tag(n)
	}
	r, err := n.AllocMem(size, a)
	t.must(err)
	clear(r.Bytes())
	t.regions = append(t.regions, r)
	return r
}

// register makes memory of the program known, with a tag as alloc.
func (t *T) register(n *vipl.NIC, b []byte, a vipl.MemAttributes) *vipl.Region {
	t.Helper()
	if a.Ptag == nil {
		a.Ptag = t.tag(n)
	}
	r, err := n.RegisterMem(b, a)
	t.must(err)
	t.regions = append(t.regions, r)
	return r
}

// pair makes a connected pair of VIs of a level, open for every RDMA that the
// level has.
func (t *T) pair(level vipl.ReliabilityLevel) (va, vb *vipl.VI) {
	t.Helper()
	a := vipl.VIAttributes{Level: level, EnableRDMAWrite: true, EnableRDMARead: level != vipl.UnreliableDelivery}
	return t.pairOf(a, a)
}

// pairOf makes a connected pair of VIs with certain attributes.
func (t *T) pairOf(a, b vipl.VIAttributes) (va, vb *vipl.VI) {
	t.Helper()
	va, vb = t.vi(t.A, a), t.vi(t.B, b)
	t.join(va, vb)
	return va, vb
}

// ends makes a connected pair of VIs as pair does, and a block of buffers at each end.
func (t *T) ends(level vipl.ReliabilityLevel, countA, countB, size int) (va, vb *vipl.VI, a, b *block) {
	t.Helper()
	va, vb = t.pair(level)
	return va, vb, t.block(t.A, countA, size), t.block(t.B, countB, size)
}

// at is the attributes of a VI of a level.
func at(level vipl.ReliabilityLevel) vipl.VIAttributes { return vipl.VIAttributes{Level: level} }

// idle makes a VI of a level on each NIC.
func (t *T) idle(level vipl.ReliabilityLevel) (va, vb *vipl.VI) {
	t.Helper()
	return t.vi(t.A, at(level)), t.vi(t.B, at(level))
}

var discriminators atomic.Uint64

// discriminatorPrefix is this process' own: discriminators are those of the host, and
// others may test beside it.
var discriminatorPrefix = rand.Text()[:8]

// disc is a discriminator that nothing else uses.
func disc() []byte { return fmt.Appendf(nil, "%s-%d", discriminatorPrefix, discriminators.Add(1)) }

// named is a discriminator of any host, and on one on a NIC's.
func named(d []byte) vipl.NetAddress { return vipl.NetAddress{Discriminator: d} }

func on(n *vipl.NIC, d []byte) vipl.NetAddress {
	return vipl.NetAddress{Host: n.Query().Address, Discriminator: d}
}

// serves has a VI accept one request, and gives what becomes of that.
func serves(v *vipl.VI, local vipl.NetAddress) <-chan error {
	return starts(func() error {
		c, err := v.NIC().ConnectWait(local, ackDelay)
		if err != nil {
			return err
		}
		return c.Accept(v)
	})
}

// join connects client va with server vb, of any NICs.
func (t *T) join(va, vb *vipl.VI) {
	t.Helper()
	d := disc()
	done := serves(vb, named(d))
	remote := on(vb.NIC(), d)
	t.must(t.request(va, remote))
	t.must(<-done)
}

// request connects va with a program that may not wait yet.
func (t *T) request(va *vipl.VI, remote vipl.NetAddress) error {
	for end := time.Now().Add(ackDelay); ; time.Sleep(time.Millisecond) {
		_, err := va.ConnectRequest(vipl.NetAddress{}, remote, ackDelay)
		if !errors.Is(err, vipl.ErrNoMatch) || time.Now().After(end) {
			return err
		}
	}
}

// tidy undoes what the rule has made. What it undid itself is fine.
func (t *T) tidy() {
	t.Helper()
	t.tell()
	undone := func(what string, err error) {
		t.Helper()
		gone := errors.Is(err, vipl.ErrInvalidParameter) || errors.Is(err, vipl.ErrInvalidPtag)
		if err != nil && !gone && !t.Failed() {
			t.Errorf("cleaning up after the rule: %s: %v", what, err)
		}
	}
	for _, v := range t.vis {
		undone("disconnect", disconnect(v))
	}
	for _, v := range t.vis {
		drain(v)
		undone("destroy VI", v.Destroy())
	}
	for _, c := range t.cqs {
		undone("destroy CQ", c.Destroy())
	}
	for _, r := range t.regions {
		undone("deregister", r.Deregister())
	}
	for _, p := range t.tags {
		undone("destroy tag", p.Destroy())
	}
	t.vis, t.cqs, t.regions, t.tags = nil, nil, nil, nil
}

// tell says of a rule that has failed what the NICs have counted and where their VIs
// stand, so that a message that is missing can be looked for.
func (t *T) tell() {
	t.Helper()
	if !t.Failed() || t.told {
		return
	}
	t.told = true
	for _, n := range []*vipl.NIC{t.A, t.B} {
		t.Log(describe(n))
	}
}

var zeros = regexp.MustCompile(`"\w+":0,?`)

// describe is a NIC's status but for what is nothing.
func describe(n *vipl.NIC) string {
	b, err := json.Marshal(n.Status())
	if err != nil {
		return err.Error()
	}
	return zeros.ReplaceAllString(string(b), "")
}

// disconnect disconnects a VI, after a connect or disconnect that is under way.
func disconnect(v *vipl.VI) error {
	for end := time.Now().Add(ackDelay); ; time.Sleep(time.Millisecond) {
		err := v.Disconnect()
		if !errors.Is(err, vipl.ErrInvalidState) || time.Now().After(end) {
			return err
		}
	}
}

// drain takes the completed descriptors off both queues.
func drain(v *vipl.VI) {
	for _, done := range []func() (*vipl.Descriptor, error){v.SendDone, v.RecvDone} {
		for d, _ := done(); d != nil; d, _ = done() {
		}
	}
}
