/*
 * survivor: a server and clients with mixed traffic, either of which may be killed at any time. Clients send messages
 * of all lengths, which the server echoes, and write and read the server's memory; they check everything that comes
 * back. The other side notices each end, and has what it had before when all are gone.
 *
 *	survivor server ADDRESS [CLIENTS]       ends after so many clients, or by SIGTERM
 *	survivor client ADDRESS ID [MS | forever]
 *
 * A client ends by itself after a time. One that stays forever connects again whenever the server has gone, and
 * checks at the end, by SIGTERM, that it has no more descriptors and threads than with its first connection. ID is
 * that of its part of the server's memory.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define OK(call)                                                                                \
	do {                                                                                    \
		long got_ = (long)(call);                                                       \
		if (got_ != 0) {                                                                \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, fi_strerror((int)-got_)); \
			exit(1);                                                                \
		}                                                                               \
	} while (0)

enum { WINDOW = 16, LARGEST = 100000, PART = 1 << 18, PARTS = 8 };

struct buffer {
	struct client *of;
	unsigned char data[LARGEST];
};

struct client { /* a connection, at either side */
	struct fid_ep *ep;
	int dead;
	struct buffer in[WINDOW];
	struct client *next_dead;
};

struct target { /* what the server tells of a client's part of its memory */
	uint64_t address, key;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_eq *eq;
static struct fid_cq *cq;
static volatile sig_atomic_t stopped;

static void stop(int signal)
{
	(void)signal;
	stopped = 1;
}

static int count(const char *directory)
{
	DIR *d = opendir(directory);
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void open_all(const char *address, int server)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_DATA};

	hints->caps = FI_MSG | FI_RMA;
	hints->ep_attr->type = FI_EP_MSG;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup("viaxdp");
	OK(fi_getinfo(FI_VERSION(1, 17), address, "7118", server ? FI_SOURCE : 0, hints, &info));
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
	OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	fi_freeinfo(hints);
}

