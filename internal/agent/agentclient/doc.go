// Package agentclient is the Kernel Agent of a program that has no privilege: it
// asks the daemon (package internal/agent/agentd) for what needs privilege, and gets its
// queue and memory by descriptor passing. The program then drives them by itself.
//
//	program                                daemon
//	+------------------------------+      +--------------------------+
//	| vipl -- Agent --- session ---|------| session -- device.Local  |
//	|   \                          |      +--------------------------+
//	|    xdpnic.Queue, arena ======|== kernel
//	+------------------------------+
//
// The data path does not touch the session. When the daemon dies, calls wait for
// the next one, to which the session comes back by itself; the daemon then knows
// the VIs and goes on. Only an exchange of connection management that was between
// its first and last message is lost, with an error that wraps
// kagent.ErrVanished.
//
// # Concurrency
//
// All methods of Agent may be called concurrently, but for the Queue, which has
// one owner. A session has a goroutine that reads; while the daemon is away, the
// same one looks for it.
package agentclient
