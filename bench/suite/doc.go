// Package suite is the reference suite of via-xdp: groups of measurements. Each group
// answers one question.
//
//	Run(config)
//	   |  group by group
//	   v
//	group.run(session) --> report.Group
//	   |          \
//	   |           session.bed(mtu): two pinned workers, two veth pairs
//	   v
//	bench.Bed.Run(plan), tasks of the workers, package peers
//
// # Groups
//
//	pingpong, window       MyVIA's two tests, 4 bytes to 1 MiB
//	baselines              all transports of package bench
//	vibe-*                 VIBe: operations, and what each feature of a VI costs
//	load                   latency at a given rate, without coordinated omission
//	loss                   what faults of the network cost, beside kernel TCP
//	incast                 one, two and four senders into one receiver, beside kernel TCP
//	sharing-*              VIs through one bottleneck with kernel TCP, and with each other
//	fabric-*               VIs in a simulated network: shares of a bottleneck, flows of 64 hosts, incast, a spine that fails
//	abl-*                  one part of the design left out at a time
//	layers-*               packages vianet and mvich, beside package net and MPICH; programs behind proxies
//	peers                  other people's programs
//
// # Method
//
// A group has rows. Each turn measures all of them, one after the other (A B A B), so
// that drift of the machine affects all alike. The report keeps every turn of each
// figure, and shows the median. A row that was disturbed in a turn has the reason.
// Groups run on beds of their MTU, which are made when they are first needed and last
// until Run returns; each row opens and closes its endpoints in each turn.
//
// # Adding a group
//
// A group that runs plans of package bench is an experiment: an axis, and parts with
// rows and sizes. Any other is a group with a run of its own. Both go into the list of
// their family, and those into groups.
//
// # Privileges
//
// Root, or CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF.
//
// # Concurrency
//
// Run blocks; measuring twice at the same time disturbs both. Estimate and Groups may
// be called from anywhere.
package suite
