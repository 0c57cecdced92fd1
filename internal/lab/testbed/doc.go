// Package testbed makes the network that measurements run on: two network namespaces joined
// by veth pairs, on one machine, with neither the ip nor the ethtool program.
//
// There are two forms. A [Bed] is unnamed: its namespaces belong to the caller, and vanish
// with it and its two child processes, however these end.
//
//	          parent (host namespace)
//	     control |                | control          socket pairs, JSON lines
//	+------------v---+        +---v------------+
//	| side 0         |        | side 1         |     children: the same program,
//	| via0 10.77.0.1 |========| via0 10.77.0.2 |     executed again in a namespace
//	| tcp0 10.78.0.1 |========| tcp0 10.78.0.2 |     of its own
//	+----------------+        +----------------+
//
// A [Named] bed is for work by hand: namespaces that `ip netns exec` knows, a state file
// under /run, up until [Named.Down].
//
// # With faults
//
// Config.Through makes a Bed whose pairs lead through a third namespace each, a [Middle],
// whose forwarder loses, repeats, damages, delays and reorders frames as [Faults] say. It also
// is a bottleneck: a rate, a queue for all or for each flow, ECN marks. [Middle.SetTBF] makes one of the kernel's.
// It counts what it does, and its choices are reproducible by a seed. A [Site] is the same for
// processes that come and go: one can be killed and another started with its addresses.
//
//	side 0                     middle                      side 1
//	via0 ==== side0 --> emulator 0 (faults) --> side1 ==== via0
//	                <-- emulator 1 (faults) <--
//
// A forwarder is two goroutines on packet sockets, which [Middle.Prefer] makes run before
// any other program.
//
// # For programs of any kind
//
// A [Star] is any number of namespaces for processes of other programs, each with an
// interface on a bridge.
//
// # Nothing stays behind
//
// A child of a Bed gets SIGKILL when the thread that started it dies (PR_SET_PDEATHSIG,
// prctl(2); that thread lives as long as the Bed). It ends by itself when its control
// connection ends. The namespaces are open files of the caller and end with the last process
// in them. A veth pair ends with either of its ends. Only the host's allowance of surplus
// hugepages is not undone by the kernel: a [Guard] raises it, a tiny process that takes it
// back when its parent is gone.
//
// # Privileges
//
// CAP_SYS_ADMIN (namespaces), CAP_NET_ADMIN (links), CAP_NET_RAW (packet sockets of a
// Middle), CAP_SYS_NICE (Middle.Prefer). [Require] tests for them and says what is missing.
//
// # Concurrency
//
// A Bed and a Guard belong to one goroutine; Bed.Close may be called from any.
//
// # Example
//
//	bed, err := testbed.Start(testbed.Config{
//		Args:  []string{"worker"},
//		Pairs: []testbed.Pair{{Names: [2]string{"via0", "via0"}, Net4: p4, Net6: p6, MTU: 1500}},
//	})
//	if err != nil { ... }
//	defer bed.Close()
//	fmt.Fprintln(bed.Side(0).Control, `{"op":"open"}`)
package testbed
