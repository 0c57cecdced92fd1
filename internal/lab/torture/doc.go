// Package torture runs traffic over real interfaces while things go wrong, and
// finds every promise that is broken: a wrong byte, a message that is lost,
// doubled or out of order, a chunk, goroutine or file that is not given back.
//
//	parent: Bed                            testbed.Site
//	+---------------+ commands  +----------------------------------------------+
//	| faults, links |---------->| worker 0 ==== middle (faults) ==== worker 1  |
//	| deaths        |<----------| NIC, flows                        NIC, flows |
//	+---------------+  reports  +----------------------------------------------+
//
// A worker is a process of its own with one NIC handle and several flows. A flow
// is a VI that is connected with one of the other worker, sends and receives all
// the time, checks what comes, and connects again when the connection ended.
// On reliable levels a flow mixes sends, empty messages with immediate data, RDMA
// writes with immediate data or announced by a send, and RDMA reads.
//
// Each message carries its number and a pattern that follows from the number and
// from the incarnation of the connection, so that any byte that is out of place
// is found. Reliable: exactly once, in order, intact. Unreliable: at most once,
// in order, intact. Receives are always posted before the peer may send: flows
// give each other credit.
//
// The parent ([Bed]) sets faults, kills and stops workers, changes links, and
// asks for reports. [Soak] does all of it for hours.
//
// [Attack] runs attacks by hostile peers, hostile users of an agent, and forgers of
// requests, and checks what is promised to honest programs beside them.
//
// # Privileges
//
// Root: namespaces, interfaces, AF_XDP sockets and programs. Nothing stays
// behind when the parent is killed.
//
// # Concurrency
//
// A Bed belongs to one goroutine.
package torture
