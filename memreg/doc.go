// Package memreg keeps registered memory: which bytes of the program a VI NIC may access, under which handle, and
// for which VIs and peers.
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
// A posted descriptor holds a reference to the regions that it uses. Deregistering fails while there is one.
// Otherwise it is a single compare-and-swap from "no users" to "dead", so a reference and a deregistration cannot
// both succeed. Protection tags follow the same rule: regions and VIs hold references to them.
//
//	Resolve -> Acquire (false: just deregistered) -> use -> Release
//	ResolveRemote, which also acquires            -> use -> Release
//	Resolve -> Pin -> use -> Unpin, if one lock guards each of them and
//	                                Deregister: two plain additions
//
// [Table.SetAttributes] may change a region's tag and RDMA rights while it lives. They change together: an access
// is checked against one setting or the next, never against a mixture. Accesses that were checked before continue.
// ResolveRemote acquires the region before it checks. So after rights have been revoked and [Region.Users] has been
// 0 once, no access by the old rights is left.
//
// Go memory stays alive as long as its region does. Foreign memory, and the arena, must stay mapped until the
// region is deregistered.
//
// # Concurrency
//
// Everything may be called from any goroutine. Registering, deregistering, changing attributes and tags take the
// table's mutex. Lookup, Resolve, ResolveRemote, Acquire, Release and all methods of a Region take no lock, never
// wait and allocate nothing. Pin and Unpin are plain additions; one lock of the caller must guard them. The package
// does not synchronize accesses to the memory's contents.
//
// # Privileges
//
// None.
package memreg
