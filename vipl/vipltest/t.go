package vipltest

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"viaxdp/vipl"
)

// T is the test of a rule: a pair of NICs on one link, and the helpers of the rules. What its methods make is
// removed when the rule ends, and the NICs are then as before; the removal is a test, too.
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
	told    bool // the NICs' counters have been logged
}

func newT(t *testing.T, c Config, a, b *vipl.NIC) *T {
	x := &T{TB: t, A: a, B: b, t: t, config: c, errors: &errorLog{}}
	x.watch(a, b)
	t.Cleanup(x.tidy)
	return x
}

// Errorf, Fatalf, Error and Fatal report the lines of the suite that led to a failure.
func (t *T) Errorf(format string, args ...any) {
	t.TB.Errorf("%s: %s", where(), fmt.Sprintf(format, args...))
}

func (t *T) Fatalf(format string, args ...any) {
	t.TB.Fatalf("%s: %s", where(), fmt.Sprintf(format, args...))
}

func (t *T) Fatal(args ...any) { t.Fatalf("%s", fmt.Sprint(args...)) }
func (t *T) Error(args ...any) { t.Errorf("%s", fmt.Sprint(args...)) }

// where returns the lines of the suite on the stack, the rule's first.
func where() string {
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	var lines []string
	for more := true; more; {
		var f runtime.Frame
		if f, more = frames.Next(); strings.Contains(f.Function, "/vipltest.") {
			lines = append(lines, fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line))
		}
	}
	slices.Reverse(lines)
	return strings.Join(lines, " ")
}

// watch collects the asynchronous errors of NICs for asyncError.
func (t *T) watch(nics ...*vipl.NIC) {
	for _, n := range nics {
		n.ErrorCallback(t.errors.add)
	}
}

// openPair opens NICs for this rule only, which it may close. They become A and B.
func (t *T) openPair() {
	a, b := t.config.Open(t.t)
	t.own(a, b)
}

// openSilent is openPair with a function after which the NICs no longer reach each other.
func (t *T) openSilent() (silence func()) {
	if t.config.OpenSilent == nil {
		t.Skip("no way to silence a peer")
	}
	a, b, silence := t.config.OpenSilent(t.t)
	t.own(a, b)
	return silence
}

// own makes NICs that were opened for the rule A and B.
func (t *T) own(a, b *vipl.NIC) {
	t.A, t.B = a, b
	t.watch(a, b)
	t.Cleanup(t.tidy) // before they are closed
}

// sub runs a part of the rule, and removes what it made at its end.
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

// must ends the rule if err is not nil.
func (t *T) must(err error) {
	if err != nil {
		t.Fatal(err)
	}
}

