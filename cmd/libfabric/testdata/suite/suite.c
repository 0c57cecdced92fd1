/* The frame of the suite. */
#include "suite.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/socket.h>

int server, ours;
const char *provider, *address;
static int peer = -1, checks;
static const char *running = "start";

void check(int that, const char *file, int line, const char *text, const char *promise, ...)
{
	va_list args;

	checks++;
	if (that)
		return;
	fprintf(stderr, "%s: %s:%d: %s: not (%s): ", server ? "server" : "client", file, line, running, text);
	va_start(args, promise);
	vfprintf(stderr, promise, args);
	va_end(args);
	fprintf(stderr, "\n");
	exit(1);
}

void ok(long result, const char *file, int line, const char *text)
{
	check(result == 0, file, line, text, "%ld, %s", result, fi_strerror((int)-result));
}

double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int time_left(double end)
{
	sched_yield(); /* a suite beside this one may have the same processors */
	return seconds() < end;
}

void tell(const void *data, size_t n)
{
	CHECK(send(peer, data, n, MSG_NOSIGNAL) == (ssize_t)n, "the other side is there");
}

void hear(void *data, size_t n)
{
	CHECK(recv(peer, data, n, MSG_WAITALL) == (ssize_t)n, "the other side is there");
}

/* The bed whose queues are read while this side waits for the other: the program makes progress. */
static struct bed *current;

void progress(struct bed *b)
{
	char none[sizeof(struct fi_cq_tagged_entry)];

	if (b->tx)
		fi_cq_read(b->tx, none, 0);
	if (b->rx)
		fi_cq_read(b->rx, none, 0);
}

int heard(int ms)
{
	struct pollfd p = {.fd = peer, .events = POLLIN};

	return poll(&p, 1, ms) != 0;
}

void step(void)
{
	char c = 's';

	tell(&c, 1);
	while (current && !heard(1))
		progress(current);
	hear(&c, 1);
}

static void meet(const char *port)
{
	struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, *a;
	int on = 1, s, i;

	CHECK(getaddrinfo(address, port, &want, &a) == 0, "the address is numeric");
	s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (server) {
		setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		CHECK(bind(s, a->ai_addr, a->ai_addrlen) == 0 && listen(s, 1) == 0, "the port is free");
		peer = accept(s, NULL, NULL);
		close(s);
	} else {
		for (i = 0; i < 300 && connect(s, a->ai_addr, a->ai_addrlen) != 0; i++)
			usleep(100000);
		peer = s;
	}
	freeaddrinfo(a);
	setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	step();
}

struct fi_info *hints_of(uint64_t caps)
{
	struct fi_info *h = fi_allocinfo();

	h->caps = caps ? caps : FI_MSG | FI_RMA;
	h->ep_attr->type = FI_EP_MSG;
	h->fabric_attr->prov_name = strdup(provider);
	h->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	h->addr_format = strchr(address, ':') ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
	return h;
}

struct fi_info *find(const char *node, const char *service, uint64_t flags, uint64_t caps)
{
	struct fi_info *h = hints_of(caps), *info = NULL;

	OK(fi_getinfo(FI_VERSION(1, 17), node, service, flags, h, &info));
	fi_freeinfo(h);
	return info;
}

void open_bed(struct bed *b, const struct want *w)
{
	struct fi_eq_attr eq = {.wait_obj = w->eq_wait ? w->eq_wait : FI_WAIT_UNSPEC, .flags = FI_WRITE};

	memset(b, 0, sizeof *b);
	current = b;
	b->info = find(address, NULL, server ? FI_SOURCE : 0, w->caps);
	if (w->progress)
		b->info->domain_attr->data_progress = w->progress;
	if (w->api)
		b->info->fabric_attr->api_version = w->api;
	OK(fi_fabric(b->info->fabric_attr, &b->fabric, NULL));
	OK(fi_domain(b->fabric, b->info, &b->domain, NULL));
	OK(fi_eq_open(b->fabric, &eq, &b->eq, NULL));
}

