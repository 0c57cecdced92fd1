// Package steer makes a NIC put the frames of one UDP port on one receive queue,
// and undoes it.
//
// An AF_XDP socket receives only from the queue that it is bound to. A NIC with
// several queues spreads frames over them by a hash of their addresses, which
// does not consider sockets. Two means change that:
//
//   - a rule of the NIC's flow classifier ("ntuple"): UDP to this port goes to
//     that queue. It does not affect other traffic. Not every NIC has one.
//   - the indirection table of its hash (RSS), with that queue in every entry:
//     all traffic goes there. Most NICs have one.
//
// Existing rules for the port belong to another owner. A rule for the queue is
// used and stays; rules for other queues are removed until Undo. Rules and tables
// that a killed process has left stay, unless its [State] was kept for [Resume].
// To remove them by hand: ethtool -N IFACE delete LOCATION, ethtool -X IFACE default.
package steer
