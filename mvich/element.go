package mvich

// Element is what slices that are sent may consist of: numbers, which have the
// same form on all ranks. For bytes there are methods of Comm as well.
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

// Recv is Comm.Recv for any elements; Count tells how many came.
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
