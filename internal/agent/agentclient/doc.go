// Package agentclient is the Kernel Agent of an unprivileged program. It asks the daemon (package
// internal/agent/agentd) for everything that needs privilege, and receives its queue and memory
// by descriptor passing. The program then uses them without the daemon.
//
//	program                                daemon
//	+------------------------------+      +--------------------------+
//	| vipl -- Agent --- session ---|------| session -- device.Local  |
//	|   \                          |      +--------------------------+
//	|    xdpnic.Queue, arena ======|== kernel
//	+------------------------------+
//
// The data path does not touch the session. If the daemon dies, calls wait for the next one. The
// session reconnects to it by itself; the new daemon knows the session's VIs. A Request or Wait
// without an answer is repeated. An exchange that had an answer is lost: its Accept, Confirm or
// Reject fails with an error that wraps kagent.ErrVanished.
//
// # Concurrency
//
// All methods of Agent may be called concurrently. The Queue has one owner. A session has one
// goroutine, which reads; while the daemon is away, it looks for the next one.
package agentclient
