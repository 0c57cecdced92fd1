/* Transport raw-afxdp of package bench in C: AF_XDP rings with nothing above them, by
 * the kernel's headers and libc. It takes the steps of bench/rawxdp.go, framed.go and
 * package xdpnic in their order, and its frames are the same: the other side may be
 * either program.
 *
 * Descriptor 3 is an AF_XDP socket, 4 the memory:
 *
 *	0                      pool      samples        pattern
 *	| RX chunks | TX chunks | round trips, ns | content of checked messages |
 *
 * A line of standard input is a command. A line of standard output answers it: ok and
 * figures, or error and the reason, with which the program ends.
 *
 *	open IFINDEX QUEUE CHUNK CHUNKS SNDBUF BUDGET SKIP COPY LARGEST PATIENCE POOL SAMPLES PATTERN
 *	connect PAYLOAD WINDOW HEADERS             headers in hexadecimal digits
 *	ping | echo | send | receive ID BYTES MESSAGES LEAD CHECK    ok WALL CPU WAITED, in ns
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <linux/if_xdp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef XDP_MAX_TX_SKB_BUDGET /* Linux 6.17 */
#define XDP_MAX_TX_SKB_BUDGET 9
#endif

enum { SOCKET = 3, MEMORY = 4 };

/* As in bench/framed.go. */
enum { HEADER = 8, BATCH = 32, LEASE = 64, DATA = 1, CREDIT = 2, READY = 3, MOST_SAMPLES = 1 << 16 };

/* As in bench/pattern.go. */
enum { LARGEST_MESSAGE = 1 << 20, SHIFT = 8191, STEP = 257 };

static void __attribute__((format(printf, 1, 2), noreturn)) fail(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fputs("error ", stdout);
	vprintf(format, args);
	putchar('\n');
	va_end(args);
	fflush(stdout);
	exit(1);
}

static void check(int result, const char *what)
{
	if (result < 0)
		fail("%s: %s", what, strerror(errno));
}

