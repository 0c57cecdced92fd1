//go:build cgo

package main

import "C"

import (
	"errors"
	"fmt"
	"os"

	"viaxdp/vipl"
)

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

// result is code for a call of the control path: $VIA_VERBOSE has its cause
// written to standard error, since a return code says so little.
func result(op string, err error) C.int {
	if _, bare := err.(vipl.Return); err != nil && !bare && verbose() {
		fmt.Fprintf(os.Stderr, "%s: %v\n", op, err)
	}
	return code(err)
}

func fail(op string, err error) C.int { return result(op, err) }
