/* fi_endpoint(3), fi_tagged(3), fi_av(3): FI_EP_RDM. Over libfabric's tcp it is ofi_rxm that has it. */
#include "suite.h"

#include <netinet/in.h>
#include <rdma/fi_tagged.h>
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { MANY = 4, PIECES = 60000, LONG = 300001 }; /* PIECES: bytes that viaxdp sends at once in several pieces */

/* An endpoint with all that it needs. */
struct node {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *tx, *rx;
	struct fid_cntr *sent, *received;
	struct fid_ep *ep;
	char name[64];
	fi_addr_t peer; /* the other side's */
};

struct node_want {
	int port; /* 0: any */
	int counters;
	uint64_t cq_bind; /* e.g. FI_SELECTIVE_COMPLETION */
	enum fi_wait_obj wait;
};

static struct fi_info *find_rdm(void)
{
	struct fi_info *h = hints_of(FI_MSG | FI_TAGGED | FI_RMA | FI_DIRECTED_RECV | FI_SOURCE), *all = NULL, *i, *info;
	char rxm[64];

	h->ep_attr->type = FI_EP_RDM;
	if (!ours) {
		snprintf(rxm, sizeof rxm, "%s;ofi_rxm", provider);
		free(h->fabric_attr->prov_name);
		h->fabric_attr->prov_name = strdup(rxm);
	}
	OK(fi_getinfo(FI_VERSION(1, 17), address, NULL, server ? FI_SOURCE : 0, h, &all));
	for (i = all; i && strcmp(i->fabric_attr->prov_name, h->fabric_attr->prov_name) != 0; i = i->next)
		; /* the name of ofi_rxm over a provider begins with the provider's */
	CHECK(i, "fi_getinfo(3): the provider has FI_EP_RDM");
	info = fi_dupinfo(i);
	fi_freeinfo(all);
	fi_freeinfo(h);
	return info;
}

static void *port_of(struct fi_info *info)
{
	return (char *)info->src_addr + 2; /* of IPv4 and IPv6 */
}

static void open_cqs(struct node *n, const struct node_want *w)
{
	struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = w->wait};
	struct fi_cntr_attr attr = {.wait_obj = FI_WAIT_UNSPEC};

	OK(fi_cq_open(n->domain, &cq, &n->tx, NULL));
	OK(fi_cq_open(n->domain, &cq, &n->rx, NULL));
	if (w->counters) {
		OK(fi_cntr_open(n->domain, &attr, &n->sent, NULL));
		OK(fi_cntr_open(n->domain, &attr, &n->received, NULL));
	}
}

static void open_rdm_ep(struct node *n, const struct node_want *w)
{
	size_t length = sizeof n->name;

	OK(fi_endpoint(n->domain, n->info, &n->ep, n));
	OK(fi_ep_bind(n->ep, &n->av->fid, 0));
	OK(fi_ep_bind(n->ep, &n->tx->fid, FI_TRANSMIT | w->cq_bind));
	OK(fi_ep_bind(n->ep, &n->rx->fid, FI_RECV | w->cq_bind));
	if (w->counters) {
		OK(fi_ep_bind(n->ep, &n->sent->fid, FI_SEND));
		OK(fi_ep_bind(n->ep, &n->received->fid, FI_RECV));
	}
	OK(fi_enable(n->ep));
	OK(fi_getname(&n->ep->fid, n->name, &length));
	CHECK(length == n->info->src_addrlen, "fi_cm(3): fi_getname: of the length of the format");
}

static void open_node(struct node *n, const struct node_want *w)
{
	struct fi_av_attr av = {.type = FI_AV_TABLE};
	uint16_t port = htons((uint16_t)w->port);

	memset(n, 0, sizeof *n);
	n->info = find_rdm();
	CHECK(n->info->src_addr, "fi_getinfo(3): the source address is reported");
	memcpy(port_of(n->info), &port, sizeof port);
	OK(fi_fabric(n->info->fabric_attr, &n->fabric, NULL));
	OK(fi_domain(n->fabric, n->info, &n->domain, NULL));
	OK(fi_av_open(n->domain, &av, &n->av, NULL));
	open_cqs(n, w);
	open_rdm_ep(n, w);
}

static void close_node(struct node *n)
{
	struct fid *all[] = {
		n->ep ? &n->ep->fid : NULL, &n->tx->fid, &n->rx->fid, n->sent ? &n->sent->fid : NULL, n->received ? &n->received->fid : NULL,
		&n->av->fid, &n->domain->fid, &n->fabric->fid,
	};
	size_t i;

	for (i = 0; i < sizeof all / sizeof *all; i++)
		if (all[i])
			OK(fi_close(all[i]));
	fi_freeinfo(n->info);
}

static void exchange(struct node *n)
{
	char name[64];

	tell(n->name, sizeof n->name);
	hear(name, sizeof name);
	CHECK(fi_av_insert(n->av, name, 1, &n->peer, 0, NULL) == 1, "fi_av(3): fi_av_insert returns the number of addresses");
}

static struct node *others; /* that make progress with a node, if there are several on a side */

static void advance(struct node *n)
{
	char none[sizeof(struct fi_cq_tagged_entry)];
	int i;

	for (i = 0; i < (others ? MANY : 1); i++) {
		struct node *at = others ? others + i : n;

		fi_cq_read(at->tx, none, 0);
		fi_cq_read(at->rx, none, 0);
	}
}

/* As step, and makes progress of the node. */
static void meet_at(struct node *n)
{
	char c = 'm';

	tell(&c, 1);
	while (!heard(1))
		advance(n);
	hear(&c, 1);
}

