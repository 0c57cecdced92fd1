// Command vm runs the tests that need NICs with zero-copy queues, in a virtual
// machine that it makes for the purpose:
//
//	go run ./internal/lab/vm                      virtio-net, kernel 6.18
//	go run ./internal/lab/vm --nic igb            Intel's 82576, as QEMU emulates it
//	go run ./internal/lab/vm --nic virtio --queues 2
//	go run ./internal/lab/vm --kernel 6.1,6.12,6.18,newest --doc docs/kernel-support.md
//
// What runs where:
//
//	       host                 |                guest
//	                            |   /init (internal/lab/vm/guest)
//	Debian's kernel and QEMU    |     eth0            eth1, in namespace "peer"
//	test and command binaries --|->   xdpnic.test, vipltest.test, agentd.test, via-xdp
//	console.log        <--------|-- ttyS0        |               |
//	results, as JSON   <--------|-- ttyS1        '--- QEMU hub --'
//
// Kernel and QEMU come from Debian's packages into a cache directory, through
// an apt configuration of their own: nothing is installed, and no privilege is
// needed but for --queues, which takes a tap in a network namespace of its own.
// QEMU emulates the processor in software, so that it needs no virtualization
// and shows the same everywhere; times from it say nothing about speed.
//
// The command fails when a step in the guest fails, a bind is not zero-copy, a
// program is not in driver mode, a byte is wrong, a frame is lost, a test was
// left out, or the time is over.
package main