// wantErr checks that an operation returned the code; nil means success.
func (t *T) wantErr(what string, err, want error) {
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// errOf and errOf2 return the error of a call with one or two more results.
func errOf[A any](_ A, err error) error          { return err }
func errOf2[A, B any](_ A, _ B, err error) error { return err }

// errorIf marks the rule as failed if wrong is true.
func (t *T) errorIf(wrong bool, format string, args ...any) {
	if wrong {
		t.Errorf(format, args...)
	}
}

// equal checks a value.
func equal[V comparable](t *T, what string, got, want V) {
	t.errorIf(got != want, "%s: %+v, want %+v", what, got, want)
}

// same checks that a queue returned this descriptor.
func (t *T) same(got, want *vipl.Descriptor) {
	t.errorIf(got != want, "another descriptor: %p, want %p", got, want)
}

// within waits for a value from a channel.
func within[V any](t *T, what string, c <-chan V) V {
	select {
	case v := <-c:
		return v
	case <-time.After(limit):
		t.Fatalf("never came: %s", what)
		panic("unreachable")
	}
}

// vi makes a VI without completion queues, and viOn one whose queues are bound to the given ones.
func (t *T) vi(n *vipl.NIC, a vipl.VIAttributes) *vipl.VI {
	return t.viOn(n, a, nil, nil)
}

func (t *T) viOn(n *vipl.NIC, a vipl.VIAttributes, send, recv *vipl.CQ) *vipl.VI {
	v, err := n.CreateVI(a, send, recv)
	t.must(err)
	t.vis = append(t.vis, v)
	return v
}

func (t *T) cq(n *vipl.NIC, entries int) *vipl.CQ {
	c, err := n.CreateCQ(entries)
	t.must(err)
	t.cqs = append(t.cqs, c)
	return c
}

func (t *T) tag(n *vipl.NIC) *vipl.Ptag {
	p, err := n.CreatePtag()
	t.must(err)
	t.tags = append(t.tags, p)
	return p
}

// alloc allocates memory in the NIC's arena, and register registers memory of the program. Without a tag in a
// it gets a new one.
func (t *T) alloc(n *vipl.NIC, size int, a vipl.MemAttributes) *vipl.Region {
	return t.region(n, a, func(a vipl.MemAttributes) (*vipl.Region, error) {
		r, err := n.AllocMem(size, a)
		if err == nil {
			clear(r.Bytes())
		}
		return r, err
	})
}

func (t *T) register(n *vipl.NIC, b []byte, a vipl.MemAttributes) *vipl.Region {
	return t.region(n, a, func(a vipl.MemAttributes) (*vipl.Region, error) { return n.RegisterMem(b, a) })
}

func (t *T) region(n *vipl.NIC, a vipl.MemAttributes, create func(vipl.MemAttributes) (*vipl.Region, error)) *vipl.Region {
	if a.Ptag == nil {
		a.Ptag = t.tag(n)
	}
	r, err := create(a)
	t.must(err)
	t.regions = append(t.regions, r)
	return r
}

// at returns the attributes of a VI of a level, and open those with every RDMA operation enabled that the level
// has.
func at(level vipl.ReliabilityLevel) vipl.VIAttributes { return vipl.VIAttributes{Level: level} }

func open(level vipl.ReliabilityLevel) vipl.VIAttributes {
	return vipl.VIAttributes{Level: level, EnableRDMAWrite: true, EnableRDMARead: level != vipl.UnreliableDelivery}
}

// openMemory permits peers to write and read.
var openMemory = vipl.MemAttributes{EnableRDMAWrite: true, EnableRDMARead: true}

// idle makes a VI of a level on each NIC.
func (t *T) idle(level vipl.ReliabilityLevel) (va, vb *vipl.VI) {
	return t.vi(t.A, at(level)), t.vi(t.B, at(level))
}

// pair makes a connected pair of VIs of a level with every RDMA operation enabled, and pairOf one with the
// given attributes.
func (t *T) pair(level vipl.ReliabilityLevel) (va, vb *vipl.VI) {
	return t.pairOf(open(level), open(level))
}

func (t *T) pairOf(a, b vipl.VIAttributes) (va, vb *vipl.VI) {
	va, vb = t.vi(t.A, a), t.vi(t.B, b)
	t.join(va, vb)
	return va, vb
}

// ends makes a connected pair of VIs as pair does, with a block of buffers at each end.
func (t *T) ends(level vipl.ReliabilityLevel, countA, countB, size int) (a, b *end) {
	return t.endsOf(open(level), open(level), countA, countB, size)
}

// endsOf is ends with the given attributes. The blocks have the VIs' tags.
func (t *T) endsOf(attrsA, attrsB vipl.VIAttributes, countA, countB, size int) (a, b *end) {
	va, vb := t.pairOf(attrsA, attrsB)
	return t.blockOf(t.A, attrsA.Ptag, countA, 2, size).on(va), t.blockOf(t.B, attrsB.Ptag, countB, 2, size).on(vb)
}

// endsOn is ends with the queues of A's VI bound to CQs.
func (t *T) endsOn(level vipl.ReliabilityLevel, send, recv *vipl.CQ, countA, countB, size int) (a, b *end) {
	va, vb := t.viOn(t.A, open(level), send, recv), t.vi(t.B, open(level))
	t.join(va, vb)
	return t.block(t.A, countA, size).on(va), t.block(t.B, countB, size).on(vb)
}

var discriminators atomic.Uint64

// discriminatorPrefix is unique to this process: discriminators are per host, and other processes may run tests
// there.
var discriminatorPrefix = rand.Text()[:8]

// disc returns a discriminator that is not otherwise used.
func disc() []byte { return fmt.Appendf(nil, "%s-%d", discriminatorPrefix, discriminators.Add(1)) }

// named returns a discriminator at any host, and on one at a NIC's.
func named(d []byte) vipl.NetAddress { return vipl.NetAddress{Discriminator: d} }

func on(n *vipl.NIC, d []byte) vipl.NetAddress {
	return vipl.NetAddress{Host: n.Query().Address, Discriminator: d}
}

// serves has a VI accept one request, and returns a channel for the result.
func serves(v *vipl.VI, local vipl.NetAddress) <-chan error {
	return starts(func() error {
		c, err := v.NIC().ConnectWait(local, limit)
		if err != nil {
			return err
		}
		return c.Accept(v)
	})
}

// join connects client va with server vb, of any NICs.
func (t *T) join(va, vb *vipl.VI) {
	d := disc()
	t.joinAt(va, vb, named(d), on(vb.NIC(), d))
}

// joinAt is join of a server that waits at local with a client that requests remote.
func (t *T) joinAt(va, vb *vipl.VI, local, remote vipl.NetAddress) {
	done := serves(vb, local)
	t.must(errOf(t.request(va, vipl.NetAddress{}, remote)))
	t.must(<-done)
}

// request connects va, at local, with a program that may not wait yet.
func (t *T) request(va *vipl.VI, local, remote vipl.NetAddress) (vipl.RemoteAttributes, error) {
	for end := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		r, err := va.ConnectRequest(local, remote, limit)
		if !errors.Is(err, vipl.ErrNoMatch) || time.Now().After(end) {
			return r, err
		}
	}
}

// tidy removes what the rule has made, except what the rule itself has removed.
func (t *T) tidy() {
	t.tell()
	undone := func(what string, err error) {
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

// tell logs the counters of the NICs and the states of their VIs if the rule has failed, to help find a missing
// message.
func (t *T) tell() {
	if t.Failed() && !t.told {
		t.told = true
		t.Log(describe(t.A))
		t.Log(describe(t.B))
	}
}

var zeros = regexp.MustCompile(`"\w+":0,?`)

// describe returns a NIC's status without the fields that are zero.
func describe(n *vipl.NIC) string {
	b, err := json.Marshal(n.Status())
	if err != nil {
		return err.Error()
	}
	return zeros.ReplaceAllString(string(b), "")
}

// disconnect disconnects a VI, after a connect or disconnect that is under way.
func disconnect(v *vipl.VI) error {
	for end := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
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
