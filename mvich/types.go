package mvich

import (
	"fmt"
	"math"
)

// Element is what slices that are sent may consist of: numbers, which have the same form on all ranks. Comm has
// methods for bytes as well.
type Element interface {
	Real | ~complex64 | ~complex128
}

// Real is the elements that have an order, for Min and Max.
type Real interface {
	Integer | ~float32 | ~float64
}

// Integer is the elements whose bits And, Or and Xor combine.
type Integer interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}

// Send is Comm.Send for any elements.
func Send[T Element](c *Comm, buf []T, dst, tag int) error { return c.Send(bytesOf(buf), dst, tag) }

// Ssend is Comm.Ssend for any elements.
func Ssend[T Element](c *Comm, buf []T, dst, tag int) error { return c.Ssend(bytesOf(buf), dst, tag) }

// Isend is Comm.Isend for any elements.
func Isend[T Element](c *Comm, buf []T, dst, tag int) (*Request, error) {
	return c.Isend(bytesOf(buf), dst, tag)
}

// Issend is Comm.Issend for any elements.
func Issend[T Element](c *Comm, buf []T, dst, tag int) (*Request, error) {
	return c.Issend(bytesOf(buf), dst, tag)
}

// Recv is Comm.Recv for any elements; Count returns how many came.
func Recv[T Element](c *Comm, buf []T, src, tag int) (Status, error) {
	return c.Recv(bytesOf(buf), src, tag)
}

// Irecv is Comm.Irecv for any elements.
func Irecv[T Element](c *Comm, buf []T, src, tag int) (*Request, error) {
	return c.Irecv(bytesOf(buf), src, tag)
}

// Sendrecv is Comm.Sendrecv for any elements.
func Sendrecv[S, R Element](c *Comm, send []S, dst, sendTag int, recv []R, src, recvTag int) (Status, error) {
	return c.Sendrecv(bytesOf(send), dst, sendTag, bytesOf(recv), src, recvTag)
}

// Type is which elements of a slice make up a message. Elem is one element; Contiguous and Vector make types of
// types.
//
//	Vector(3, 2, 4, Elem)   of a slice   ##..##..##
//	                        a message    ######
//
// The zero Type is Elem.
type Type struct {
	levels []level // outermost first
	run    int     // elements in a row at the innermost, minus 1
	span   int     // elements from the first to behind the last, minus 1
}

// level repeats what is below it.
type level struct{ count, stride int }

// Elem is one element.
var Elem Type

// Contiguous is count of a type, one behind the other.
func Contiguous(count int, of Type) Type { return Vector(count, 1, 1, of) }

// Vector is count blocks, each of block of a type one behind the other; stride is the distance between the beginnings
// of blocks, in as many of that type. It panics when a number is negative, blocks overlap, or they reach further than
// an int can say.
func Vector(count, block, stride int, of Type) Type {
	if count < 0 || block < 0 || stride < block {
		panic(fmt.Sprintf("mvich: vector of %d blocks of %d with stride %d", count, block, stride))
	}
	return of.repeat(block, of.Extent()).repeat(count, times(stride, of.Extent()))
}

// times multiplies, up to what an int holds.
func times(a, b int) int {
	if b > 0 && a > math.MaxInt/b {
		return math.MaxInt
	}
	return a * b
}

func (t Type) repeat(count, stride int) Type {
	switch {
	case count == 0 || t.Len() == 0:
		return Type{levels: []level{{0, 1}}, span: -1}
	case count == 1:
		return t
	case (math.MaxInt-1-t.span)/stride < count-1:
		panic(fmt.Sprintf("mvich: %d parts of a type, %d elements apart", count, stride))
	}
	span := (count-1)*stride + t.span
	if len(t.levels) == 0 && stride == t.run+1 { // runs that touch are one
		return Type{run: count*(t.run+1) - 1, span: span}
	}
	return Type{levels: append([]level{{count, stride}}, t.levels...), run: t.run, span: span}
}

// Len is the number of elements that move.
func (t Type) Len() int {
	n := t.run + 1
	for _, l := range t.levels {
		n *= l.count
	}
	return n
}

// Extent is the number of elements that the type reaches over.
func (t Type) Extent() int { return t.span + 1 }

// runs calls f with each row of elements, by place and length, in order.
func (t Type) runs(f func(at, n int)) { walk(t.levels, 0, t.run+1, f) }

func walk(levels []level, at, run int, f func(at, n int)) {
	if len(levels) == 0 {
		f(at, run)
		return
	}
	for i := range levels[0].count {
		walk(levels[1:], at+i*levels[0].stride, run, f)
	}
}

// inOne reports whether the elements lie in one row.
func (t Type) inOne() bool { return len(t.levels) == 0 }

