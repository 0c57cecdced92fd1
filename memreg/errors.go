package memreg

import "errors"

// Errors of the data path. Resolve, ResolveRemote and Slice return these values directly, so that a wrong
// descriptor causes no allocation. The control path wraps them with details. Test for all of them with errors.Is.
var (
	ErrHandle = errors.New("memreg: no region has this memory handle (wrong, or deregistered)")
	ErrPtag   = errors.New("memreg: protection tag does not match, belongs to another NIC, or was destroyed")
	ErrRights = errors.New("memreg: the region's attributes do not allow peers this access (EnableRDMAWrite, EnableRDMARead)")
	ErrRange  = errors.New("memreg: bytes lie outside of the registered region")
)

// Errors of the control path.
var (
	ErrLength  = errors.New("memreg: a region must have at least one byte")
	ErrAddress = errors.New("memreg: address is not valid memory of the program")
	ErrStart   = errors.New("memreg: address is not the start of the region with this handle")
	ErrBusy    = errors.New("memreg: still in use")
	ErrLimit   = errors.New("memreg: limit reached")
	ErrClosed  = errors.New("memreg: table is closed")
)
