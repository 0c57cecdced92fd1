// Package hugepages provides one contiguous piece of memory, an arena, on the largest pages that the machine has
// free, and divides it into blocks.
//
//	 Config.Size, rounded up to whole pages
//	 <------------------------------------------------------------>
//	+------+-------------------+----------------------------------+------+
//	|guard | Config.Reserve:   | buddy allocator: blocks of       |guard |
//	|page  | the UMEM's chunks | 64 B * 2^n, given out by Alloc   |page  |
//	+------+-------------------+----------------------------------+------+
//	       ^ Bytes()[0], on a power-of-two boundary of at least the size
//
// # The ladder
//
// [New] takes the first step that works. [Info] reports that step, and for each better one the reason for its
// refusal and the remedy:
//
//	step      private mapping           Config.Shared (memfd, FD() >= 0)
//	hugetlb   MAP_HUGETLB, 2 MB         MFD_HUGETLB, 2 MB
//	thp       2 MB aligned, advised     the same on a tmpfs memfd
//	4k        ordinary pages            ordinary tmpfs pages
//
// Every page is populated before New returns, so that a lack of memory is an error of New and never a SIGBUS on the
// data path. A shared arena is sealed against shrinking and growing. But a process that holds its descriptor can free
// pages (FALLOC_FL_PUNCH_HOLE): the next access finds zeros or, with Hugetlb and no free page in the pool, raises
// SIGBUS. So give it only to processes that may do that. New never changes the machine's hugepage settings. [Overcommit] and [Reserve] do, for
// commands that build a test bed and restore the settings.
//
// # Concurrency
//
// All methods of [Arena] and [Buddy] may be called from any goroutine. Each takes a mutex and is meant for the
// control path. The memory itself has no lock: a block belongs to the code that allocated it. The package starts no
// goroutine.
//
// # Privileges
//
// New needs none. Overcommit and Reserve write to /sys/kernel/mm/hugepages and need root. MADV_POPULATE_WRITE needs
// Linux 5.14.
package hugepages
