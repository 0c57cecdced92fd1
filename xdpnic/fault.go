package xdpnic

import (
	"errors"
	"runtime/debug"
)

// errMemoryLost: a process that has the UMEM's file has removed pages from it (FALLOC_FL_PUNCH_HOLE). Without a free huge page
// in their place, an access raises SIGBUS.
var errMemoryLost = errors.New("the memory of the shared queue cannot be accessed: a process that has it has removed pages")

// access calls f, which reads or writes the table of a shared queue, for an agent. A fault there is an error, because it is the
// work of one user, and would end the agent of all.
func access(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }: // of a fault only: see debug.SetPanicOnFault
			err = errMemoryLost
		default:
			panic(p)
		}
	}()
	return f()
}
