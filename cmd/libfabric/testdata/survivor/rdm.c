/*
 * rdm server|client ADDRESS [once] - messages of an FI_EP_RDM endpoint with peers that are killed.
 *
 * The server sends each message back to its source, until SIGTERM. A client sends messages of several sizes, and
 * checks what comes back.
 */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

enum { PORT = 7119, WINDOW = 8, LARGEST = 300000, NAME = 64 };

enum { HELLO = 1, THERE, BACK }; /* tags */

#define OK(call)                                                                                  \
	do {                                                                                      \
		long result_ = (long)(call);                                                      \
		if (result_) {                                                                    \
			fprintf(stderr, "%s:%d: %s: %ld, %s\n", __FILE__, __LINE__, #call, result_, fi_strerror((int)-result_)); \
			exit(2);                                                                  \
		}                                                                                 \
	} while (0)

struct message {
	struct fi_context context;
	fi_addr_t from;
	int sending;
	size_t length;
	unsigned char *data;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;
static volatile sig_atomic_t stopped;

static void stop(int signal)
{
	(void)signal;
	stopped = 1;
}

static void open_all(const char *address, int server)
{
	struct fi_info *h = fi_allocinfo(), *all, *i;
	struct fi_av_attr av_attr = {.type = FI_AV_MAP};
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
	char port[8];

	snprintf(port, sizeof port, "%d", PORT);
	h->caps = FI_TAGGED | FI_SOURCE;
	h->ep_attr->type = FI_EP_RDM;
	h->addr_format = strchr(address, ':') ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
	h->fabric_attr->prov_name = strdup("viaxdp");
	h->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	OK(fi_getinfo(FI_VERSION(1, 17), address, port, server ? FI_SOURCE : 0, h, &all));
	for (i = all; strcmp(i->fabric_attr->prov_name, "viaxdp") != 0; i = i->next)
		; /* not ofi_rxm over it */
	info = fi_dupinfo(i);
	fi_freeinfo(all);
	fi_freeinfo(h);
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_av_open(domain, &av_attr, &av, NULL));
	OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(ep));
}

static void close_all(void)
{
	OK(fi_close(&ep->fid));
	OK(fi_close(&cq->fid));
	OK(fi_close(&av->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
}

/* The next completion's message; NULL: none. *error: it has failed. */
static struct message *next(struct fi_cq_tagged_entry *entry, fi_addr_t *from, int *error)
{
	struct fi_cq_err_entry e = {0};
	ssize_t n = fi_cq_readfrom(cq, entry, 1, from);

	*error = 0;
	if (n == -FI_EAGAIN)
		return NULL;
	if (n == 1)
		return entry->op_context;
	if (fi_cq_readerr(cq, &e, 0) != 1)
		exit(3);
	*error = e.err;
	entry->flags = e.flags;
	return e.op_context;
}

static void receive(struct message *m, uint64_t tag)
{
	m->sending = 0;
	OK(fi_trecv(ep, m->data, LARGEST, NULL, FI_ADDR_UNSPEC, tag, 0, m));
}

static void serve(void)
{
	struct message all[WINDOW + 1];
	struct fi_cq_tagged_entry entry;
	int i, error, clients = 0, cut = 0;
	fi_addr_t from, added;
	ssize_t n;

	memset(all, 0, sizeof all);
	for (i = 0; i <= WINDOW; i++) {
		all[i].data = malloc(LARGEST);
		receive(&all[i], i ? THERE : HELLO);
	}
	printf("serving\n");
	fflush(stdout);
	while (!stopped) {
		struct message *m = next(&entry, &from, &error);

		if (!m)
			continue;
		cut += error != 0;
		if (m == all && !error && !m->sending) {
			clients++;
			if (fi_av_insert(av, m->data, 1, &added, 0, NULL) != 1)
				exit(2);
			from = added; /* it had no number when the message came */
		}
		if (error && m->sending) { /* the client is gone */
			fi_addr_t old = m->from;

			fi_av_remove(av, &old, 1, 0);
		}
		if (!error && !m->sending && from != FI_ADDR_NOTAVAIL) {
			m->from = from;
			m->length = entry.len;
			m->sending = 1;
			n = fi_tsend(ep, m->data, m->length, NULL, from, BACK, m);
			if (!n)
				continue;
		}
		receive(m, m == all ? HELLO : THERE);
	}
	close_all();
	for (i = 0; i <= WINDOW; i++)
		free(all[i].data);
	printf("rdm: %d clients, %d messages cut\n", clients, cut);
}

static void fill(unsigned char *p, size_t n, unsigned seed)
{
	size_t i;

	for (i = 0; i < n; i++)
		p[i] = (unsigned char)(seed + i * 7 + (i >> 8));
}

/* Waits for completions of both, in any order. */
static void both(struct message *a, struct message *b)
{
	struct fi_cq_tagged_entry entry;
	int error, left = 2;
	fi_addr_t from;

	while (left) {
		struct message *m = next(&entry, &from, &error);

		if (!m)
			continue;
		if (error || (m != a && m != b)) {
			fprintf(stderr, "the server is gone: %d\n", error);
			exit(1);
		}
		left--;
	}
}

static void talk(const char *address, int once)
{
	static const size_t sizes[] = {100, 20000, 5000, LARGEST, 16384, 1};
	struct message out = {.data = malloc(LARGEST)}, in = {.data = malloc(LARGEST)};
	unsigned char *want = malloc(LARGEST);
	fi_addr_t server;
	size_t length = NAME;
	unsigned i;
	char port[8];

	snprintf(port, sizeof port, "%d", PORT);
	OK(fi_av_insertsvc(av, address, port, &server, 0, NULL) != 1);
	OK(fi_getname(&ep->fid, out.data, &length));
	receive(&in, BACK); /* the server knows this client then */
	OK(fi_tsend(ep, out.data, NAME, NULL, server, HELLO, &out));
	both(&out, &in);
	for (i = 0; !once || i < 60; i++) {
		size_t size = sizes[i % (sizeof sizes / sizeof *sizes)];

		receive(&in, BACK);
		fill(out.data, size, i);
		fill(want, size, i);
		OK(fi_tsend(ep, out.data, size, NULL, server, THERE, &out));
		both(&out, &in);
		if (memcmp(in.data, want, size) != 0) {
			fprintf(stderr, "wrong data of %zu bytes\n", size);
			exit(4);
		}
		if (i == 0) {
			printf("connected\n");
			fflush(stdout);
		}
	}
	close_all();
	free(out.data);
	free(in.data);
	free(want);
}

int main(int argc, char **argv)
{
	int server;

	if (argc < 3)
		return 2;
	server = strcmp(argv[1], "server") == 0;
	signal(SIGTERM, stop);
	open_all(argv[2], server);
	if (server)
		serve();
	else
		talk(argv[2], argc > 3);
	return 0;
}
