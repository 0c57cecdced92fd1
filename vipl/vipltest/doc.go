// Package vipltest is a conformance suite for providers of package vipl's API.
//
// It is written only from the rules of the VI Architecture and its provider library. It gets a function that
// opens a pair of NICs on one link and knows nothing of their implementation. Each [Rule] has an ID, which is
// also the name of its test, and states the requirement in a sentence.
//
//	func TestConformance(t *testing.T) {
//		vipltest.Run(t, vipltest.Config{Open: openPair})
//	}
//
// A rule uses the helpers of end.go, wait.go and t.go: it makes two ends of a connection, posts descriptors,
// and states the expected outcome.
//
//	a, b := t.ends(level, 1, 1, 64) // VIs, descriptors and buffers
//	b.recv(0, 64)
//	a.sendMessage(0, 64, k)
//	b.arrived(0, 64, k)
//	a.sent()
//
// The files of each group's rules:
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
// carry.go has what messages, RDMA writes and RDMA reads have in common.
//
// No rule tests how fast a provider is. A required event may take 20 seconds. A forbidden event is watched for
// during 20 ms.
package vipltest