func (t Type) check(n int) error {
	if t.Extent() > n {
		return fmt.Errorf("%w: %d elements of %d", ErrType, t.Extent(), n)
	}
	return nil
}

// pack gathers the elements that t names, in scratch where they do not lie in one row.
func pack[T Element](c *Comm, buf []T, t Type) ([]T, *scratch) {
	if t.inOne() {
		return buf[:t.Extent()], nil
	}
	packed, mem := borrow[T](c.w, t.Len())
	rest := packed
	t.runs(func(at, n int) { rest = rest[copy(rest, buf[at:at+n]):] })
	return packed, mem
}

// unpack spreads what pack has gathered, as far as it goes.
func unpack[T Element](buf []T, t Type, in []T) {
	t.runs(func(at, n int) { in = in[copy(buf[at:at+n], in):] })
}

// SendType sends the elements of buf that t names. The message is received by RecvType with any type of as many
// elements, or by Recv into a slice.
func SendType[T Element](c *Comm, buf []T, t Type, dst, tag int) error {
	return sendPacked(c, buf, t, dst, tag, false)
}

// IsendType begins to send the elements of buf that t names. They are gathered before it returns, unless they lie one
// behind the other: then, as with Isend, buf must not be changed before the request is complete.
func IsendType[T Element](c *Comm, buf []T, t Type, dst, tag int) (*Request, error) {
	return isendPacked(c, buf, t, dst, tag, false)
}

// SsendType is SendType that returns when a receive has taken the message.
func SsendType[T Element](c *Comm, buf []T, t Type, dst, tag int) error {
	return sendPacked(c, buf, t, dst, tag, true)
}

// IssendType is IsendType whose request is complete when a receive has taken the message.
func IssendType[T Element](c *Comm, buf []T, t Type, dst, tag int) (*Request, error) {
	return isendPacked(c, buf, t, dst, tag, true)
}

// SendrecvType sends the elements of send that st names to rank dst and receives those of recv that rt names from
// rank src, as a rank does with the borders of its part of a matrix. No element may be in both.
func SendrecvType[S, R Element](c *Comm, send []S, st Type, dst, sendTag int, recv []R, rt Type, src, recvTag int) (Status, error) {
	// Before the receive is posted, which would take a message that is for another one.
	for _, err := range []error{st.check(len(send)), checkLength(st.Len() * sizeOf[S]()), c.checkSend(nil, dst, sendTag)} {
		if err != nil {
			return Status{}, err
		}
	}
	in, err := IrecvType(c, recv, rt, src, recvTag)
	if err != nil {
		return Status{}, err
	}
	if err := SendType(c, send, st, dst, sendTag); err != nil {
		c.w.mu.Lock()
		defer c.w.mu.Unlock()
		in.giveUp(err)
		return Status{}, err
	}
	return in.Wait()
}

func sendPacked[T Element](c *Comm, buf []T, t Type, dst, tag int, sync bool) (err error) {
	if err := t.check(len(buf)); err != nil {
		return err
	}
	out, mem := pack(c, buf, t)
	if mem != nil {
		defer mem.end(&err)
	}
	return c.sendNow(bytesOf(out), dst, tag, sync)
}

func isendPacked[T Element](c *Comm, buf []T, t Type, dst, tag int, sync bool) (*Request, error) {
	if err := t.check(len(buf)); err != nil {
		return nil, err
	}
	out, mem := pack(c, buf, t)
	r, err := c.sendLater(bytesOf(out), dst, tag, sync, mem)
	if err != nil && mem != nil {
		mem.end(&err)
	}
	return r, err
}

// RecvType receives into the elements of buf that t names.
func RecvType[T Element](c *Comm, buf []T, t Type, src, tag int) (Status, error) {
	r, err := IrecvType(c, buf, t, src, tag)
	if err != nil {
		return Status{}, err
	}
	return r.Wait()
}

// IrecvType begins to receive into the elements of buf that t names. They are in place when the request is complete.
func IrecvType[T Element](c *Comm, buf []T, t Type, src, tag int) (*Request, error) {
	if err := t.check(len(buf)); err != nil {
		return nil, err
	}
	if t.inOne() {
		return Irecv(c, buf[:t.Extent()], src, tag)
	}
	if err := c.checkRecv(src, tag); err != nil {
		return nil, err
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	r := &Request{scratch: c.w.getScratch(t.Len() * sizeOf[T]())}
	in := elementsOf[T](r.scratch.mem, t.Len())
	c.begin(r, bytesOf(in), c.context, src, tag)
	r.unpack = func() { unpack(buf, t, in[:r.size/sizeOf[T]()]) }
	c.w.startRecv(r)
	return r, nil
}
