// Package peers runs other people's benchmarks on a veth pair of via-xdp's
// own, so that a Virtual Interface can be compared with what a user might take
// instead: sockperf and iperf3 on sockets, libfabric's fi_pingpong, UCX's
// ucx_perftest.
//
//	             Bed.Measure(row)
//	+- CPU 0 ---------+      +- CPU 1 ---------+
//	|    client  via0 | ==== | via0  server    |   a namespace each
//	+-----------------+      +-----------------+
//
// The pair has no XDP program, but while [VIARows] run: it would take the kernel's offloads away,
// which these programs live on. The pair is the only way between the two
// namespaces, so that whatever a program reports has gone over it.
//
// # What the figures mean
//
// A [Figures] has latencies one way, in microseconds. Each program has a
// definition of its own:
//
//   - sockperf prints half of each round trip unless it is asked for --full-rtt:
//     client_statistics in src/client.cpp divides rxTime - txTime by 2 before
//     it sorts. The first 400 ms and the last 50 ms are left out. Messages may
//     be late or be lost on UDP; it counts those that came back.
//   - fi_pingpong prints "usec/xfer", the mean: show_perf in util/pingpong.c
//     divides the time of the whole run by the iterations and by the 2
//     transfers of each. There is no warm-up, and with endpoints of type rdm
//     the connection, 0.05 to 0.1 seconds, is made with the first message, under
//     the clock: only a long run shows the time of a message.
//   - ucx_perftest -t tag_lat prints half of a round trip, as
//     ucx_perf_calc_result in src/tools/perf/lib/libperf.c divides by a factor
//     of 2 for tests of the ping-pong type: the median of the last 2048
//     iterations (TIMING_QUEUE_SIZE in libperf_int.h), and the mean of all
//     behind the warm-up.
//   - ucx_perftest -t tag_bw prints messages per second at the sender, which
//     does not wait for the receiver; it flushes at the end. Its MB are 2^20
//     bytes; a Figures has 10^6.
//   - iperf3 writes a stream of blocks, which TCP may join, and counts the bytes
//     that its server has received (end.sum_received of its JSON). Messages are
//     blocks here.
//
// sockperf and iperf3 count in whole seconds. The names end in -spin where
// sockperf is asked not to sleep for messages (--nonblocked at both sides);
// fi_pingpong and ucx_perftest always poll. What polls has a CPU for itself:
// when it had to leave it often, the figures are marked as disturbed.
//
// # Servers
//
// A [Chain] is a server of Redis or PostgreSQL and its own load generator, directly or
// through two proxies, by TCP or VIA between them. Its [Figures] have times of whole requests.
//
// # Privileges
//
// A [Bed] or [Chain] needs CAP_SYS_ADMIN and CAP_NET_ADMIN, for namespaces; [Install] needs
// root. The programs are not part of this module; [Missing] lists those that
// this machine lacks.
//
// # Concurrency
//
// A Bed or Chain belongs to one goroutine. The rest is free of state.
//
// # Example
//
//	bed, err := peers.Start(1500)
//	if err != nil { ... }
//	defer bed.Close()
//	for _, row := range peers.Rows() {
//		figures, err := bed.Measure(ctx, row, 64, time.Second)
//		...
//	}
package peers
