// Package memreg is the record of registered memory: which bytes of the
// program a VI NIC may touch, under which handle, and for whom.
//
//	handle, address, length               Resolve: no lock, no allocation
//	       |
//	       v   low bits
//	  +---------+     +---------------------+     +---------------------+
//	  | slot 0  |     | Region              |     | the program's bytes |
//	  | slot 1 -+---->|  handle = handle?   |     |                     |
//	  |  ...    |     |  alive, users       |     |  addr .. addr+n     |
//	  | slot 2^k|     |  memory ------------+---->|                     |
//	  +---------+     |  attributes         |     |                     |
//	  an array of     +----+----------------+     +---------------------+
//	  atomic pointers      | atomic pointer
//	                       v
//	                  +-------------+     +--------+
//	                  | Ptag -------+---->|  Ptag  | <-- VIs
//	                  | RDMA rights |     +--------+
//	                  +-------------+
//
// A [Table] belongs to one open NIC. [Table.Register] takes a Go slice,
// [Table.RegisterForeign] an address and a length, such as C memory. Both
// return a [Region] with a random 32-bit [Handle]; handle and address together
// name the memory, here and for remote DMA. The same memory may be registered
// many times, with different attributes, and regions may overlap.
//
// # Life of a region
//
// A posted descriptor holds the regions that it uses ([Region.Acquire],
// [Region.Release]). Deregistering is refused as long as one is held, and is
// otherwise a single compare-and-swap from "no users" to "dead": there is no
// moment at which both a holder and a deregistration succeed. Protection tags
// live by the same rule: regions and VIs hold them.
//
//	Resolve -> Acquire (false: just deregistered) -> use -> Release
//	ResolveRemote, which also acquires            -> use -> Release
//	Resolve -> Hold -> use -> Unhold, where one lock is around each of them and
//	                                  around Deregister: two plain additions
//
// A region's tag and RDMA rights may change while it lives, by
// [Table.SetAttributes], and change together: an access is checked against one
// setting or the next, never against a mixture. What was checked before goes
// on. ResolveRemote holds the region before it checks, so an owner who takes
// rights back, and after that sees a moment without users, has the memory for
// himself.
//
// Memory of Go stays alive as long as its region does. Foreign memory, and the
// arena, must stay mapped until the region is deregistered.
//
// # Concurrency
//
// Everything may be called from any goroutine. Registering, deregistering,
// changing attributes and tags take the table's mutex. Lookup, Resolve,
// ResolveRemote, Acquire, Release and all methods of a Region take no lock,
// wait for nobody and allocate nothing. Hold and Unhold are plain additions, which
// one lock of the caller's must guard. What is in the memory is the business of
// those who share it.
//
// # Privileges
//
// None.
package memreg