static int64_t clock_of(clockid_t id)
{
	struct timespec t;
	clock_gettime(id, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* A ring: own is this side's index, seen the kernel's as it was last read. */
struct ring {
	uint32_t *producer, *consumer;
	void *entries;
	uint32_t own, seen, mask;
};

static struct ring rx, tx, fill, completion;

static uint32_t load(const uint32_t *index) { return __atomic_load_n(index, __ATOMIC_ACQUIRE); }
static void store(uint32_t *index, uint32_t v) { __atomic_store_n(index, v, __ATOMIC_RELEASE); }

/* readable is how many entries the kernel has produced, up to most. */
static uint32_t readable(struct ring *r, uint32_t most)
{
	if (r->seen - r->own < most)
		r->seen = load(r->producer);
	return r->seen - r->own < most ? r->seen - r->own : most;
}

static void release(struct ring *r, uint32_t n) { store(r->consumer, r->own += n); }

/* writable says whether n entries are free. */
static int writable(struct ring *r, uint32_t n)
{
	if (r->seen + r->mask + 1 - r->own < n)
		r->seen = load(r->consumer);
	return r->seen + r->mask + 1 - r->own >= n;
}

static void submit(struct ring *r, uint32_t n) { store(r->producer, r->own += n); }

static uint32_t left(struct ring *r) { return r->own - load(r->consumer); }

/* The queue. */
static struct {
	uint32_t chunk, chunks, skip, largest;
	int64_t patience;
	uint8_t *memory;
	int64_t *samples;
	const uint8_t *pattern;
	uint8_t *into; /* where content is copied to; NULL: it stays in the chunk */

	uint64_t *free; /* TX chunks, last in, first out */
	uint32_t nfree;
	uint64_t room;    /* the chunk that next gave */
	uint32_t pending; /* TX entries that are not published */

	struct xdp_desc lease[LEASE]; /* taken off the RX ring */
	uint32_t got, at;

	uint8_t headers[64];
	uint32_t headed; /* content for which the headers' lengths are set */
} q;

/* The connection, and the round that is under way. */
static struct {
	uint32_t payload, window; /* content of a frame; frames that the peer takes */

	uint32_t id, bytes, messages, lead, check;
	uint32_t per; /* frames of a message */
	uint32_t sent, credited, received, queued;
	int ready;
} now;

/* A wait in vain, as in bench/watch.go. */
static uint32_t polls;
static int64_t since;

static void progress(void) { polls = 0; }

static void idle(void)
{
	if (++polls % 4096 != 0)
		return;
	int64_t t = clock_of(CLOCK_MONOTONIC);
	if (polls == 4096)
		since = t;
	else if (t - since > q.patience)
		fail("stalled");
	if (polls >= 1u << 31)
		polls = 2 * 4096;
}

static void map_ring(struct ring *r, int option, off_t page, const struct xdp_ring_offset *o, uint32_t n, size_t entry)
{
	check(setsockopt(SOCKET, SOL_XDP, option, &n, sizeof n), "ring");
	uint8_t *m = mmap(NULL, o->desc + n * entry, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, SOCKET, page);
	if (m == MAP_FAILED)
		fail("map ring: %s", strerror(errno));
	*r = (struct ring){(uint32_t *)(m + o->producer), (uint32_t *)(m + o->consumer), m + o->desc, 0, 0, n - 1};
}

static void open_queue(const char *line)
{
	unsigned ifindex, queue, copy;
	int sndbuf, budget;
	uint64_t pool, samples, pattern;
	if (sscanf(line, "open %u %u %u %u %d %d %u %u %u %" SCNd64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &ifindex, &queue, &q.chunk, &q.chunks, &sndbuf,
		   &budget, &q.skip, &copy, &q.largest, &q.patience, &pool, &samples, &pattern) != 13)
		fail("cannot read: %s", line);
	size_t size = pattern + LARGEST_MESSAGE + SHIFT;
	q.memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, MEMORY, 0);
	if (q.memory == MAP_FAILED)
		fail("map memory: %s", strerror(errno));
	q.samples = (int64_t *)(q.memory + samples);
	q.pattern = q.memory + pattern;
	q.free = calloc(q.chunks, sizeof *q.free);
	q.into = copy ? calloc(1, q.largest) : NULL;
	if (!q.free || (copy && !q.into))
		fail("no memory");
	while (q.nfree < q.chunks) { /* the lowest address on top */
		q.free[q.nfree] = (uint64_t)(2 * q.chunks - 1 - q.nfree) * q.chunk;
		q.nfree++;
	}

	struct xdp_umem_reg umem = {.addr = (uintptr_t)q.memory, .len = pool, .chunk_size = q.chunk};
	check(setsockopt(SOCKET, SOL_XDP, XDP_UMEM_REG, &umem, sizeof umem), "umem");
	struct xdp_mmap_offsets off;
	socklen_t n = sizeof off;
	check(getsockopt(SOCKET, SOL_XDP, XDP_MMAP_OFFSETS, &off, &n), "ring offsets");
	map_ring(&fill, XDP_UMEM_FILL_RING, XDP_UMEM_PGOFF_FILL_RING, &off.fr, q.chunks, sizeof(uint64_t));
	map_ring(&completion, XDP_UMEM_COMPLETION_RING, XDP_UMEM_PGOFF_COMPLETION_RING, &off.cr, q.chunks, sizeof(uint64_t));
	map_ring(&rx, XDP_RX_RING, XDP_PGOFF_RX_RING, &off.rx, q.chunks, sizeof(struct xdp_desc));
	map_ring(&tx, XDP_TX_RING, XDP_PGOFF_TX_RING, &off.tx, q.chunks, sizeof(struct xdp_desc));
	sndbuf /= 2; /* the kernel doubles it */
	check(setsockopt(SOCKET, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof sndbuf), "SO_SNDBUF");
	/* Older kernels do not know it; no harm. */
	(void)setsockopt(SOCKET, SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &budget, sizeof budget);

	for (uint32_t i = 0; i < q.chunks; i++)
		((uint64_t *)fill.entries)[i] = (uint64_t)i * q.chunk;
	submit(&fill, q.chunks);
	struct sockaddr_xdp at = {.sxdp_family = AF_XDP, .sxdp_flags = XDP_COPY | XDP_USE_NEED_WAKEUP, .sxdp_ifindex = ifindex, .sxdp_queue_id = queue};
	for (int tries = 0;; tries++) { /* a queue is busy for a moment after its socket closes */
		if (bind(SOCKET, (struct sockaddr *)&at, sizeof at) == 0)
			return;
		if (errno != EBUSY || tries == 400)
			fail("bind: %s", strerror(errno));
		usleep(5000);
	}
}

/* reap takes sent chunks back. */
static void reap(void)
{
	uint32_t n = readable(&completion, UINT32_MAX);
	if (n == 0)
		return;
	for (uint32_t i = 0; i < n; i++)
		q.free[q.nfree++] = ((uint64_t *)completion.entries)[(completion.own + i) & completion.mask];
	release(&completion, n);
}

/* flush publishes what is queued, and kicks until the kernel has taken it. */
static void flush(void)
{
	now.queued = 0;
	if (q.pending) {
		submit(&tx, q.pending);
		q.pending = 0;
	} else if (left(&tx) == 0) {
		reap();
		progress();
		return;
	}
	for (;;) {
		if (sendto(SOCKET, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0)
			switch (errno) {
			case EINTR: case EAGAIN: case ENOBUFS: case ENOMEM:
			case EBUSY: /* a frame is lost; who counts them will say so */
				break;
			default:
				fail("sendto: %s", strerror(errno));
			}
		uint32_t rest = left(&tx);
		reap();
		if (rest == 0)
			break;
		idle();
	}
	progress();
}

/* next is the room for the content of the next frame. */
static uint8_t *next(void)
{
	while (q.nfree == 0) {
		flush();
		idle();
	}
	q.room = q.free[--q.nfree];
	return q.memory + q.room + q.skip;
}

static void put16(uint8_t *p, uint32_t v) { p[0] = v >> 8, p[1] = v; }

/* head sets the lengths of the headers, and the checksum of IPv4. */
static void head(uint32_t n)
{
	enum { ETHERNET = 14, IPV4 = 20, UDP = 8 };
	uint8_t *ip = q.headers + ETHERNET;
	q.headed = n;
	put16(q.headers + q.skip - 4, UDP + n);
	if (ip[0] >> 4 == 6) {
		put16(ip + 4, UDP + n);
		return;
	}
	put16(ip + 2, IPV4 + UDP + n);
	put16(ip + 10, 0);
	uint32_t sum = 0;
	for (int i = 0; i < IPV4; i += 2)
		sum += ip[i] << 8 | ip[i + 1];
	sum = (sum >> 16) + (sum & 0xffff);
	put16(ip + 10, ~(sum + (sum >> 16)) & 0xffff);
}

/* commit queues the frame that next gave, with its first n bytes. */
static void commit(uint32_t n)
{
	if (n != q.headed)
		head(n);
	memcpy(q.memory + q.room, q.headers, q.skip);
	while (!writable(&tx, q.pending + 1))
		flush();
	((struct xdp_desc *)tx.entries)[(tx.own + q.pending) & tx.mask] = (struct xdp_desc){.addr = q.room, .len = q.skip + n};
	q.pending++;
}

/* arrived is the content of the next frame received; NULL: there is none. */
static uint8_t *arrived(uint32_t *n)
{
	if (q.at == q.got) {
		if (q.got > 0) {
			for (uint32_t i = 0; i < q.got; i++)
				((uint64_t *)fill.entries)[(fill.own + i) & fill.mask] = q.lease[i].addr & -(uint64_t)q.chunk;
			submit(&fill, q.got);
		}
		q.at = 0;
		q.got = readable(&rx, LEASE);
		if (q.got == 0)
			return NULL;
		for (uint32_t i = 0; i < q.got; i++)
			q.lease[i] = ((struct xdp_desc *)rx.entries)[(rx.own + i) & rx.mask];
		release(&rx, q.got);
	}
	struct xdp_desc *d = &q.lease[q.at++];
	uint8_t *frame = q.memory + d->addr;
	*n = 0;
	if (d->len < q.skip)
		return frame;
	uint32_t udp = frame[q.skip - 4] << 8 | frame[q.skip - 3];
	*n = udp < 8 ? 0 : udp - 8;
	if (*n > d->len - q.skip) /* a NIC may have padded the frame; UDP knows the length */
		*n = d->len - q.skip;
	return frame + q.skip;
}

static void put_header(uint8_t *p, uint32_t kind, uint32_t sequence)
{
	p[0] = kind, p[1] = 0;
	p[2] = now.id, p[3] = now.id >> 8;
	for (int i = 0; i < 4; i++)
		p[4 + i] = sequence >> 8 * i;
}

/* tell sends a frame without content at once. */
static void tell(uint32_t kind, uint32_t sequence)
{
	put_header(next(), kind, sequence);
	commit(HEADER);
	flush();
}

/* await polls once: the content of a data frame, or NULL. */
static uint8_t *await(uint32_t *n)
{
	uint8_t *p = arrived(n);
	if (!p) {
		idle();
		return NULL;
	}
	if (*n < HEADER || (uint32_t)(p[2] | p[3] << 8) != now.id)
		return NULL; /* a stray frame */
	progress();
	uint32_t sequence = p[4] | p[5] << 8 | p[6] << 16 | (uint32_t)p[7] << 24;
	switch (p[0]) {
	case DATA:
		if (sequence != now.received)
			fail("data frame %u came, not %u: frames were lost or changed order", sequence, now.received);
		now.received++;
		*n -= HEADER;
		return p + HEADER;
	case CREDIT:
		if ((int32_t)(sequence - now.credited) > 0 && (int32_t)(now.sent - sequence) >= 0)
			now.credited = sequence;
		break;
	case READY:
		now.ready = 1;
	}
	return NULL;
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

static const uint8_t *content(uint32_t i, uint32_t off) { return q.pattern + (uint64_t)i * STEP % SHIFT + off; }

/* put queues the frames of message i, and hands them on in batches. */
static void put(uint32_t i)
{
	uint32_t n;
	for (uint32_t off = 0; off < now.bytes; off += now.payload) {
		while (now.sent - now.credited >= now.window) {
			flush();
			await(&n);
		}
		uint8_t *p = next();
		n = least(now.payload, now.bytes - off);
		put_header(p, DATA, now.sent);
		if (now.check)
			memcpy(p + HEADER, content(i, off), n);
		commit(HEADER + n);
		now.sent++;
		if (++now.queued == BATCH)
			flush();
	}
}

static void verify(uint32_t i, uint32_t off, const uint8_t *got, uint32_t n)
{
	const uint8_t *want = content(i, off);
	if (memcmp(got, want, n) == 0)
		return;
	for (uint32_t j = 0; j < n; j++)
		if (got[j] != want[j])
			fail("message %u: byte %u is 0x%02x, not 0x%02x", i, off + j, got[j], want[j]);
}

/* take receives the frames of message i. */
static void take(uint32_t i, int credits)
{
	for (uint32_t off = 0; off < now.bytes; off += now.payload) {
		uint32_t n, want = least(now.payload, now.bytes - off);
		uint8_t *body;
		while (!(body = await(&n)))
			;
		if (n != want)
			fail("message %u: a frame of %u bytes, not %u", i, n, want);
		if (q.into)
			body = memcpy(q.into + off, body, n);
		if (now.check)
			verify(i, off, body, n);
		if (credits && now.received % (now.window / 4) == 0)
			tell(CREDIT, now.received);
	}
}

static void ping(void)
{
	int64_t last = clock_of(CLOCK_MONOTONIC);
	for (uint32_t i = 0; i < now.lead + now.messages; i++) {
		put(i);
		flush();
		take(i, now.per > now.window);
		now.credited = now.sent; /* the echo confirms */
		int64_t t = clock_of(CLOCK_MONOTONIC);
		if (i >= now.lead)
			q.samples[i - now.lead] = t - last;
		last = t;
	}
}

static void echo(void)
{
	for (uint32_t i = 0; i < now.lead + now.messages; i++) {
		take(i, now.per > now.window);
		now.credited = now.sent; /* the next message confirms the last echo */
		put(i);
		flush();
	}
}

static void send_stream(void)
{
	uint32_t n;
	for (uint32_t i = 0; i < now.messages; i++)
		put(i);
	flush();
	while (now.credited != now.sent)
		await(&n);
}

static void receive_stream(void)
{
	for (uint32_t i = 0; i < now.messages; i++)
		take(i, 1);
	if (now.received % (now.window / 4) != 0)
		tell(CREDIT, now.received);
}

/* waited is how long this thread could have run and had no CPU; 0: not known. */
static int64_t waited(void)
{
	int64_t ran, ns = 0;
	FILE *f = fopen("/proc/thread-self/schedstat", "r");
	if (f && fscanf(f, "%" SCNd64 " %" SCNd64, &ran, &ns) != 2)
		ns = 0;
	if (f)
		fclose(f);
	return ns;
}

static void run(const char *op, const char *line)
{
	if (sscanf(line, "%*s %u %u %u %u %u", &now.id, &now.bytes, &now.messages, &now.lead, &now.check) != 5)
		fail("cannot read: %s", line);
	int pinging = !strcmp(op, "ping");
	if (now.bytes < 1 || now.bytes > q.largest || now.payload < 1 || now.window < 4 || (pinging && now.messages > MOST_SAMPLES))
		fail("cannot do: %s", line);
	now.per = (now.bytes + now.payload - 1) / now.payload;
	now.sent = now.credited = now.received = now.queued = now.ready = 0;
	progress();
	void (*work)(void) = pinging ? ping : echo;
	if (!strcmp(op, "send")) {
		uint32_t n;
		while (!now.ready)
			await(&n);
		work = send_stream;
	} else if (!strcmp(op, "receive")) {
		tell(READY, 0);
		work = receive_stream;
	}
	int64_t w = waited(), cpu = clock_of(CLOCK_PROCESS_CPUTIME_ID), wall = clock_of(CLOCK_MONOTONIC);
	work();
	wall = clock_of(CLOCK_MONOTONIC) - wall;
	cpu = clock_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	printf("ok %" PRId64 " %" PRId64 " %" PRId64 "\n", wall, cpu, waited() - w);
}

static void connect_peer(const char *line)
{
	char digits[2 * sizeof q.headers + 1];
	if (sscanf(line, "connect %u %u %128s", &now.payload, &now.window, digits) != 3 || strlen(digits) != 2 * q.skip)
		fail("cannot read: %s", line);
	for (uint32_t i = 0; i < q.skip; i++)
		sscanf(digits + 2 * i, "%2hhx", &q.headers[i]);
	q.headed = UINT32_MAX;
	puts("ok");
}

int main(void)
{
	char line[512], op[16];
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (sscanf(line, "%15s", op) != 1)
			fail("an empty line");
		if (!strcmp(op, "open")) {
			open_queue(line);
			puts("ok");
		} else if (!strcmp(op, "connect")) {
			connect_peer(line);
		} else if (!strcmp(op, "ping") || !strcmp(op, "echo") || !strcmp(op, "send") || !strcmp(op, "receive")) {
			run(op, line);
		} else {
			fail("no such command: %s", line);
		}
		fflush(stdout);
	}
	return 0;
}