void open_ep(struct bed *b, struct fi_info *info, const struct want *w)
{
	struct fi_cq_attr cq = {.wait_obj = w->cq_wait, .format = w->format ? w->format : FI_CQ_FORMAT_TAGGED};

	OK(fi_cq_open(b->domain, &cq, &b->tx, NULL));
	OK(fi_cq_open(b->domain, &cq, &b->rx, NULL));
	OK(fi_endpoint(b->domain, info, &b->ep, b));
	OK(fi_ep_bind(b->ep, &b->eq->fid, 0));
	OK(fi_ep_bind(b->ep, &b->tx->fid, FI_TRANSMIT | w->tx_bind));
	OK(fi_ep_bind(b->ep, &b->rx->fid, FI_RECV | w->rx_bind));
	if (w->counters) {
		struct fi_cntr_attr attr = {.wait_obj = w->cq_wait ? w->cq_wait : FI_WAIT_UNSPEC};
		struct {
			struct fid_cntr **at;
			uint64_t flag;
		} all[] = {{&b->sent, FI_SEND}, {&b->received, FI_RECV}, {&b->read, FI_READ}, {&b->written, FI_WRITE}};
		size_t i;

		for (i = 0; i < sizeof all / sizeof *all; i++) {
			OK(fi_cntr_open(b->domain, &attr, all[i].at, NULL));
			OK(fi_ep_bind(b->ep, &(*all[i].at)->fid, all[i].flag));
		}
	}
	OK(fi_enable(b->ep));
}

void listen_at(struct bed *b)
{
	char name[64];
	size_t n = sizeof name;

	if (server) {
		OK(fi_passive_ep(b->fabric, b->info, &b->pep, b));
		OK(fi_pep_bind(b->pep, &b->eq->fid, 0));
		OK(fi_listen(b->pep));
		OK(fi_getname(&b->pep->fid, name, &n));
		tell(&n, sizeof n);
		tell(name, n);
	} else {
		hear(&n, sizeof n);
		free(b->info->dest_addr);
		b->info->dest_addr = malloc(n);
		b->info->dest_addrlen = n;
		hear(b->info->dest_addr, n);
	}
}

size_t any_event(struct bed *b, uint32_t *what, struct fi_eq_cm_entry *entry, size_t room)
{
	struct fi_eq_err_entry error = {0};
	double end = seconds() + 15;
	ssize_t n;

	do { /* some providers see the end of a connection only when its CQs are read */
		n = fi_eq_sread(b->eq, what, entry, sizeof *entry + room, 20, 0);
		progress(b);
	} while (n == -FI_EAGAIN && seconds() < end);
	if (n == -FI_EAVAIL)
		fi_eq_readerr(b->eq, &error, 0);
	CHECK(n != -FI_EAGAIN, "fi_eq(3): an event comes within 15 s: the %s has %s", server ? "server" : "client", b->ep ? "an endpoint" : "none");
	CHECK(n >= (ssize_t)sizeof *entry, "fi_eq(3): an event has an entry; got %zd, error %d", n, error.err);
	return (size_t)n - sizeof *entry;
}

size_t event(struct bed *b, uint32_t want, struct fi_eq_cm_entry *entry, size_t room)
{
	uint32_t what = ~0U;
	size_t n = any_event(b, &what, entry, room);

	CHECK(what == want, "fi_cm(3): event %u is next, not %u", want, what);
	return n;
}

void connect_bed(struct bed *b, const struct want *w)
{
	struct fi_eq_cm_entry entry;

	if (server) {
		event(b, FI_CONNREQ, &entry, 0);
		open_ep(b, entry.info, w);
		OK(fi_accept(b->ep, NULL, 0));
		fi_freeinfo(entry.info);
	} else {
		open_ep(b, b->info, w);
		OK(fi_connect(b->ep, b->info->dest_addr, NULL, 0));
	}
	event(b, FI_CONNECTED, &entry, 0);
	CHECK(entry.fid == &b->ep->fid, "fi_eq(3): the fid of FI_CONNECTED is the endpoint's");
}

void open_connected(struct bed *b, const struct want *w)
{
	open_bed(b, w);
	listen_at(b);
	connect_bed(b, w);
	step();
}

