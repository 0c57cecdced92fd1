// Package bench measures message transports side by side: Virtual Interfaces, the AF_XDP
// rings below them, and the kernel's TCP and UDP.
//
//	coordinator: Run(plan)
//	   |  JSON lines: open, connect, ping | echo, send | receive, close
//	   +-----------------------+
//	   v                       v
//	worker: Serve           worker: Serve        a process, pinned to a CPU
//	   |                       |
//	endpoint  <==messages==>  endpoint           one side of a transport
//
// # How it measures
//
// Both workers know the number of messages of a round beforehand, so that only messages
// travel while the clock runs. Latency is half of a round trip of a ping-pong, each one
// recorded in an HdrHistogram; that of RDMA reads is the whole time of one read, marked
// as a round trip wherever it is shown. Bandwidth is that of a stream in one direction,
// until its receiver has said that it has everything. A measurement begins with a warm-up
// in which every byte is checked. Each turn measures all rows of a [Plan], so that drift
// of the machine affects all rows alike. The report has the medians of the turns. It
// marks turns that were disturbed: by a hypervisor that took CPU time away, or by other
// threads on a CPU that a worker polls on.
//
// The peak bandwidth is not perftest's, which is measured between two completions. A
// measurement has about four rounds, each until the receiver has confirmed everything;
// the peak is that of the best round.
//
// The cost of a message beside its transfer is the same for all: the kernel's transports
// send from one buffer and receive into one, a VI sends from and receives into registered
// memory, raw AF_XDP leaves the bytes in the chunks. A message that does not fit in a
// frame of the path MTU travels as several frames, but on TCP, which segments by itself.
// Streams never lose a frame: TCP and reliable VIs retransmit, and the others use a
// window.
//
// # Transports
//
// [Names] and [Layers] list them, and [Summary] says what each is; asavie-xdp is built in
// with the tag asavie.
//
// Transports over AF_XDP poll; with the suffix -wait they sleep for events. RDMA only
// polls: the target of a write looks at the message's last word in memory, and the
// program whose memory is read waits only for the end of a round. Credits limit a stream
// of writes to a window, as they do a stream of sends. Up to 16 reads are under way.
//
// vianet uses memory of the NIC's arena, as a program does to avoid copies of long
// messages.
//
// A VI's stream posts its descriptors, and takes them off, in lists of up to 16
// (perftest's --post_list, and a poll for several completions); up to 512 messages, or 1
// MiB, are under way. A ping-pong posts them one by one.
//
// A [Row] may change how it uses a VI, by [VIOptions]: with a completion queue, handlers,
// many open VIs, several segments, buffers that are not reused. It may also disable a
// part of via-xdp's design, to show what that part is worth.
//
// # Beside plans
//
// A [Session] keeps a transport open for measurements outside of plans: [Session.Load],
// an open loop at a given rate, where a message's time counts from when it was due;
// [Session.Transactions], requests with replies; [Session.Stream] and [Session.PingPong],
// between which faults may begin; [Session.Connections]. A [Bed] made with Through has a
// forwarder on each pair that loses and reorders frames as [Bed.SetFaults] says, and
// [Session.Repeats] counts what was retransmitted for that. An [Incast] is streams of
// several senders into one receiver.
//
// # Privileges
//
// The kernel's transports need none. Those of AF_XDP need CAP_NET_ADMIN, CAP_NET_RAW and
// CAP_BPF; [Demo] needs CAP_SYS_ADMIN, too, for namespaces.
//
// # Concurrency
//
// Run, Demo, Measure and ListenAndServe block; several of them may run at the same time
// as long as they do not share an interface's queue. An endpoint, a Bed and a Worker
// belong to one goroutine.
package bench
