// Package steer makes a NIC put the frames of one UDP port on one receive queue,
// and undoes it.
//
// An AF_XDP socket hears only the queue that it is bound to, and a NIC with
// several queues spreads frames over them: those of one connection by a hash of
// their addresses, which knows nothing of sockets. Two means change that:
//
//   - a rule of the NIC's flow classifier ("ntuple"): UDP to this port goes to
//     that queue. Other traffic is not touched. Not every NIC has it.
//   - the indirection table of its hash (RSS), with that queue everywhere: all
//     traffic goes there. Most NICs have it.
//
// Rules for the port that are there already are somebody's: one for the queue is
// used and stays, those for other queues are out of the way until Undo. What a
// killed process has left stays, too, unless its [State] was kept for [Resume]
// (ethtool -N IFACE delete LOCATION, ethtool -X IFACE default).
package steer