static void close_all(struct bed *b)
{
	struct fid *all[] = {
		b->ep ? &b->ep->fid : NULL, b->pep ? &b->pep->fid : NULL, b->tx ? &b->tx->fid : NULL,
		b->rx ? &b->rx->fid : NULL, b->sent ? &b->sent->fid : NULL, b->received ? &b->received->fid : NULL,
		b->read ? &b->read->fid : NULL, b->written ? &b->written->fid : NULL,
		b->eq ? &b->eq->fid : NULL, b->domain ? &b->domain->fid : NULL, b->fabric ? &b->fabric->fid : NULL,
	};
	size_t i;

	current = NULL;
	for (i = 0; i < sizeof all / sizeof *all; i++)
		if (all[i])
			OK(fi_close(all[i]));
	fi_freeinfo(b->info);
}

void close_bed(struct bed *b)
{
	step();
	close_all(b);
}

void abandon(struct bed *b)
{
	close_all(b);
	printf("suite: %d checks\n", checks);
	exit(0);
}

int completion_at(struct fid_cq *cq, struct fi_cq_tagged_entry *entry, const char *file, int line)
{
	double end = seconds() + 15;
	ssize_t n;

	while ((n = fi_cq_read(cq, entry, 1)) == -FI_EAGAIN && time_left(end))
		;
	check(n != -FI_EAGAIN, file, line, "completion", "the operation completes");
	return n == 1 ? 0 : (int)n;
}

int completion_error(struct fid_cq *cq, struct fi_cq_err_entry *error)
{
	struct {
		struct fi_cq_err_entry entry;
		uint64_t behind;
	} all = {.behind = 0x7777};
	struct fi_cq_tagged_entry entry;
	int n = completion(cq, &entry);

	CHECK(n == -FI_EAVAIL, "fi_cq(3): fi_cq_read returns -FI_EAVAIL for an operation that failed, not %d", n);
	n = (int)fi_cq_readerr(cq, &all.entry, 0);
	CHECK(n == 1, "fi_cq(3): fi_cq_readerr returns the entry, not %d", n);
	CHECK(all.behind == 0x7777, "fi_cq(3): nothing is written behind the entry of the program's headers");
	*error = all.entry;
	return error->err;
}

void fill(void *data, size_t n, unsigned seed)
{
	unsigned char *p = data;
	size_t i;

	for (i = 0; i < n; i++)
		p[i] = (unsigned char)(seed + i * 7 + (i >> 8));
}

int filled(const void *data, size_t n, unsigned seed)
{
	const unsigned char *p = data;
	size_t i;

	for (i = 0; i < n; i++)
		if (p[i] != (unsigned char)(seed + i * 7 + (i >> 8)))
			return 0;
	return 1;
}

static const struct {
	const char *name;
	void (*run)(void);
	int on_demand; /* only if it is named */
} tests[] = {
	{"killed", test_killed, 1},
	{"doorbells", test_doorbells, 1},
	{"rdmkilled", test_rdm_killed, 1},
	{"rdmlate", test_rdm_late, 1},
	{"info", test_info, 0},
	{"objects", test_objects, 0},
	{"interfaces", test_interfaces, 1},
	{"connections", test_connections, 0},
	{"messages", test_messages, 0},
	{"completions", test_completions, 0},
	{"waiting", test_waiting, 0},
	{"rma", test_rma, 0},
	{"threads", test_threads, 0},
	{"rdm", test_rdm, 0},
	{"ends", test_ends, 0},
};

int main(int argc, char **argv)
{
	size_t i;
	int j, chosen;

	if (argc < 5)
		return 2;
	server = strcmp(argv[1], "server") == 0;
	provider = argv[2];
	ours = strcmp(provider, "viaxdp") == 0;
	address = argv[3];
	meet(argv[4]);
	for (i = 0; i < sizeof tests / sizeof *tests; i++) {
		chosen = argc == 5 && !tests[i].on_demand;
		for (j = 5; j < argc; j++)
			chosen |= strcmp(argv[j], tests[i].name) == 0;
		if (!chosen)
			continue;
		running = tests[i].name;
		step();
		tests[i].run();
	}
	step();
	printf("suite: %d checks\n", checks);
	return 0;
}
