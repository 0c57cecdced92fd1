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
// A rule is written in the words of end.go, wait.go and t.go: it makes two ends of a
// connection, and says what they post and what must come of it.
//
//	a, b := t.ends(level, 1, 1, 64) // VIs, descriptors and buffers
//	b.recv(0, 64)
//	a.sendMessage(0, 64, k)
//	b.arrived(0, 64, k)
//	a.sent()
//
// Where the rules of a group stand:
//
//	nic, ptag-memory, vi-objects      nic.go, memory.go, vi.go
//	descriptors                       descriptor.go, wrong.go
//	send-receive                      send.go
//	rdma-write, rdma-read             rdma_write.go, rdma_read.go, refused.go
//	reliability                       reliability.go, broken.go
//	cq, notify, async-errors          cq.go, notify.go, async.go
//	client-server, peer-to-peer       connect.go, peer.go
//	local, name-service               local.go, names.go
//	limits, concurrency               limits.go, concurrency.go
//
// What messages, RDMA writes and RDMA reads have in common is in carry.go.
//
// No rule asks how fast a provider is. What must happen may take 20 seconds; for
// what must not happen a rule looks for 20 ms.
package vipltest
