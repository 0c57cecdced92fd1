// Package fabric simulates a network in virtual time. Its hosts run the real engine of package vipl over NIC queues
// in memory; links, switches and TCP flows are models.
//
//	 Host                     Switch                        Host
//	+--------------------+   +-------------------------+   +------+
//	| program: Stream    |   |        +- Port: rate, -+|   |      |
//	| vipl, xdpnictest --+-->| route -| delay, buffer, |-->|      |
//	| TCP flows          |   |        +- ECN mark ----+|   |      |
//	+--------------------+   +-------------------------+   +------+
//
// A [Sim] has the events, in the order of their time. Everything runs in the goroutine that calls [Sim.Run], so a seed
// replays a run exactly, and a second of virtual time takes as long as its packets need.
//
// A [Port] is the output of a host or switch onto a link: a FIFO with a rate, a delay, a buffer of its own or a share
// of the switch's, a threshold above which it marks frames that may be marked, and random loss. [Dumbbell] and
// [LeafSpine] build topologies.
//
// A [Stream] is a pair of connected VIs. A [TCP] flow is a textbook sender and receiver: CUBIC (RFC 9438), DCTCP
// (RFC 8257) or BBRv1 with selective acknowledgement of every packet, losses found by time
// (RFC 8985), tail loss probes, and a timer of at least 200 ms. It has neither HyStart nor delayed
// acknowledgements. Only BBR is paced, in bursts of a millisecond as by segmentation offload.
//
// The simulation leaves out the processors: a host takes what has arrived within [HostDelay], whatever it is, unless
// [HostConfig] makes it busy at random times. The NIC of a host takes all that the engine hands it and sends it at the rate of the link.
package fabric
