// Package vipltest is a conformance suite for providers of package vipl's API.
//
// It is written from the rules of the VI Architecture and its provider library
// alone: it gets a function that opens a pair of NICs on one link and knows
// nothing of how they work. Each [Rule] has an ID, which is also the name of its
// test, and says in a sentence what must hold.
//
//	func TestConformance(t *testing.T) {
//		vipltest.Run(t, vipltest.Config{Open: openPair})
//	}
//
// Where the rules of a group stand:
//
//	nic, ptag-memory, vi-objects      nic.go, memory.go, vi.go
//	descriptors                       descriptor.go, wrong.go
//	send-receive                      segments.go, send.go, done.go
//	rdma-write, rdma-read             rdma_write*.go, rdma_read*.go, refused.go
//	reliability                       reliability.go, broken.go, silent.go
//	cq, notify, async-errors          cq.go, notify.go, async.go
//	client-server, peer-to-peer       connect.go, peer.go
//	local, name-service               local.go, names.go
//	limits, concurrency               limits.go, concurrency.go
//
// No rule asks how fast a provider is. What must happen may take 20 seconds; for
// what must not happen a rule looks for 20 ms.
package vipltest
