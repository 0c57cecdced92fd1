//go:build cgo

package main

// #include "abi.h"
import "C"

import (
	"errors"
	"fmt"
	"log"

	"golang.org/x/sys/unix"

	"viaxdp/cmd/libvipl/bigstack"
	"viaxdp/vipl"
)

// control is the frame of a control call: it finds the object of a handle and has do
// work on it. op is the function's name in VIPL.
func control[T any](op string, h C.uintptr_t, do func(*T) error) C.int {
	bigstack.Reserve()
	x := find[T](h)
	if x == nil {
		return code(vipl.ErrInvalidParameter)
	}
	return result(op, do(x))
}

// code is the VIP_RETURN of an error of package vipl.
func code(err error) C.int {
	switch e := err.(type) {
	case nil:
		return 0
	case vipl.Return:
		return C.int(e)
	}
	var r vipl.Return
	if errors.As(err, &r) {
		return C.int(r)
	}
	return C.int(vipl.ErrResource)
}

// result is code for a control call. With $VIA_VERBOSE it writes the cause to standard
// error, because a return code says little.
func result(op string, err error) C.int {
	if _, bare := err.(vipl.Return); err != nil && !bare && verbose() {
		fmt.Fprintf(stderr{}, "%s: %v\n", op, err)
	}
	return code(err)
}

// stderr writes to standard error. A write to a pipe that nobody reads sends the program a SIGPIPE, which it may ignore or
// handle. After such a write to os.Stderr, Go would end the program in any case.
type stderr struct{}

func (stderr) Write(b []byte) (n int, err error) {
	for {
		if n, err = unix.Write(unix.Stderr, b); err != unix.EINTR {
			return n, err
		}
	}
}

// The default handler of asynchronous errors logs by package log.
func init() { log.SetOutput(stderr{}) }