static void close_all(void)
{
	OK(fi_close(&cq->fid));
	OK(fi_close(&eq->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
}

static struct client *open_client(struct fi_info *with)
{
	struct client *c = calloc(1, sizeof *c);
	int i;

	OK(fi_endpoint(domain, with, &c->ep, c));
	OK(fi_ep_bind(c->ep, &eq->fid, 0));
	OK(fi_ep_bind(c->ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(c->ep));
	for (i = 0; i < WINDOW; i++) {
		c->in[i].of = c;
		OK(fi_recv(c->ep, c->in[i].data, LARGEST, NULL, 0, &c->in[i]));
	}
	return c;
}

/*
 * The server.
 */
static long echoed, written;

/* Sends back what has come, and receives the next once that is sent; until the queue is empty. */
static void echo(void)
{
	struct fi_cq_data_entry e;
	struct fi_cq_err_entry error;
	ssize_t n;

	while ((n = fi_cq_read(cq, &e, 1)) != -FI_EAGAIN) {
		struct buffer *b = e.op_context;

		if (n == -FI_EAVAIL) {
			memset(&error, 0, sizeof error);
			fi_cq_readerr(cq, &error, 0);
			continue;
		}
		if (e.flags & FI_REMOTE_WRITE) {
			written++;
			continue;
		}
		if (b->of->dead)
			continue;
		if (e.flags & FI_RECV) {
			echoed++;
			fi_send(b->of->ep, b->data, e.len, NULL, 0, b);
		} else {
			fi_recv(b->of->ep, b->data, LARGEST, NULL, 0, b);
		}
	}
}

static void end(struct client *c)
{
	OK(fi_close(&c->ep->fid));
	c->dead = 1;
	echo(); /* completions may still name its buffers */
	free(c);
}

static void serve(int clients)
{
	static unsigned char memory[PARTS][PART];
	struct {
		struct fi_eq_cm_entry entry;
		uint32_t id;
	} r;
	struct fi_eq_err_entry error;
	struct fid_mr *mr;
	struct fid_pep *pep;
	struct client *live[64] = {NULL};
	int seen = 0, gone = 0, fds = 0, i;
	uint32_t event;
	ssize_t n;

	OK(fi_mr_reg(domain, memory, sizeof memory, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0, &mr, NULL));
	OK(fi_passive_ep(fabric, info, &pep, NULL));
	OK(fi_pep_bind(pep, &eq->fid, 0));
	OK(fi_listen(pep));
	printf("ready\n");
	fflush(stdout);
	while (!stopped && (!clients || gone < clients)) {
		echo();
		n = fi_eq_read(eq, &event, &r, sizeof r, 0);
		if (n == -FI_EAVAIL) {
			memset(&error, 0, sizeof error);
			fi_eq_readerr(eq, &error, 0);
			continue;
		}
		if (n < 0)
			continue;
		if (event == FI_CONNREQ) {
			struct client *c = open_client(r.entry.info);
			struct target t = {(uint64_t)(uintptr_t)memory[r.id % PARTS], fi_mr_key(mr)};

			fi_freeinfo(r.entry.info);
			if (fi_accept(c->ep, &t, sizeof t) != 0) { /* it was killed already */
				end(c);
				continue;
			}
			for (i = 0; i < 63 && live[i]; i++)
				;
			live[i] = c;
			seen++;
		} else if (event == FI_SHUTDOWN) {
			struct client *c = r.entry.fid->context;

			for (i = 0; i < 64; i++)
				if (live[i] == c)
					live[i] = NULL;
			end(c);
			if (++gone == 3)
				fds = count("/proc/self/fd") + 2 * (seen - gone);
		}
	}
	echo();
	n = count("/proc/self/fd");
	if (gone > 3 && n > fds + 2 * (seen - gone)) {
		fprintf(stderr, "survivor: %zd descriptors, %d at first\n", n, fds);
		exit(1);
	}
	for (i = 0; i < 64; i++)
		if (live[i])
			end(live[i]);
	OK(fi_close(&pep->fid));
	OK(fi_close(&mr->fid));
	close_all();
	printf("survivor: %d clients, %ld echoes, %ld writes with data\n", gone, echoed, written);
}

/*
 * A client.
 */
static unsigned char out[WINDOW][LARGEST], local[PART], wanted[PART];

static size_t size_of(unsigned message)
{
	unsigned h = message * 2654435761u;

	switch (h >> 29) {
	case 0:
		return h % LARGEST;
	case 1:
	case 2:
		return h % 17000;
	default:
		return h % 300;
	}
}

static void fill(unsigned char *p, size_t n, unsigned seed)
{
	size_t i;

	for (i = 0; i < n; i++)
		p[i] = (unsigned char)(seed * 31 + i * 7 + (i >> 8));
}

static void wrong(const char *what, unsigned number)
{
	fprintf(stderr, "survivor: wrong data: %s %u\n", what, number);
	exit(3);
}

/* The next write or read of the server's memory; 0: it is not possible now. */
static int access_memory(struct client *c, struct target t, unsigned n)
{
	size_t length = size_of(n / 2 + 77) + 1;

	if (n % 2)
		return fi_read(c->ep, local, length, NULL, 0, t.address, t.key, local) == 0;
	fill(wanted, length, n);
	if (n % 3 == 0)
		return fi_writedata(c->ep, wanted, length, NULL, n, 0, t.address, t.key, local) == 0;
	return fi_write(c->ep, wanted, length, NULL, 0, t.address, t.key, local) == 0;
}

/* Traffic on a connection until it ends, or the time or the program does. */
static void talk(struct client *c, struct target t, double until)
{
	unsigned sent = 0, received = 0, accesses = 0, accessing = 0, polls = 0;
	struct fi_eq_cm_entry entry;
	struct fi_cq_data_entry e;
	uint32_t event;
	ssize_t n;

	while (!stopped && seconds() < until) {
		size_t size = size_of(sent);
		unsigned char *data = out[sent % WINDOW];

		if (sent - received < WINDOW) {
			fill(data, size, sent);
			if ((size <= 300 && sent % 4 == 0 ? fi_inject(c->ep, data, size, 0) : fi_send(c->ep, data, size, NULL, 0, data)) == 0)
				sent++;
		}
		if (!accessing)
			accessing = (unsigned)access_memory(c, t, accesses);
		n = fi_cq_read(cq, &e, 1);
		if (n == 1 && e.flags & FI_RECV) {
			struct buffer *b = e.op_context;

			size = size_of(received);
			fill(out[received % WINDOW], size, received);
			if (e.len != size || memcmp(b->data, out[received % WINDOW], size) != 0)
				wrong("echo", received);
			received++;
			fi_recv(c->ep, b->data, LARGEST, NULL, 0, b);
		} else if (n == 1 && e.flags & FI_RMA) {
			if (e.flags & FI_READ && memcmp(local, wanted, size_of(accesses / 2 + 77) + 1) != 0)
				wrong("read", accesses);
			accesses++;
			accessing = 0;
		} else if (n == -FI_EAVAIL) {
			struct fi_cq_err_entry error = {0};

			fi_cq_readerr(cq, &error, 0);
		}
		if (++polls % 64 == 0 && fi_eq_read(eq, &event, &entry, sizeof entry, 0) > 0 && event == FI_SHUTDOWN)
			return;
	}
}

static void drain(void)
{
	struct fi_cq_data_entry e;
	struct fi_cq_err_entry error = {0};
	struct fi_eq_err_entry failed;
	struct fi_eq_cm_entry entry;
	uint32_t event;
	ssize_t n;

	while ((n = fi_cq_read(cq, &e, 1)) != -FI_EAGAIN)
		if (n == -FI_EAVAIL)
			fi_cq_readerr(cq, &error, 0);
	while ((n = fi_eq_read(eq, &event, &entry, sizeof entry, 0)) != -FI_EAGAIN)
		if (n == -FI_EAVAIL) {
			memset(&failed, 0, sizeof failed);
			fi_eq_readerr(eq, &failed, 0);
		}
}

static void bother(uint32_t id, double until, int forever)
{
	struct {
		struct fi_eq_cm_entry entry;
		struct target target;
	} r;
	int fds = 0, threads = 0, connections = 0;
	uint32_t event;

	do {
		struct client *c = open_client(info);

		OK(fi_connect(c->ep, info->dest_addr, &id, sizeof id));
		printf("connecting\n");
		fflush(stdout);
		if (fi_eq_sread(eq, &event, &r, sizeof r, forever ? 20000 : -1, 0) >= (ssize_t)sizeof r && event == FI_CONNECTED) {
			printf("connected\n");
			fflush(stdout);
			if (++connections == 2) {
				fds = count("/proc/self/fd");
				threads = count("/proc/self/task");
			}
			talk(c, r.target, until);
		} else if (!forever) {
			struct fi_eq_err_entry error = {0};

			fi_eq_readerr(eq, &error, 0);
			fprintf(stderr, "survivor: no connection: %s (%d)\n", fi_strerror(error.err), error.prov_errno);
			exit(1);
		} else {
			usleep(50000);
		}
		OK(fi_close(&c->ep->fid));
		drain();
		free(c);
	} while (forever && !stopped);
	if (connections > 2 && (count("/proc/self/fd") > fds || count("/proc/self/task") > threads + 3)) {
		fprintf(stderr, "survivor: %d descriptors and %d threads, %d and %d at first\n", count("/proc/self/fd"),
			count("/proc/self/task"), fds, threads);
		exit(1);
	}
	close_all();
	printf("survivor: %d connections\n", connections);
}

int main(int argc, char **argv)
{
	int server = argc > 1 && strcmp(argv[1], "server") == 0, forever;

	if (argc < 4 - server)
		return 2;
	signal(SIGTERM, stop);
	open_all(argv[2], server);
	forever = argc > 4 && strcmp(argv[4], "forever") == 0;
	if (server)
		serve(argc > 3 ? atoi(argv[3]) : 0);
	else
		bother((uint32_t)atoi(argv[3]), argc > 4 && !forever ? seconds() + atof(argv[4]) / 1000 : 1e18, forever);
	return 0;
}
