/*
 * survivor: a server whose clients are killed in the midst of transfers. It echoes what they send, notices
 * their ends, and has what it had before when all are gone.
 *
 *	survivor server ADDRESS CLIENTS
 *	survivor client ADDRESS
 */
#include <dirent.h>
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

#define OK(call)                                                                                \
	do {                                                                                    \
		long got_ = (long)(call);                                                       \
		if (got_ != 0) {                                                                \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, fi_strerror((int)-got_)); \
			exit(1);                                                                \
		}                                                                               \
	} while (0)

enum { RECEIVES = 16, LARGEST = 60000 };

struct buffer {
	struct client *of;
	unsigned char data[LARGEST];
};

struct client {
	struct fid_ep *ep;
	struct buffer in[RECEIVES];
	struct client *next_dead;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_eq *eq;
static struct fid_cq *cq;
static long echoed;

static int count(const char *directory)
{
	DIR *d = opendir(directory);
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void open_all(const char *address, int server)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_MSG};

	hints->caps = FI_MSG;
	hints->ep_attr->type = FI_EP_MSG;
	hints->fabric_attr->prov_name = strdup("viaxdp");
	OK(fi_getinfo(FI_VERSION(1, 17), address, "7118", server ? FI_SOURCE : 0, hints, &info));
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
	OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	fi_freeinfo(hints);
}

static struct client *open_client(struct fi_info *with)
{
	struct client *c = calloc(1, sizeof *c);
	int i;

	OK(fi_endpoint(domain, with, &c->ep, c));
	OK(fi_ep_bind(c->ep, &eq->fid, 0));
	OK(fi_ep_bind(c->ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(c->ep));
	for (i = 0; i < RECEIVES; i++) {
		c->in[i].of = c;
		OK(fi_recv(c->ep, c->in[i].data, LARGEST, NULL, 0, &c->in[i]));
	}
	return c;
}

/* Sends back what has come, or drops it where the client is gone. */
static void echo(void)
{
	struct fi_cq_msg_entry e;
	struct fi_cq_err_entry error;
	ssize_t n;

	while ((n = fi_cq_read(cq, &e, 1)) != -FI_EAGAIN) {
		struct buffer *b = e.op_context;

		if (n == -FI_EAVAIL) {
			memset(&error, 0, sizeof error);
			fi_cq_readerr(cq, &error, 0);
			continue;
		}
		if (!(e.flags & FI_RECV))
			continue;
		echoed++;
		fi_send(b->of->ep, b->data, e.len, NULL, 0, NULL);
		fi_recv(b->of->ep, b->data, LARGEST, NULL, 0, b);
	}
}

static void serve(int clients)
{
	struct fi_eq_cm_entry entry;
	struct fi_eq_err_entry error;
	struct client *dead = NULL;
	struct fid_pep *pep;
	int seen = 0, gone = 0, fds = 0;
	uint32_t event;
	ssize_t n;

	OK(fi_passive_ep(fabric, info, &pep, NULL));
	OK(fi_pep_bind(pep, &eq->fid, 0));
	OK(fi_listen(pep));
	printf("ready\n");
	fflush(stdout);
	while (gone < clients) {
		echo();
		n = fi_eq_read(eq, &event, &entry, sizeof entry, 0);
		if (n == -FI_EAVAIL) {
			memset(&error, 0, sizeof error);
			fi_eq_readerr(eq, &error, 0);
			continue;
		}
		if (n < 0)
			continue;
		if (event == FI_CONNREQ) {
			struct client *c = open_client(entry.info);

			fi_freeinfo(entry.info);
			if (fi_accept(c->ep, NULL, 0) != 0) { /* it was killed already */
				OK(fi_close(&c->ep->fid));
				free(c);
				continue;
			}
			seen++;
		} else if (event == FI_SHUTDOWN) {
			struct client *c = entry.fid->context;

			OK(fi_close(&c->ep->fid));
			c->next_dead = dead; /* completions may still name its buffers */
			dead = c;
			if (++gone == 3)
				fds = count("/proc/self/fd") + 2 * (seen - gone);
		}
	}
	echo();
	n = count("/proc/self/fd");
	if (n > fds) {
		fprintf(stderr, "survivor: %zd descriptors, %d at first\n", n, fds);
		exit(1);
	}
	while (dead) {
		struct client *c = dead;

		dead = c->next_dead;
		free(c);
	}
	OK(fi_close(&pep->fid));
	OK(fi_close(&cq->fid));
	OK(fi_close(&eq->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
	printf("survivor: %d clients, %ld echoes\n", gone, echoed);
}

/* Until it is killed. */
static void bother(void)
{
	static unsigned char data[LARGEST];
	struct fi_eq_cm_entry entry;
	struct fi_cq_msg_entry e;
	struct client *c = open_client(info);
	int under_way = 0;
	uint32_t event;

	OK(fi_connect(c->ep, info->dest_addr, NULL, 0));
	if (fi_eq_sread(eq, &event, &entry, sizeof entry, -1, 0) < 0 || event != FI_CONNECTED)
		exit(1);
	printf("connected\n");
	fflush(stdout);
	for (;;) {
		if (under_way < RECEIVES && fi_send(c->ep, data, (size_t)rand() % LARGEST, NULL, 0, NULL) == 0)
			under_way++;
		if (fi_cq_read(cq, &e, 1) == 1 && e.flags & FI_RECV) {
			under_way--;
			fi_recv(c->ep, ((struct buffer *)e.op_context)->data, LARGEST, NULL, 0, e.op_context);
		}
	}
}

int main(int argc, char **argv)
{
	int server = argc > 1 && strcmp(argv[1], "server") == 0;

	if (argc < 3 + server)
		return 2;
	srand((unsigned)getpid());
	open_all(argv[2], server);
	if (server)
		serve(atoi(argv[3]));
	else
		bother();
	return 0;
}