/* As POST. */
#define TRY(n, call)                                                  \
	do {                                                          \
		ssize_t posted_;                                      \
		double end_ = seconds() + 15;                         \
		while ((posted_ = (call)) == -FI_EAGAIN && time_left(end_)) \
			advance(n);                                   \
		ok(posted_, __FILE__, __LINE__, #call);               \
	} while (0)

/* The next completion of a queue, while both make progress. */
#define next_of(n, cq, entry) next_at(n, cq, entry, NULL, __FILE__, __LINE__)
static int next_at(struct node *n, struct fid_cq *cq, struct fi_cq_tagged_entry *entry, fi_addr_t *from, const char *file, int line)
{
	double end = seconds() + 20;
	ssize_t got;

	while ((got = from ? fi_cq_readfrom(cq, entry, 1, from) : fi_cq_read(cq, entry, 1)) == -FI_EAGAIN && time_left(end))
		advance(n);
	check(got != -FI_EAGAIN, file, line, "completion", "the operation completes");
	return got == 1 ? 0 : (int)got;
}

#define error_of(n, cq, error) error_at(n, cq, error, __FILE__, __LINE__)
static int error_at(struct node *n, struct fid_cq *cq, struct fi_cq_err_entry *error, const char *file, int line)
{
	struct fi_cq_tagged_entry entry;
	int got = next_at(n, cq, &entry, NULL, file, line);

	CHECK(got == -FI_EAVAIL, "fi_cq(3): fi_cq_read returns -FI_EAVAIL for an operation that failed, not %d", got);
	memset(error, 0, sizeof *error);
	CHECK(fi_cq_readerr(cq, error, 0) == 1, "fi_cq(3): fi_cq_readerr returns the entry");
	return error->err;
}

/* The next completion, which must be no error. */
#define done_of(n, cq, entry) done_at(n, cq, entry, NULL, __FILE__, __LINE__)
static void done_at(struct node *n, struct fid_cq *cq, struct fi_cq_tagged_entry *entry, fi_addr_t *from, const char *file, int line)
{
	struct fi_cq_err_entry error = {0};
	int got = next_at(n, cq, entry, from, file, line);

	if (got == -FI_EAVAIL)
		fi_cq_readerr(cq, &error, 0);
	check(got == 0, file, line, "completion", "it completes well: %d, %s", got, fi_strerror(error.err));
}

static void open_pair(struct node *n, const struct node_want *w)
{
	open_node(n, w);
	exchange(n);
	meet_at(n);
}

static void close_pair(struct node *n)
{
	meet_at(n);
	close_node(n);
}

static void vectors_of_addresses(void)
{
	struct node_want w = {0};
	struct node n;
	fi_addr_t again, other[2], invalid[2];
	char name[64], text[100], two[128];
	size_t length = sizeof name, room = sizeof text;
	int errors[2];

	open_pair(&n, &w);
	OK(fi_av_lookup(n.av, n.peer, name, &length));
	CHECK(length == n.info->src_addrlen, "fi_av(3): fi_av_lookup returns the address's length");
	length = 1;
	fi_av_lookup(n.av, n.peer, text, &length);
	CHECK(length == n.info->src_addrlen, "fi_av(3): fi_av_lookup says how much room it needs, %zu", length);
	CHECK(fi_av_insert(n.av, name, 1, &again, 0, NULL) == 1, "fi_av(3): an address that is there");
	CHECK(fi_av_straddr(n.av, name, text, &room) && strstr(text, strchr(address, ':') ? "]:" : ":"), "fi_av(3): fi_av_straddr prints it");
	memcpy(two, name, n.info->src_addrlen);
	memcpy(two + n.info->src_addrlen, n.name, n.info->src_addrlen);
	CHECK(fi_av_insert(n.av, two, 2, other, 0, NULL) == 2, "fi_av(3): two addresses");
	CHECK(other[1] != n.peer, "fi_av(3): each address has its fi_addr_t");
	if (ours) {
		CHECK(again == n.peer && other[0] == n.peer, "an address keeps its fi_addr_t");
		CHECK(fi_tsend(n.ep, name, 1, NULL, 12345, 0, NULL) == -FI_EADDRNOTAVAIL, "an fi_addr_t that was not inserted");
		memset(two, 0, n.info->src_addrlen);
		CHECK(fi_av_insert(n.av, two, 2, invalid, FI_SYNC_ERR, errors) == 1, "fi_av(3): one that is invalid, and one behind it");
		CHECK(errors[0] == FI_EINVAL && !errors[1], "fi_av(3): FI_SYNC_ERR: %d, %d", errors[0], errors[1]);
		CHECK(invalid[0] == FI_ADDR_NOTAVAIL && invalid[1] == other[1], "fi_av(3): fi_addr_t of the valid one");
		OK(fi_av_remove(n.av, &invalid[1], 1, 0));
		OK(fi_av_remove(n.av, &other[1], 1, 0));
		CHECK(fi_av_lookup(n.av, other[1], name, &length) == -FI_EINVAL, "fi_av(3): fi_av_remove removes it");
		CHECK(fi_close(&n.av->fid) == -FI_EBUSY, "fi_av(3): -FI_EBUSY while an endpoint is bound");
	}
	close_pair(&n);
}

/* An endpoint of an fi_info that names no interface: it has its domain's. */
static void unnamed(void)
{
	struct node_want w = {0};
	struct fi_cq_tagged_entry entry;
	struct node n;

	open_node(&n, &w);
	OK(fi_close(&n.ep->fid));
	free(n.info->domain_attr->name);
	n.info->domain_attr->name = NULL;
	open_rdm_ep(&n, &w);
	exchange(&n);
	meet_at(&n);
	TRY(&n, fi_tsend(n.ep, NULL, 0, NULL, n.peer, 0, NULL));
	TRY(&n, fi_trecv(n.ep, NULL, 0, NULL, n.peer, 0, 0, NULL));
	done_of(&n, n.tx, &entry);
	done_of(&n, n.rx, &entry);
	close_pair(&n);
}

static const size_t sizes[] = {0, 1, 8, 1000, 4096, 16384, 16385, 16896, 16897, 65536, 131072, 131073, LONG, (2 << 20) + 3};

enum { SIZES = sizeof sizes / sizeof *sizes, LARGEST = (2 << 20) + 3 };

/* Both connect at once, as each one sends first; all sizes, expected and not. */
static void all_sizes(struct node *n, int late)
{
	static unsigned char out[LARGEST], in[LARGEST + 1];
	struct fi_cq_tagged_entry entry;
	fi_addr_t from;
	int i;

	for (i = 0; i < SIZES; i++) {
		size_t size = sizes[i];

		fill(out, size, (unsigned)(i + server));
		memset(in, 0xee, sizeof in);
		if (!late)
			TRY(n, fi_trecv(n->ep, in, size + 1, NULL, n->peer, (uint64_t)i, 0, in));
		meet_at(n);
		TRY(n, fi_tsend(n->ep, out, size, NULL, n->peer, (uint64_t)i, out));
		if (late) {
			meet_at(n);
			TRY(n, fi_trecv(n->ep, in, size + 1, NULL, n->peer, (uint64_t)i, 0, in));
		}
		done_at(n, n->rx, &entry, &from, __FILE__, __LINE__);
		CHECK(entry.op_context == in && entry.flags & FI_RECV && entry.flags & FI_TAGGED, "fi_cq(3): FI_RECV | FI_TAGGED and the context");
		CHECK(entry.tag == (uint64_t)i && entry.len == size, "fi_cq(3): tag %" PRIu64 " and length %zu", entry.tag, entry.len);
		CHECK(from == n->peer, "fi_cq(3): fi_cq_readfrom returns the source");
		CHECK(filled(in, size, (unsigned)(i + !server)) && in[size] == 0xee, "fi_tagged(3): %zu bytes arrive, %s", size, late ? "received late" : "expected");
		done_of(n, n->tx, &entry);
		CHECK(entry.op_context == out && entry.flags & FI_SEND && entry.flags & FI_TAGGED, "fi_cq(3): FI_SEND | FI_TAGGED and the context");
	}
	meet_at(n);
}

/* A long message takes only the memory that it has bytes for, not that of the whole receive. */
static void roomy(struct node *n)
{
	enum { PAGE = 4096, ROOM = 64 << 20, PAGES = ROOM / PAGE };
	static unsigned char data[LONG], in[PAGES];
	struct fi_cq_tagged_entry entry;
	unsigned char *room;
	int i, touched = 0;

	fill(data, LONG, 3);
	if (server) {
		meet_at(n);
		TRY(n, fi_tsend(n->ep, data, LONG, NULL, n->peer, 1, NULL));
		done_of(n, n->tx, &entry);
	} else {
		room = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		CHECK(room != MAP_FAILED, "mmap(2)");
		TRY(n, fi_trecv(n->ep, room, ROOM, NULL, n->peer, 1, 0, NULL));
		meet_at(n);
		done_of(n, n->rx, &entry);
		CHECK(entry.len == LONG && !memcmp(room, data, LONG), "fi_tagged(3): a message that is shorter than the receive");
		CHECK(!mincore(room, ROOM, in), "mincore(2)");
		for (i = 0; i < PAGES; i++)
			touched += in[i] & 1;
		CHECK(touched <= LONG / PAGE + 1, "the rest of the receive's memory is left alone: %d pages are in memory", touched);
		munmap(room, ROOM);
	}
	meet_at(n);
}

/* Which message a receive gets: by tag and ignored bits, the first that matches, in the order of sending. */
static void matching(struct node *n, size_t size)
{
	static unsigned char data[6][LONG];
	static const uint64_t tags[6] = {0x10, 0x20, 0x11, 0x21, 0x20, 0x12};
	static const struct {
		uint64_t tag, ignore;
		int gets;
	} wanted[6] = {{0x21, 0, 3}, {0x20, 0, 1}, {0x10, 0xf, 0}, {0x20, 0xf, 4}, {0, ~0ULL, 2}, {0, ~0ULL, 5}};
	struct fi_cq_tagged_entry entry;
	int i, expected;

	for (expected = 0; expected < 2; expected++) {
		if (server) {
			for (i = 0; i < 6; i++)
				fill(data[i], size, (unsigned)i);
			if (expected)
				meet_at(n);
			for (i = 0; i < 6; i++)
				TRY(n, fi_tsend(n->ep, data[i], size, NULL, n->peer, tags[i], NULL));
			if (!expected)
				meet_at(n);
			for (i = 0; i < 6; i++)
				done_of(n, n->tx, &entry);
		} else if (expected) { /* posted in the other order: a message goes to the first receive that matches */
			TRY(n, fi_trecv(n->ep, data[0], size, NULL, FI_ADDR_UNSPEC, 0x11, 0, data[0]));
			TRY(n, fi_trecv(n->ep, data[1], size, NULL, FI_ADDR_UNSPEC, 0x10, 0xf, data[1]));
			TRY(n, fi_trecv(n->ep, data[2], size, NULL, FI_ADDR_UNSPEC, 0, ~0ULL, data[2]));
			for (i = 3; i < 6; i++)
				TRY(n, fi_trecv(n->ep, data[i], size, NULL, FI_ADDR_UNSPEC, 0, ~0ULL, data[i]));
			meet_at(n);
			for (i = 0; i < 6; i++)
				done_of(n, n->rx, &entry);
			CHECK(filled(data[0], size, 2), "fi_tagged(3): without ignored bits all have to be equal");
			CHECK(filled(data[1], size, 0), "fi_tagged(3): ignored bits may differ");
			CHECK(filled(data[2], size, 1) && filled(data[3], size, 3) && filled(data[4], size, 4) && filled(data[5], size, 5), "fi_tagged(3): a message goes to the receive that was posted first");
		} else {
			meet_at(n);
			for (i = 0; i < 6; i++) {
				TRY(n, fi_trecv(n->ep, data[0], size, NULL, FI_ADDR_UNSPEC, wanted[i].tag, wanted[i].ignore, &data[i]));
				done_of(n, n->rx, &entry);
				CHECK(filled(data[0], size, (unsigned)wanted[i].gets), "fi_tagged(3): receive %d gets message %d", i, wanted[i].gets);
				CHECK(entry.tag == tags[wanted[i].gets], "fi_cq(3): the tag is the sender's");
			}
		}
		meet_at(n);
	}
}

/* Tagged messages and others do not match each other. */
static void kinds(struct node *n)
{
	unsigned char a[10] = {1}, b[10] = {2};
	struct fi_cq_tagged_entry entry;
	fi_addr_t from;

	if (server) {
		TRY(n, fi_send(n->ep, a, 10, NULL, n->peer, NULL));
		TRY(n, fi_tsend(n->ep, b, 10, NULL, n->peer, 0, NULL));
		done_of(n, n->tx, &entry);
		CHECK(entry.flags & FI_MSG, "fi_cq(3): FI_MSG of a message without a tag");
		done_of(n, n->tx, &entry);
	} else {
		TRY(n, fi_trecv(n->ep, a, 10, NULL, FI_ADDR_UNSPEC, 0, ~0ULL, a));
		done_of(n, n->rx, &entry);
		CHECK(entry.op_context == a && a[0] == 2, "fi_tagged(3): a tagged receive gets a tagged message");
		TRY(n, fi_recv(n->ep, b, 10, NULL, FI_ADDR_UNSPEC, b));
		done_at(n, n->rx, &entry, &from, __FILE__, __LINE__);
		CHECK(entry.op_context == b && b[0] == 1 && entry.flags & FI_MSG && from == n->peer, "fi_msg(3): another receive another message");
	}
	meet_at(n);
}

/* A message that is longer than the buffer is cut, with an error that says by how much. */
static void truncated(struct node *n, size_t size, int late)
{
	static unsigned char data[LONG];
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error;

	if (server) {
		fill(data, size, 5);
		if (!late)
			meet_at(n);
		TRY(n, fi_tsend(n->ep, data, size, NULL, n->peer, 7, NULL));
		if (late)
			meet_at(n);
		done_of(n, n->tx, &entry);
	} else {
		if (late)
			meet_at(n);
		memset(data, 0xee, sizeof data);
		TRY(n, fi_trecv(n->ep, data, size - 100, NULL, FI_ADDR_UNSPEC, 7, 0, data));
		if (!late)
			meet_at(n);
		CHECK(error_of(n, n->rx, &error) == FI_ETRUNC && error.op_context == data, "fi_cq(3): FI_ETRUNC, not %d", error.err);
		CHECK(error.olen == 100 || !ours, "fi_cq(3): olen is what had no room: %zu", error.olen);
		CHECK(data[size - 100] == 0xee, "fi_tagged(3): nothing is written behind the buffer");
	}
	meet_at(n);
}

static ssize_t probe(struct node *n, void *buf, size_t size, uint64_t tag, uint64_t flags, void *context)
{
	struct iovec iov = {buf, size};
	struct fi_msg_tagged msg = {.msg_iov = &iov, .iov_count = buf ? 1 : 0, .addr = FI_ADDR_UNSPEC, .tag = tag, .context = context};

	return fi_trecvmsg(n->ep, &msg, flags);
}

/* Peeks until the message has arrived. */
static void found(struct node *n, uint64_t tag, uint64_t flags, void *context, struct fi_cq_tagged_entry *entry)
{
	struct fi_cq_err_entry error = {0};
	double end = seconds() + 20;
	int got;

	do {
		OK(probe(n, NULL, 0, tag, flags | FI_COMPLETION, context));
		got = next_of(n, n->rx, entry);
		if (got == -FI_EAVAIL)
			fi_cq_readerr(n->rx, &error, 0);
	} while (got && error.err == FI_ENOMSG && seconds() < end);
	CHECK(!got, "fi_tagged(3): FI_PEEK finds a message: %s", fi_strerror(error.err));
}

/* FI_PEEK looks, FI_CLAIM takes a message for a later receive, FI_DISCARD drops it. */
static void peeking(struct node *n, size_t size)
{
	static unsigned char data[LONG];
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error;
	struct fi_context context[2];
	int i;

	if (server) {
		fill(data, size, 9);
		for (i = 0; i < 4; i++)
			TRY(n, fi_tsenddata(n->ep, data, size - (size_t)i, NULL, 77, n->peer, i == 3 ? 2 : 1, NULL));
		meet_at(n);
		for (i = 0; i < 4; i++)
			done_of(n, n->tx, &entry);
		meet_at(n);
		return;
	}
	meet_at(n);
	found(n, 1, FI_PEEK, context, &entry);
	CHECK(entry.op_context == context && entry.len == size && entry.tag == 1, "fi_tagged(3): FI_PEEK tells length and tag");
	CHECK(!ours || (entry.flags & FI_REMOTE_CQ_DATA && entry.data == 77), "fi_tagged(3): FI_PEEK tells remote CQ data");
	OK(probe(n, NULL, 0, 3, FI_PEEK | FI_COMPLETION, context));
	CHECK(error_of(n, n->rx, &error) == FI_ENOMSG, "fi_tagged(3): FI_PEEK: FI_ENOMSG if there is none");
	found(n, 1, FI_PEEK | FI_CLAIM, context, &entry);
	CHECK(entry.len == size, "fi_tagged(3): FI_PEEK does not take the message; FI_CLAIM takes the first");
	found(n, 1, FI_PEEK | FI_CLAIM, context + 1, &entry);
	CHECK(entry.len == size - 1, "fi_tagged(3): what is claimed is not found again");
	memset(data, 0, sizeof data);
	TRY(n, fi_trecv(n->ep, data, size, NULL, FI_ADDR_UNSPEC, 1, 0, data));
	done_of(n, n->rx, &entry);
	CHECK(entry.len == size - 2 && filled(data, size - 2, 9), "fi_tagged(3): another receive gets the next one");
	memset(data, 0, sizeof data);
	OK(probe(n, data, size, 1, FI_CLAIM | FI_COMPLETION, context + 1));
	done_of(n, n->rx, &entry);
	CHECK(entry.op_context == context + 1 && entry.len == size - 1 && filled(data, size - 1, 9), "fi_tagged(3): FI_CLAIM receives what the context has claimed");
	if (ours) { /* the providers differ in the completions of FI_DISCARD */
		OK(probe(n, NULL, 0, 1, FI_CLAIM | FI_DISCARD | FI_COMPLETION, context));
		done_of(n, n->rx, &entry);
		CHECK(entry.op_context == context, "fi_tagged(3): FI_CLAIM | FI_DISCARD drops it");
		found(n, 2, FI_PEEK | FI_DISCARD, context, &entry);
		CHECK(entry.len == size - 3, "fi_tagged(3): FI_PEEK | FI_DISCARD tells what it drops");
		OK(probe(n, NULL, 0, 0, FI_PEEK | FI_COMPLETION, context));
		CHECK(error_of(n, n->rx, &error) == FI_ENOMSG, "fi_tagged(3): nothing is left");
		CHECK(probe(n, data, size, 1, FI_CLAIM, context) < 0, "fi_tagged(3): a context that has claimed nothing");
	} else {
		OK(probe(n, data, size, 1, FI_CLAIM | FI_COMPLETION, context));
		done_of(n, n->rx, &entry);
		TRY(n, fi_trecv(n->ep, data, size, NULL, FI_ADDR_UNSPEC, 2, 0, data));
		done_of(n, n->rx, &entry);
	}
	meet_at(n);
}

static void cancelled(struct node *n)
{
	unsigned char a[10], b[10];
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error;

	if (!server) {
		TRY(n, fi_trecv(n->ep, a, 10, NULL, FI_ADDR_UNSPEC, 1, 0, a));
		TRY(n, fi_trecv(n->ep, b, 10, NULL, FI_ADDR_UNSPEC, 1, 0, b));
		OK(fi_cancel(&n->ep->fid, a));
		CHECK(error_of(n, n->rx, &error) == FI_ECANCELED && error.op_context == a, "fi_endpoint(3): fi_cancel: FI_ECANCELED");
		if (ours)
			CHECK(fi_cancel(&n->ep->fid, a) == -FI_ENOENT, "fi_endpoint(3): once");
	}
	meet_at(n);
	if (server) {
		TRY(n, fi_tsend(n->ep, "message", 8, NULL, n->peer, 1, NULL));
		done_of(n, n->tx, &entry);
	} else {
		done_of(n, n->rx, &entry);
		CHECK(entry.op_context == b, "fi_endpoint(3): the other receives stay");
	}
	meet_at(n);
}

static void injected(struct node *n)
{
	enum { N = 40 };
	size_t size = n->info->tx_attr->inject_size < 500 ? n->info->tx_attr->inject_size : 500;
	const uint64_t value = 0x1122334455667788;
	unsigned char data[500];
	struct fi_cq_tagged_entry entry;
	int i;

	for (i = 0; i < N; i++)
		if (server) {
			fill(data, size, (unsigned)i);
			if (i % 2)
				TRY(n, fi_tinject(n->ep, data, size, n->peer, 5));
			else
				TRY(n, fi_tinjectdata(n->ep, data, size, value, n->peer, 5));
			memset(data, 0, sizeof data);
		} else {
			TRY(n, fi_trecv(n->ep, data, sizeof data, NULL, FI_ADDR_UNSPEC, 5, 0, NULL));
			done_of(n, n->rx, &entry);
			CHECK(entry.len == size && filled(data, size, (unsigned)i), "fi_tagged(3): the data at the time of fi_tinject: %d", i);
			CHECK(i % 2 ? !(entry.flags & FI_REMOTE_CQ_DATA) : entry.flags & FI_REMOTE_CQ_DATA && entry.data == value, "fi_tagged(3): the data of fi_tinjectdata");
		}
	if (server)
		CHECK(fi_cq_read(n->tx, &entry, 1) == -FI_EAGAIN, "fi_tagged(3): fi_tinject writes no entry");
	meet_at(n);
}

static size_t resident(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	size_t pages = 0;

	CHECK(f && fscanf(f, "%*s %zu", &pages) == 1, "proc(5): statm");
	fclose(f);
	return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* More messages than a peer has receives and credits wait for their receives, and one behind them is found. */
static void unexpected(struct node *n, int count, size_t size)
{
	unsigned char *data = calloc((size_t)count + 1, size);
	struct fi_cq_tagged_entry entry;
	int i, j, done = 0, sent = 0;
	double end = seconds() + 60;

	if (server) {
		while ((sent <= count || done <= count) && seconds() < end) {
			if (sent <= count) {
				fill(data + (size_t)sent * size, size, (unsigned)sent);
				if (!fi_tsend(n->ep, data + (size_t)sent * size, size, NULL, n->peer, (uint64_t)sent, NULL))
					sent++;
			}
			if (fi_cq_read(n->tx, &entry, 1) == 1)
				done++;
		}
		CHECK(done == count + 1, "fi_tagged(3): all sends complete, %d of %d", done, count + 1);
	} else {
		size_t before = resident(), after;

		TRY(n, fi_trecv(n->ep, data, size, NULL, n->peer, (uint64_t)count, 0, NULL)); /* behind all of them */
		done_of(n, n->rx, &entry);
		after = resident();
		CHECK(!ours || after < before + (32 << 20), "messages that wait take a limited memory: %zu bytes, then %zu", before, after);
		for (i = 0; i < count; i++) { /* the last one first */
			j = count - 1 - i;
			TRY(n, fi_trecv(n->ep, data, size, NULL, n->peer, (uint64_t)j, 0, NULL));
			done_of(n, n->rx, &entry);
			CHECK(entry.len == size && filled(data, size, (unsigned)j), "fi_tagged(3): message %d is found behind others", j);
		}
	}
	free(data);
	meet_at(n);
}

/* Messages without data take memory as well while they wait: the sender has to stop. */
static void unexpected_empty(struct node *n)
{
	enum { MOST = 400000 };
	struct fi_cq_tagged_entry entry[64];
	int sent = 0, done = 0, received = 0;
	double last = seconds(), end = last + 60;
	ssize_t got;

	if (server) {
		for (; sent < MOST && seconds() < last + 1; done += got > 0 ? (int)got : 0) { /* until it is refused for a second */
			if (!fi_send(n->ep, NULL, 0, NULL, n->peer, NULL)) {
				sent++;
				last = seconds();
			}
			got = fi_cq_read(n->tx, entry, 64);
		}
		CHECK(sent < MOST, "messages without data that wait take a limited memory: %d were sent", sent);
		tell(&sent, sizeof sent);
		for (; done < sent && seconds() < end; done += got > 0 ? (int)got : 0)
			got = fi_cq_read(n->tx, entry, 64);
		CHECK(done == sent, "fi_msg(3): all sends complete, %d of %d", done, sent);
	} else {
		while (!heard(0))
			advance(n);
		hear(&sent, sizeof sent);
		for (; received < sent && seconds() < end; received++) {
			TRY(n, fi_recv(n->ep, NULL, 0, NULL, n->peer, NULL));
			done_of(n, n->rx, entry);
		}
		CHECK(received == sent, "fi_msg(3): all of them arrive, %d of %d", received, sent);
	}
	meet_at(n);
}

/* Both send and receive at once, many at a time. */
static void streams(struct node *n, size_t size, int count)
{
	enum { WINDOW = 32 };
	unsigned char *in = malloc(WINDOW * size), *out = malloc(WINDOW * size);
	struct fi_cq_tagged_entry entry;
	int posted = 0, received = 0, sent = 0, done = 0;
	double end = seconds() + 60;

	while ((received < count || done < count) && seconds() < end) {
		unsigned char *at = in + (size_t)(posted % WINDOW) * size;

		if (posted < count && posted - received < WINDOW && !fi_trecv(n->ep, at, size, NULL, n->peer, 3, 0, at))
			posted++;
		if (sent < count && sent - done < WINDOW) {
			fill(out + (size_t)(sent % WINDOW) * size, size, (unsigned)sent);
			if (!fi_tsend(n->ep, out + (size_t)(sent % WINDOW) * size, size, NULL, n->peer, 3, NULL))
				sent++;
		}
		if (fi_cq_read(n->tx, &entry, 1) == 1)
			done++;
		if (fi_cq_read(n->rx, &entry, 1) == 1) {
			if (size <= (ours ? 131072 : 16384))
				CHECK(entry.op_context == in + (size_t)(received % WINDOW) * size && filled(entry.op_context, size, (unsigned)received), "fi_tagged(3): message %d of a stream", received);
			received++;
		}
	}
	CHECK(received == count && done == count, "fi_tagged(3): streams both ways end: %d received, %d sent", received, done);
	free(in);
	free(out);
	meet_at(n);
}

static void vectors(struct node *n)
{
	static unsigned char one[10], two[40000], three[1], whole[40011];
	struct iovec out[3] = {{one, 10}, {two, 40000}, {three, 1}}, in[3] = {{three, 1}, {two, 40000}, {one, 10}};
	struct fi_cq_tagged_entry entry;
	int i;

	if (n->info->tx_attr->iov_limit < 3)
		return;
	for (i = 0; i < 2; i++) {
		size_t middle = i ? 40000 : 500, all = middle + 11;

		out[1].iov_len = in[1].iov_len = middle;
		fill(whole, all, 9);
		if (server) {
			memcpy(one, whole, 10);
			memcpy(two, whole + 10, middle);
			memcpy(three, whole + 10 + middle, 1);
			TRY(n, fi_tsendv(n->ep, out, NULL, 3, n->peer, 4, out));
			done_of(n, n->tx, &entry);
		} else {
			TRY(n, fi_trecvv(n->ep, in, NULL, 3, n->peer, 4, 0, in));
			done_of(n, n->rx, &entry);
			CHECK(three[0] == whole[0] && !memcmp(two, whole + 1, middle) && !memcmp(one, whole + 1 + middle, 10), "fi_tagged(3): vectors gather and scatter in order");
		}
	}
	meet_at(n);
}

/* Messages of all sizes in one buffer, until it is the program's again. */
static void multi(struct node *n, size_t size)
{
	enum { ROOM = 1 << 20 };
	static unsigned char buffer[2][ROOM], data[LONG];
	struct iovec iov[2] = {{buffer[0], ROOM}, {buffer[1], ROOM}};
	struct fi_msg msg = {.iov_count = 1, .addr = FI_ADDR_UNSPEC};
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error;
	int i, count = (int)(ROOM / size) + 2, released = 0;

	if (server) {
		meet_at(n);
		for (i = 0; i < count; i++) {
			fill(data, size, (unsigned)i);
			TRY(n, fi_send(n->ep, data, size, NULL, n->peer, NULL));
			done_of(n, n->tx, &entry);
		}
	} else {
		for (i = 0; i < 2; i++) {
			msg.msg_iov = &iov[i];
			msg.context = buffer[i];
			OK(fi_recvmsg(n->ep, &msg, FI_MULTI_RECV | FI_COMPLETION | FI_TRANSMIT_COMPLETE));
		}
		meet_at(n);
		for (i = 0; i < count; ) {
			done_of(n, n->rx, &entry);
			released += (entry.flags & FI_MULTI_RECV) != 0;
			if (!(entry.flags & FI_RECV))
				continue; /* it says only that the buffer is released */
			CHECK(entry.len == size && filled(entry.buf, size, (unsigned)i), "fi_msg(3): FI_MULTI_RECV: message %d is where its entry says", i);
			i++;
		}
		CHECK(released == 1, "fi_msg(3): FI_MULTI_RECV: a buffer that is full is released, %d", released);
		OK(fi_cancel(&n->ep->fid, buffer[1]));
		CHECK(error_of(n, n->rx, &error) == FI_ECANCELED, "fi_endpoint(3): fi_cancel: FI_ECANCELED, not %d", error.err);
		CHECK(!ours || error.flags & FI_MULTI_RECV, "fi_msg(3): FI_MULTI_RECV: a buffer that is cancelled is released");
	}
	meet_at(n);
}

static void counted(void)
{
	struct node_want w = {.counters = 1};
	unsigned char data[20000];
	struct fi_cq_tagged_entry entry;
	struct node n;
	int i;

	open_pair(&n, &w);
	for (i = 0; i < 3; i++) {
		TRY(&n, fi_trecv(n.ep, data, sizeof data, NULL, n.peer, 1, 0, NULL));
		TRY(&n, fi_tsend(n.ep, data, i == 1 ? sizeof data : 100, NULL, n.peer, 1, NULL));
		done_of(&n, n.rx, &entry);
		done_of(&n, n.tx, &entry);
		meet_at(&n);
	}
	CHECK(fi_cntr_read(n.sent) == 3 && fi_cntr_read(n.received) == 3, "fi_cntr(3): counters of sends and receives");
	close_pair(&n);
}

/* A receive from one source does not get messages of others; the endpoints are several on each side, and all connect. */
static void many(void)
{
	struct node_want w = {0};
	struct node n[MANY];
	fi_addr_t to[MANY][MANY];
	unsigned char data[MANY][MANY][100];
	struct fi_cq_tagged_entry entry;
	fi_addr_t from;
	char name[64];
	int i, j;

	for (i = 0; i < MANY; i++)
		open_node(&n[i], &w);
	others = n;
	for (i = 0; i < MANY; i++)
		tell(n[i].name, sizeof n[i].name);
	for (j = 0; j < MANY; j++) {
		hear(name, sizeof name);
		for (i = 0; i < MANY; i++)
			CHECK(fi_av_insert(n[i].av, name, 1, &to[i][j], 0, NULL) == 1, "fi_av(3): fi_av_insert");
	}
	for (i = 0; i < MANY; i++)
		for (j = 0; j < MANY; j++) { /* in another order than they come */
			int source = (i + j) % MANY;

			TRY(&n[i], fi_trecv(n[i].ep, data[i][source], 100, NULL, to[i][source], 0, ~0ULL, data[i][source]));
		}
	meet_at(n);
	for (i = 0; i < MANY; i++)
		for (j = 0; j < MANY; j++) {
			unsigned char out[100];

			fill(out, 100, (unsigned)(10 * i + j));
			TRY(&n[i], fi_tsend(n[i].ep, out, 100, NULL, to[i][j], 1, NULL));
			done_of(&n[i], n[i].tx, &entry);
		}
	for (i = 0; i < MANY; i++) {
		for (j = 0; j < MANY; j++) {
			done_at(&n[i], n[i].rx, &entry, &from, __FILE__, __LINE__);
			CHECK(entry.op_context == data[i][from], "fi_tagged(3): FI_DIRECTED_RECV: from its source");
		}
		for (j = 0; j < MANY; j++)
			CHECK(filled(data[i][j], 100, (unsigned)(10 * j + i)), "fi_tagged(3): %d has the message of %d", i, j);
	}
	meet_at(n);
	others = NULL;
	for (i = 0; i < MANY; i++)
		close_node(&n[i]);
	step();
}

/* A long message to itself that waits is lost with the connection, so no later receive gets it. */
static void itself_lost(struct node *n, fi_addr_t self)
{
	static unsigned char out[LONG], in[10];
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error;
	int i;

	TRY(n, fi_tsend(n->ep, out, LONG, NULL, self, 2, out));
	found(n, 2, FI_PEEK, &entry, &entry);
	TRY(n, fi_read(n->ep, in, sizeof in, NULL, self, (uint64_t)(uintptr_t)out, 0, in)); /* no region has the key */
	for (i = 0; i < 2; i++)
		CHECK(error_of(n, n->tx, &error), "the send and the read fail");
	TRY(n, fi_trecv(n->ep, in, sizeof in, NULL, self, 2, 0, in));
	TRY(n, fi_tsend(n->ep, out, sizeof in, NULL, self, 2, out));
	done_of(n, n->rx, &entry);
	CHECK(entry.len == sizeof in, "the message after it, not %zu bytes", entry.len);
	done_of(n, n->tx, &entry);
}

/* An endpoint sends to itself. */
static void itself(void)
{
	static unsigned char out[LONG], in[LONG];
	static const size_t lengths[] = {10, 5000, LONG};
	struct node_want w = {0};
	struct fi_cq_tagged_entry entry;
	struct node n;
	fi_addr_t self, from;
	int i;

	open_pair(&n, &w);
	CHECK(fi_av_insert(n.av, n.name, 1, &self, 0, NULL) == 1, "fi_av(3): its own address");
	for (i = 0; i < 3; i++) {
		fill(out, lengths[i], (unsigned)i);
		memset(in, 0, sizeof in);
		if (i == 1)
			TRY(&n, fi_tsend(n.ep, out, lengths[i], NULL, self, 1, out));
		TRY(&n, fi_trecv(n.ep, in, sizeof in, NULL, self, 1, 0, in));
		if (i != 1)
			TRY(&n, fi_tsend(n.ep, out, lengths[i], NULL, self, 1, out));
		done_at(&n, n.rx, &entry, &from, __FILE__, __LINE__);
		CHECK(entry.len == lengths[i] && filled(in, lengths[i], (unsigned)i) && from == self, "fi_endpoint(3): %zu bytes to itself", lengths[i]);
		done_of(&n, n.tx, &entry);
	}
	if (ours)
		itself_lost(&n, self);
	close_pair(&n);
}

static void rma(struct node *n)
{
	enum { REGION = 1 << 20 };
	static unsigned char region[REGION], local[REGION];
	static const size_t lengths[] = {1, 4096, 4097, 70000, REGION};
	const uint64_t access = FI_REMOTE_READ | FI_REMOTE_WRITE;
	struct {
		uint64_t address, key;
	} mine, there;
	struct fi_cq_tagged_entry entry;
	struct fid_mr *mr;
	fi_addr_t from;
	size_t i;

	OK(fi_mr_reg(n->domain, region, REGION, access, 0, 0, 0, &mr, NULL));
	mine.address = n->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)region : 0;
	mine.key = fi_mr_key(mr);
	tell(&mine, sizeof mine);
	hear(&there, sizeof there);
	for (i = 0; i < 5 && server; i++) {
		fill(local, lengths[i], (unsigned)i);
		TRY(n, fi_write(n->ep, local, lengths[i], NULL, n->peer, there.address, there.key, local));
		done_of(n, n->tx, &entry);
		CHECK(entry.flags & FI_RMA && entry.flags & FI_WRITE, "fi_cq(3): FI_RMA | FI_WRITE");
		memset(local, 0, lengths[i]);
		TRY(n, fi_read(n->ep, local, lengths[i], NULL, n->peer, there.address, there.key, local));
		done_of(n, n->tx, &entry);
		CHECK(filled(local, lengths[i], (unsigned)i), "fi_rma(3): %zu bytes that were written are read", lengths[i]);
	}
	if (server) { /* a message behind a write: FI_ORDER_SAW */
		fill(local, 50000, 42);
		TRY(n, fi_write(n->ep, local, 50000, NULL, n->peer, there.address, there.key, local));
		TRY(n, fi_tsend(n->ep, local, 10, NULL, n->peer, 1, local));
		done_of(n, n->tx, &entry);
		done_of(n, n->tx, &entry);
		TRY(n, fi_writedata(n->ep, local, 100, NULL, 0x1234, n->peer, there.address, there.key, NULL));
		done_of(n, n->tx, &entry);
	} else {
		TRY(n, fi_trecv(n->ep, local, 10, NULL, n->peer, 1, 0, NULL));
		done_of(n, n->rx, &entry);
		CHECK(!ours || filled(region, 50000, 42), "fi_endpoint(3): FI_ORDER_SAW: the write is there");
		done_at(n, n->rx, &entry, &from, __FILE__, __LINE__);
		CHECK(entry.flags & FI_REMOTE_WRITE && entry.data == 0x1234, "fi_rma(3): the data of fi_writedata");
		CHECK(!ours || from == n->peer, "fi_cq(3): fi_cq_readfrom returns the source of it");
	}
	meet_at(n);
	OK(fi_close(&mr->fid));
}

/* Completion levels, and a fence behind a long message. */
static void levels(struct node *n)
{
	static const uint64_t flags[] = {FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE, FI_DELIVERY_COMPLETE | FI_FENCE, FI_MORE, 0};
	static unsigned char out[30000], in[30000];
	struct iovec iov = {out, 0};
	struct fi_msg_tagged msg = {.msg_iov = &iov, .iov_count = 1, .addr = n->peer, .tag = 2};
	struct fi_cq_tagged_entry entry;
	size_t i, count = sizeof flags / sizeof *flags;
	uint64_t defaults;

	if (!ours)
		return;
	for (i = 0; i < count; i++) {
		iov.iov_len = i % 2 ? sizeof out : 100;
		msg.context = (void *)&flags[i];
		TRY(n, fi_tsendmsg(n->ep, &msg, flags[i] | FI_COMPLETION));
	}
	defaults = FI_RECV | FI_TRANSMIT_COMPLETE; /* as each receive does anyway */
	OK(fi_control(&n->ep->fid, FI_SETOPSFLAG, &defaults));
	for (i = 0; i < count; i++) {
		TRY(n, fi_trecv(n->ep, in, sizeof in, NULL, n->peer, 2, 0, NULL));
		done_of(n, n->rx, &entry);
	}
	for (i = 0; i < count; i++)
		done_of(n, n->tx, &entry);
	meet_at(n);
}

/* The end of an endpoint fails what others have under way with it. A new one at the same address is another peer. */
static void restarted(void)
{
	struct node_want w = {0};
	static unsigned char data[LONG];
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error;
	struct node n;
	int i, got;

	open_pair(&n, &w);
	for (i = 0; i < 3; i++) {
		if (server) {
			TRY(&n, fi_trecv(n.ep, data, sizeof data, NULL, n.peer, 1, 0, NULL));
			done_of(&n, n.rx, &entry);
			CHECK(filled(data, 100, (unsigned)i), "fi_endpoint(3): a new endpoint at the address gets messages");
			TRY(&n, fi_tinject(n.ep, data, 100, n.peer, 2)); /* the last that it does arrives */
			meet_at(&n);
			uint16_t port = 0;
			memcpy(&port, n.name + 2, sizeof port);
			OK(fi_close(&n.ep->fid));
			n.ep = NULL;
			memcpy(port_of(n.info), &port, sizeof port);
			step();
			step();
			open_rdm_ep(&n, &w);
			step();
			continue;
		}
		fill(data, 100, (unsigned)i);
		TRY(&n, fi_tsend(n.ep, data, 100, NULL, n.peer, 1, NULL));
		done_of(&n, n.tx, &entry);
		meet_at(&n);
		TRY(&n, fi_tsend(n.ep, data, LONG, NULL, n.peer, 9, data)); /* nobody receives it */
		step();
		got = error_of(&n, n.tx, &error);
		CHECK(error.op_context == data && (got == FI_ECONNRESET || got == FI_ECONNREFUSED), "fi_cq(3): a send that the peer's end cuts fails, %d", got);
		TRY(&n, fi_trecv(n.ep, data, 100, NULL, n.peer, 2, 0, NULL));
		done_of(&n, n.rx, &entry);
		CHECK(entry.len == 100, "fi_endpoint(3): what the peer sent before its end is delivered");
		TRY(&n, fi_tsend(n.ep, data, 100, NULL, n.peer, 1, data));
		CHECK(error_of(&n, n.tx, &error) == FI_ECONNREFUSED, "fi_cq(3): no endpoint is at the address: %d", error.err);
		step();
		step();
	}
	close_node(&n);
	step();
}

/* An endpoint ends, and one with another instance takes its address. */
static void replace(struct node *n, const struct node_want *w)
{
	memcpy(port_of(n->info), n->name + 2, sizeof(uint16_t));
	OK(fi_close(&n->ep->fid));
	open_rdm_ep(n, w);
}

/* An endpoint has room for messages, whatever the one before it at its address had. It connects, and sends nothing. */
static void emptied(void)
{
	enum { COUNT = 1300, SIZE = 16000 };
	static unsigned char data[SIZE];
	struct node_want w = {0};
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error;
	int i, failed = 0;
	struct node n;
	double end;

	open_pair(&n, &w);
	for (i = 0; i < COUNT && !server; i++)
		TRY(&n, fi_tsend(n.ep, data, SIZE, NULL, n.peer, 1, NULL));
	for (end = seconds() + 0.3; seconds() < end; )
		advance(&n);
	meet_at(&n);
	if (server)
		replace(&n, &w);
	for (i = 0; i < COUNT && !server; i++)
		if (next_of(&n, n.tx, &entry))
			failed += fi_cq_readerr(n.tx, &error, 0) == 1;
	CHECK(server || failed, "the other endpoint had no room for all");
	meet_at(&n);
	if (server)
		CHECK(fi_tinject(n.ep, data, 1, n.peer, 2) == -FI_EAGAIN, "fi_tinject connects");
	for (end = seconds() + 0.3; seconds() < end; )
		advance(&n);
	meet_at(&n);
	if (!server) {
		TRY(&n, fi_tsend(n.ep, data, SIZE, NULL, n.peer, 3, NULL));
		done_of(&n, n.tx, &entry);
	}
	meet_at(&n);
	if (server) {
		TRY(&n, fi_trecv(n.ep, data, SIZE, NULL, n.peer, 3, 0, NULL));
		done_of(&n, n.rx, &entry);
	}
	close_pair(&n);
}

/* Peers that have sent something and ended are forgotten once it is received. */
static void passing(void)
{
	enum { FIRST = 10, COUNT = 60, EACH = 100 }; /* bytes: less than there is for a peer */
	struct node_want w = {0};
	struct fi_cq_tagged_entry entry;
	size_t before = 0, after;
	struct node n;
	double end;
	int i, j;

	open_pair(&n, &w);
	for (i = 0; i < 2; i++) {
		for (j = 0; j < (i ? COUNT : FIRST) && !server; j++) {
			OK(fi_close(&n.ep->fid));
			open_rdm_ep(&n, &w);
			TRY(&n, fi_tsend(n.ep, &i, sizeof i, NULL, n.peer, 1, NULL));
			done_of(&n, n.tx, &entry);
		}
		meet_at(&n);
		for (end = seconds() + 0.3; seconds() < end && server; ) /* their connections are closed meanwhile */
			advance(&n);
		for (j = 0; j < (i ? COUNT : FIRST) && server; j++) {
			TRY(&n, fi_trecv(n.ep, &after, sizeof i, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
			done_of(&n, n.rx, &entry);
		}
		end = seconds() + 10; /* some may be closed only now */
		while ((after = mallinfo2().uordblks) >= before + COUNT * EACH && i && time_left(end))
			advance(&n);
		CHECK(!i || after < before + COUNT * EACH, "the memory of %d peers is freed: %zu bytes, then %zu", COUNT, before, after);
		before = after;
		meet_at(&n);
	}
	close_pair(&n);
}

static struct node shared;

enum { THREADS = 4, ROUNDS = 300 };

/* Sends and receives of a tag of its own. */
static void *talker(void *arg)
{
	uint64_t me = (uint64_t)(uintptr_t)arg;
	size_t size = me % 2 ? 200 : 20000;
	unsigned char in[20000], out[20000];
	double end = seconds() + 60;
	unsigned i;

	for (i = 0; i < ROUNDS && seconds() < end; i++) {
		volatile int got = 0;
		ssize_t n;

		while ((n = fi_trecv(shared.ep, in, size, NULL, shared.peer, me, 0, (void *)&got)) == -FI_EAGAIN)
			;
		OK(n);
		fill(out, size, (unsigned)me + i);
		while ((n = fi_tsend(shared.ep, out, size, NULL, shared.peer, me, (void *)&got)) == -FI_EAGAIN && seconds() < end)
			;
		OK(n);
		while (__atomic_load_n(&got, __ATOMIC_ACQUIRE) < 2 && seconds() < end) { /* entries of others as well */
			struct fi_cq_tagged_entry entry;
			struct fid_cq *cq = i % 2 ? shared.tx : shared.rx;

			if (fi_cq_read(cq, &entry, 1) == 1 || fi_cq_sread(cq == shared.tx ? shared.rx : shared.tx, &entry, 1, NULL, 1) == 1)
				__atomic_add_fetch((int *)entry.op_context, 1, __ATOMIC_RELEASE);
		}
		CHECK(got == 2, "fi_domain(3): FI_THREAD_SAFE: thread %" PRIu64 " has both completions of round %u", me, i);
		CHECK(filled(in, size, (unsigned)me + i), "the message is that of the thread's peer");
	}
	return NULL;
}

static void threads(void)
{
	struct node_want w = {.wait = FI_WAIT_UNSPEC};
	pthread_t all[THREADS];
	uintptr_t i;

	open_pair(&shared, &w);
	for (i = 0; i < THREADS; i++)
		pthread_create(&all[i], NULL, talker, (void *)i);
	for (i = 0; i < THREADS; i++)
		pthread_join(all[i], NULL);
	close_pair(&shared);
}

void test_rdm(void)
{
	struct node_want w = {0};
	struct node n;
	int i;

	vectors_of_addresses();
	if (ours)
		unnamed();
	for (i = 0; i < 5; i++) { /* both connect at once */
		open_pair(&n, &w);
		all_sizes(&n, i % 2);
		close_pair(&n);
	}
	open_pair(&n, &w);
	matching(&n, 100);
	matching(&n, PIECES);
	matching(&n, LONG);
	kinds(&n);
	for (i = 0; i < 6; i++)
		if (ours) /* ofi_rxm of libfabric 1.17 loses its connection by it */
			truncated(&n, i % 3 == 0 ? 1000 : i % 3 == 1 ? PIECES : LONG, i / 3);
	peeking(&n, 100);
	if (ours) {
		peeking(&n, PIECES);
		peeking(&n, LONG);
	}
	cancelled(&n);
	injected(&n);
	unexpected(&n, 50, 100);
	if (ours) {
		unexpected(&n, 1500, 600);
		unexpected(&n, 100, 30000);
		unexpected(&n, 30, 200000);
	}
	streams(&n, 100, 2000);
	streams(&n, 16384, 300);
	streams(&n, PIECES, 200);
	streams(&n, 100000, 200);
	streams(&n, 200000, 100);
	vectors(&n);
	if (ours)
		roomy(&n);
	multi(&n, 10000);
	if (ours) { /* ofi_rxm cuts a message that has no room in the rest of a buffer */
		multi(&n, PIECES);
		multi(&n, 100000);
		multi(&n, 200000);
	}
	rma(&n);
	levels(&n);
	if (ours) { /* last: then the peers send requests for a while, and receives complete in another order */
		unexpected(&n, 2500, 16000);
		unexpected_empty(&n);
	}
	close_pair(&n);
	counted();
	many();
	itself();
	if (ours) {
		restarted();
		emptied();
		passing();
		threads();
	}
}

/*
 * The server is killed, in the midst of messages, and started again. It is a child: what forks has opened nothing.
 */
void test_rdm_killed(void)
{
	/* Five pieces each: the receiver allows 61 to 64 before it takes any, some of the last message. */
	enum { PARTS = 72000, HALF = 13 };
	static unsigned char data[LONG];
	struct node_want w = {.port = 7118};
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error;
	struct node n;
	struct {
		uint64_t address, key;
	} there;
	struct fi_context claims[2];
	struct fid_mr *mr;
	int i, status, life, failed = 0;
	double end;

	for (life = 0; server && life < 2; life++) {
		pid_t child = fork();

		if (child) {
			CHECK(waitpid(child, &status, 0) == child, "the child ends");
			CHECK(life ? WIFEXITED(status) && !WEXITSTATUS(status) : WIFSIGNALED(status), "as it is meant to: %x", status);
			if (!life)
				step();
			continue;
		}
		open_node(&n, &w);
		if (!life) {
			exchange(&n);
			OK(fi_mr_reg(n.domain, data, sizeof data, FI_REMOTE_READ, 0, 0, 0, &mr, NULL));
			there.address = (uint64_t)(uintptr_t)data;
			there.key = fi_mr_key(mr);
			tell(&there, sizeof there);
			TRY(&n, fi_trecv(n.ep, data, sizeof data, NULL, n.peer, 1, 0, NULL));
			done_of(&n, n.rx, &entry);
			for (i = 6; i < 9; i++)
				TRY(&n, fi_tsend(n.ep, data, LONG, NULL, n.peer, (uint64_t)i, NULL));
			TRY(&n, fi_trecv(n.ep, data, sizeof data, NULL, n.peer, 9, 0, NULL));
			done_of(&n, n.rx, &entry);
			for (i = 0; i < HALF; i++)
				TRY(&n, fi_tsend(n.ep, data, PARTS, NULL, n.peer, 5, NULL));
			for (end = seconds() + 0.5; seconds() < end; )
				advance(&n);
			step();
			raise(SIGKILL);
		}
		TRY(&n, fi_trecv(n.ep, data, sizeof data, NULL, FI_ADDR_UNSPEC, 3, 0, NULL));
		done_of(&n, n.rx, &entry);
		step();
		close_node(&n);
		_exit(0);
	}
	if (server)
		return;
	w.port = 0;
	open_node(&n, &w);
	exchange(&n);
	hear(&there, sizeof there);
	TRY(&n, fi_tsend(n.ep, data, 100, NULL, n.peer, 1, NULL));
	done_of(&n, n.tx, &entry);
	for (i = 0; i < 2; i++)
		found(&n, 7 + (uint64_t)i, FI_PEEK | FI_CLAIM, &claims[i], &entry);
	for (i = 0; i < 10; i++) /* nobody receives them */
		TRY(&n, fi_tsend(n.ep, data, LONG, NULL, n.peer, 2, data));
	TRY(&n, fi_trecv(n.ep, data, sizeof data, NULL, n.peer, 4, 0, &n));
	for (i = 0; i < HALF; i++)
		TRY(&n, fi_trecv(n.ep, data, sizeof data, NULL, n.peer, 5, 0, data));
	TRY(&n, fi_tinject(n.ep, data, 1, n.peer, 9));
	step();
	CHECK(heard(15000), "nothing is received until the server is dead");
	TRY(&n, fi_trecv(n.ep, data, sizeof data, NULL, n.peer, 6, 0, &there));
	TRY(&n, fi_read(n.ep, data, LONG, NULL, n.peer, there.address, there.key, &there));
	CHECK(error_of(&n, n.tx, &error) == FI_ECONNRESET && error.op_context == &there, "fi_cq(3): so does a read, not with %d", error.err);
	for (i = 0; i < 10; i++)
		failed += error_of(&n, n.tx, &error) == FI_ECONNRESET && error.op_context == data;
	CHECK(failed == 10, "fi_cq(3): what was under way with a peer that is killed fails: %d", failed);
	for (i = failed = 0; i < HALF + 1; i++)
		if (!next_of(&n, n.rx, &entry)) {
			CHECK(entry.tag == 5 && entry.len == PARTS, "fi_tagged(3): a message that has arrived whole before its sender was killed");
		} else {
			memset(&error, 0, sizeof error);
			CHECK(fi_cq_readerr(n.rx, &error, 0) == 1 && error.err == FI_ECONNRESET, "fi_cq(3): a message of which the rest cannot come fails: %d", error.err);
			CHECK(error.op_context == (error.tag == 6 ? (void *)&there : data), "fi_cq(3): the receive of tag %" PRIu64, error.tag);
			failed++;
		}
	OK(probe(&n, data, sizeof data, 7, FI_CLAIM | FI_COMPLETION, &claims[0]));
	CHECK(error_of(&n, n.rx, &error) == FI_ECONNRESET && error.op_context == &claims[0] && error.tag == 7, "fi_tagged(3): so does one that was claimed: %d", error.err);
	OK(probe(&n, NULL, 0, 8, FI_CLAIM | FI_DISCARD | FI_COMPLETION, &claims[1]));
	done_of(&n, n.rx, &entry);
	CHECK(entry.op_context == &claims[1], "fi_tagged(3): one that was claimed is discarded");
	CHECK(failed == 2, "the one that was being read, and the one of which a part arrived: %d", failed);
	CHECK(fi_cq_read(n.rx, &entry, 1) == -FI_EAGAIN, "fi_endpoint(3): a receive stays: the peer may come again");
	step();
	for (end = seconds() + 30, failed = 1; failed && seconds() < end; ) {
		TRY(&n, fi_tsend(n.ep, data, 100, NULL, n.peer, 3, NULL));
		failed = next_of(&n, n.tx, &entry) != 0;
		if (failed) {
			fi_cq_readerr(n.tx, &error, 0);
			usleep(50000);
		}
	}
	CHECK(!failed, "fi_endpoint(3): a new program at the address gets messages");
	meet_at(&n);
	close_node(&n);
}

/* With threads that get a CPU late, see testdata/hostile/late.c. */
void test_rdm_late(void)
{
	struct node_want w = {0};
	static unsigned char data[100];
	struct fi_cq_tagged_entry entry;
	struct node n;
	double end;
	int i;

	open_pair(&n, &w);
	if (server) { /* it looks at its queues after the other endpoint has connected */
		TRY(&n, fi_trecv(n.ep, data, sizeof data, NULL, n.peer, 1, 0, NULL));
		done_of(&n, n.rx, &entry);
		meet_at(&n);
		CHECK(heard(15000), "the client has connected again");
		for (i = 2; i < 4; i++) {
			TRY(&n, fi_trecv(n.ep, data, sizeof data, NULL, n.peer, (uint64_t)i, 0, NULL));
			done_of(&n, n.rx, &entry);
		}
	} else {
		for (i = 1; i < 4; i++) {
			TRY(&n, fi_tsend(n.ep, data, sizeof data, NULL, n.peer, (uint64_t)i, NULL));
			done_of(&n, n.tx, &entry);
			if (i == 1)
				meet_at(&n);
			else if (i == 2)
				replace(&n, &w);
		}
	}
	close_pair(&n);
	open_pair(&n, &w);
	if (server) {
		TRY(&n, fi_trecv(n.ep, data, sizeof data, NULL, n.peer, 1, 0, NULL));
		done_of(&n, n.rx, &entry);
		memcpy(port_of(n.info), n.name + 2, sizeof(uint16_t));
		OK(fi_close(&n.ep->fid));
		step();
		open_rdm_ep(&n, &w);
	} else {
		TRY(&n, fi_tsend(n.ep, data, sizeof data, NULL, n.peer, 1, NULL));
		done_of(&n, n.tx, &entry);
		for (end = seconds() + 0.5; seconds() < end; )
			advance(&n);
		step();
	}
	step();
	if (server) {
		TRY(&n, fi_trecv(n.ep, data, sizeof data, NULL, n.peer, 2, 0, NULL));
		done_of(&n, n.rx, &entry);
	} else {
		TRY(&n, fi_tsend(n.ep, data, sizeof data, NULL, n.peer, 2, NULL));
		done_of(&n, n.tx, &entry);
	}
	close_pair(&n);
}
