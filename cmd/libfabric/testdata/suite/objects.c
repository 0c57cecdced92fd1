/* fi_fabric(3), fi_domain(3), fi_eq(3), fi_cq(3), fi_cntr(3), fi_mr(3), fi_endpoint(3): objects without a connection. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "suite.h"

static void *interrupt(void *cq)
{
	usleep(100000);
	OK(fi_cq_signal(cq));
	return NULL;
}

static void *interrupted(void *cq)
{
	struct fi_cq_data_entry entry;
	double began = seconds();
	ssize_t got = fi_cq_sread(cq, &entry, 1, NULL, 10000);

	CHECK(got == -FI_EAGAIN && seconds() - began < 9, "fi_cq(3): fi_cq_signal unblocks any thread: %zd", got);
	return NULL;
}

static void queues(struct bed *b)
{
	struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_UNSPEC};
	struct fi_cq_err_entry error = {0};
	struct fi_cq_data_entry entry;
	fi_addr_t from;
	struct fid_cq *cq;
	pthread_t thread, threads[2];
	double began;
	ssize_t got;
	int i;

	OK(fi_cq_open(b->domain, &attr, &cq, NULL));
	CHECK(fi_close(&b->domain->fid) == -FI_EBUSY, "fi_domain(3): a domain with a CQ is busy");
	CHECK((got = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN, "fi_cq(3): -FI_EAGAIN from an empty queue, not %zd", got);
	CHECK((got = fi_cq_readfrom(cq, &entry, 1, &from)) == -FI_EAGAIN, "fi_cq(3): fi_cq_readfrom, too: %zd", got);
	CHECK((got = fi_cq_readerr(cq, &error, 0)) == -FI_EAGAIN, "fi_cq(3): fi_cq_readerr returns at once: %zd", got);
	began = seconds();
	CHECK((got = fi_cq_sread(cq, &entry, 1, NULL, 100)) == -FI_EAGAIN, "fi_cq(3): -FI_EAGAIN after the time, not %zd", got);
	CHECK(seconds() - began > 0.09, "fi_cq(3): fi_cq_sread waits for the time");
	pthread_create(&thread, NULL, interrupt, cq);
	began = seconds();
	got = fi_cq_sread(cq, &entry, 1, NULL, 10000);
	CHECK(got < 0 && seconds() - began < 9, "fi_cq(3): fi_cq_signal unblocks fi_cq_sread");
	pthread_join(thread, NULL);
	for (i = 0; i < 2 && ours; i++) /* tcp wakes one of them */
		pthread_create(&threads[i], NULL, interrupted, cq);
	interrupt(cq);
	for (i = 0; i < 2 && ours; i++)
		pthread_join(threads[i], NULL);
	OK(fi_close(&cq->fid));
}

static void events(struct bed *b)
{
	struct fi_eq_entry in = {.context = b, .data = 77}, out;
	struct fi_eq_err_entry error = {0};
	uint32_t what = 0;
	double began = seconds();
	ssize_t got;

	CHECK((got = fi_eq_read(b->eq, &what, &out, sizeof out, 0)) == -FI_EAGAIN, "fi_eq(3): -FI_EAGAIN from an empty queue, not %zd", got);
	CHECK((got = fi_eq_readerr(b->eq, &error, 0)) == -FI_EAGAIN, "fi_eq(3): no error, not %zd", got);
	got = fi_eq_sread(b->eq, &what, &out, sizeof out, 100, 0);
	CHECK(got < 0 && seconds() - began > 0.09, "fi_eq(3): fi_eq_sread waits for the time");
	CHECK((got = fi_eq_write(b->eq, FI_NOTIFY, &in, sizeof in, 0)) == sizeof in, "fi_eq(3): fi_eq_write returns the bytes, not %zd", got);
	CHECK((got = fi_eq_read(b->eq, &what, &out, sizeof out, FI_PEEK)) == sizeof out, "fi_eq(3): FI_PEEK reads, %zd", got);
	CHECK(what == FI_NOTIFY && out.data == 77 && out.context == b, "fi_eq(3): what was written");
	memset(&out, 0, sizeof out);
	CHECK((got = fi_eq_read(b->eq, &what, &out, sizeof out, 0)) == sizeof out && out.data == 77, "fi_eq(3): FI_PEEK leaves it, %zd", got);
	CHECK(fi_eq_read(b->eq, &what, &out, sizeof out, 0) == -FI_EAGAIN, "fi_eq(3): an event is read once");
}

/* An EQ without a wait object: fi_eq_sread refuses, and leaves the event. */
static void events_without_wait(struct bed *b)
{
	struct fi_eq_attr attr = {.wait_obj = FI_WAIT_NONE, .flags = FI_WRITE};
	struct fi_eq_entry in = {.data = 78}, out = {0};
	struct fid_eq *eq;
	uint32_t what = 0;
	ssize_t got;

	OK(fi_eq_open(b->fabric, &attr, &eq, NULL));
	CHECK((got = fi_eq_write(eq, FI_NOTIFY, &in, sizeof in, 0)) == sizeof in, "fi_eq(3): fi_eq_write returns the bytes, not %zd", got);
	got = fi_eq_sread(eq, &what, &out, sizeof out, 100, 0);
	CHECK(got == -FI_ENOSYS, "fi_eq(3): fi_eq_sread needs a wait object: %zd", got);
	got = fi_eq_read(eq, &what, &out, sizeof out, 0);
	CHECK(got == sizeof out && what == FI_NOTIFY && out.data == 78, "fi_eq(3): the event is still there: %zd", got);
	OK(fi_close(&eq->fid));
}

static void counters(struct bed *b)
{
	struct fi_cntr_attr attr = {.wait_obj = FI_WAIT_UNSPEC};
	struct fid_cntr *cntr;
	double began;

	OK(fi_cntr_open(b->domain, &attr, &cntr, NULL));
	CHECK(fi_cntr_read(cntr) == 0 && fi_cntr_readerr(cntr) == 0, "fi_cntr(3): a counter begins at 0");
	OK(fi_cntr_set(cntr, 5));
	OK(fi_cntr_add(cntr, 3));
	OK(fi_cntr_adderr(cntr, 2));
	CHECK(fi_cntr_read(cntr) == 8 && fi_cntr_readerr(cntr) == 2, "fi_cntr(3): set, add, adderr");
	OK(fi_cntr_seterr(cntr, 0));
	CHECK(fi_cntr_readerr(cntr) == 0, "fi_cntr(3): seterr");
	OK(fi_cntr_wait(cntr, 8, 1000));
	began = seconds();
	CHECK(fi_cntr_wait(cntr, 9, 100) == -FI_ETIMEDOUT && seconds() - began > 0.09, "fi_cntr(3): -FI_ETIMEDOUT after the time");
	OK(fi_close(&cntr->fid));
}

static void memory(struct bed *b)
{
	static char data[10000];
	struct iovec iov = {data, sizeof data};
	struct fi_mr_attr attr = {.mr_iov = &iov, .iov_count = 1, .access = FI_REMOTE_READ | FI_REMOTE_WRITE, .context = b, .requested_key = 3,
		.iface = ours ? FI_HMEM_CUDA : FI_HMEM_SYSTEM}; /* fi_mr(3): it is ignored without FI_HMEM; tcp reads it */
	struct fid_mr *one, *two, *three;

	OK(fi_mr_reg(b->domain, data, sizeof data, FI_REMOTE_READ, 0, 1, 0, &one, NULL));
	OK(fi_mr_regv(b->domain, &iov, 1, FI_SEND | FI_RECV, 0, 2, 0, &two, NULL));
	OK(fi_mr_regattr(b->domain, &attr, 0, &three));
	CHECK(fi_mr_key(one) != FI_KEY_NOTAVAIL && fi_mr_key(three) != fi_mr_key(one), "fi_mr(3): each region has a key");
	CHECK(three->fid.context == b, "fi_mr(3): the context is the program's");
	CHECK(fi_close(&b->domain->fid) == -FI_EBUSY, "fi_domain(3): a domain with regions is busy");
	OK(fi_close(&one->fid));
	OK(fi_close(&two->fid));
	OK(fi_close(&three->fid));
}

static int no_threads; /* a thread of default attributes cannot be started: those of Go have others */

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
	int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");

	return no_threads && !attr ? EAGAIN : next(thread, attr, run, arg);
}

/* fi_connect that fails, as no thread can be started or no memory can be registered any more, can be called again. It leaks nothing (TestSanitizers). */
static void connects_in_vain(struct bed *b, struct fid_ep *ep)
{
	enum { MOST = 1 << 16 };
	struct fid_mr **all = calloc(MOST, sizeof *all);
	int i, n = 0;

	no_threads = 1;
	CHECK(fi_connect(ep, b->info->src_addr, "data", 4) == -FI_EAGAIN, "fi_cm(3): fi_connect without a thread");
	no_threads = 0;
	while (n < MOST && !fi_mr_reg(b->domain, all, 1, FI_REMOTE_READ, 0, (uint64_t)n, 0, &all[n], NULL))
		n++;
	for (i = 0; i < 3; i++)
		CHECK(fi_connect(ep, b->info->src_addr, "data", 4) == -FI_ENOMEM, "fi_cm(3): fi_connect with %d regions", n);
	while (n--)
		OK(fi_close(&all[n]->fid));
	free(all);
}

static void endpoints(struct bed *b)
{
	struct fi_cq_attr attr = {0};
	struct fid_cq *cq;
	struct fid_ep *ep;
	size_t size = 0, length = sizeof size;
	char name[64];

	if (ours) {
		size_t was = b->info->rx_attr->size;

		b->info->rx_attr->size = SIZE_MAX;
		CHECK(fi_endpoint(b->domain, b->info, &ep, b) == -FI_EINVAL, "fi_endpoint(3): more receives than fi_getinfo allows");
		b->info->rx_attr->size = was;
	}
	OK(fi_endpoint(b->domain, b->info, &ep, b));
	CHECK(ep->fid.context == b, "fi_endpoint(3): the context is the program's");
	CHECK(fi_enable(ep) < 0, "fi_endpoint(3): an endpoint without queues cannot be enabled");
	OK(fi_cq_open(b->domain, &attr, &cq, NULL));
	OK(fi_ep_bind(ep, &b->eq->fid, 0));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	if (ours) { /* tcp of libfabric 1.17 frees a part of a queue that is busy */
		CHECK(fi_close(&cq->fid) == -FI_EBUSY, "fi_cq(3): a CQ with an endpoint is busy");
		CHECK(fi_close(&b->eq->fid) == -FI_EBUSY, "fi_eq(3): an EQ with an endpoint is busy");
	}
	OK(fi_enable(ep));
	if (ours)
		connects_in_vain(b, ep);
	OK(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &size, &length));
	CHECK(size >= 24 && length == sizeof size, "fi_endpoint(3), fi_rxm(7): FI_OPT_CM_DATA_SIZE");
	CHECK(!ours || size >= 64, "viaxdp has 64 bytes or more");
	length = 1;
	CHECK(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &size, &length) == -FI_ETOOSMALL && length == sizeof size,
		"fi_getopt: -FI_ETOOSMALL, and the size needed");
	length = sizeof name;
	OK(fi_getname(&ep->fid, name, &length));
	CHECK(length == b->info->src_addrlen, "fi_cm(3): fi_getname gives an address of the format");
	length = 2;
	CHECK(fi_getname(&ep->fid, name, &length) == -FI_ETOOSMALL && length == b->info->src_addrlen, "fi_cm(3): -FI_ETOOSMALL, and the size needed");
	OK(fi_close(&ep->fid));
	OK(fi_close(&cq->fid));
}

/* An endpoint for RMA only needs a queue for its operations, too. */
static void unqueued(struct bed *b)
{
	struct fi_info *info = find(address, NULL, server ? FI_SOURCE : 0, FI_RMA);
	struct fid_ep *ep;
	int got;

	OK(fi_endpoint(b->domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &b->eq->fid, 0));
	CHECK((got = fi_enable(ep)) == -FI_ENOCQ, "fi_endpoint(3): an endpoint that reads and writes needs a CQ: %d", got);
	OK(fi_close(&ep->fid));
	fi_freeinfo(info);
}

/* An endpoint takes the address of a listener. */
static void inherited(struct bed *b)
{
	struct fi_info *h = hints_of(FI_MSG), *info;
	size_t length = b->info->src_addrlen, other = length;
	char name[64], as[64];
	struct fid_pep *pep;
	struct fid_ep *ep;

	OK(fi_passive_ep(b->fabric, b->info, &pep, NULL));
	OK(fi_setname(&pep->fid, b->info->src_addr, length));
	OK(fi_getname(&pep->fid, name, &length));
	h->handle = &pep->fid;
	OK(fi_getinfo(FI_VERSION(1, 17), address, NULL, server ? FI_SOURCE : 0, h, &info));
	CHECK(info->handle == &pep->fid, "fi_getinfo(3): the handle of a passive endpoint is copied");
	OK(fi_endpoint(b->domain, info, &ep, NULL));
	OK(fi_close(&pep->fid));
	OK(fi_getname(&ep->fid, as, &other));
	CHECK(other == length && !memcmp(as, name, length), "fi_endpoint(3): the endpoint has its address");
	OK(fi_close(&ep->fid));
	fi_freeinfo(info);
	fi_freeinfo(h);
}

/* Endpoints of an fi_info without a source address. */
static void unnamed(struct bed *b)
{
	size_t length = b->info->src_addrlen, other = length;
	char name[64], as[64];
	struct fid_pep *pep;
	struct fid_ep *ep;

	memcpy(name, b->info->src_addr, length);
	free(b->info->src_addr);
	b->info->src_addr = NULL;
	b->info->src_addrlen = 0;
	OK(fi_endpoint(b->domain, b->info, &ep, NULL));
	OK(fi_getname(&ep->fid, as, &other)); /* tcp gets one when it connects */
	CHECK(!ours || (other == length && !memcmp(as, name, length)), "fi_cm(3): an endpoint gets an address of its domain");
	OK(fi_close(&ep->fid));
	OK(fi_passive_ep(b->fabric, b->info, &pep, NULL));
	OK(fi_setname(&pep->fid, name, length));
	OK(fi_close(&pep->fid));
}

void test_objects(void)
{
	struct want w = {0};
	struct bed b;

	open_bed(&b, &w);
	CHECK(fi_close(&b.fabric->fid) == -FI_EBUSY, "fi_fabric(3): a fabric with a domain is busy");
	CHECK(b.domain->fid.fclass == FI_CLASS_DOMAIN && b.eq->fid.fclass == FI_CLASS_EQ, "fabric.h: classes");
	queues(&b);
	events(&b);
	if (ours) /* tcp reads the event */
		events_without_wait(&b);
	counters(&b);
	memory(&b);
	endpoints(&b);
	unqueued(&b);
	inherited(&b);
	unnamed(&b);
	close_bed(&b);
}

/* Hints with a domain or a fabric find nothing else; NULL: it is not open. */
static void only(struct fid_fabric *fabric, struct fid_domain *domain, const char *name)
{
	struct fi_info *h = hints_of(FI_MSG), *info, *i;

	h->fabric_attr->fabric = fabric;
	h->domain_attr->domain = domain;
	CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, h, &info) == (name ? 0 : -FI_ENODATA), "fi_domain(3), fi_fabric(3): the hints' domain, or fabric");
	for (i = info; i; i = i->next)
		CHECK(strcmp(i->domain_attr->name, name) == 0, "fi_domain(3), fi_fabric(3): the hints have %s, not %s", name, i->domain_attr->name);
	fi_freeinfo(info);
	fi_freeinfo(h);
}

/* What belongs to another interface's domain. The host has via0, with the address, and via1. */
void test_interfaces(void)
{
	struct fi_cntr_attr counting = {.wait_obj = FI_WAIT_UNSPEC};
	struct fi_cq_attr attr = {.wait_obj = FI_WAIT_UNSPEC};
	struct fi_info *h = hints_of(FI_MSG), *info;
	struct fid_domain *domain;
	struct fid_fabric *fabric;
	struct fid_cntr *cntr;
	struct want w = {0};
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct bed b;
	int got;

	open_bed(&b, &w);
	h->domain_attr->name = strdup("via1");
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, h, &info));
	fi_freeinfo(h);
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	only(NULL, domain, "via1");
	only(NULL, b.domain, "via0");
	only(NULL, (struct fid_domain *)&attr, NULL);
	only(fabric, NULL, "via1");
	only(b.fabric, NULL, "via0");
	only((struct fid_fabric *)&attr, NULL, NULL);
	OK(fi_cq_open(domain, &attr, &cq, NULL));
	OK(fi_cntr_open(domain, &counting, &cntr, NULL));
	OK(fi_endpoint(b.domain, b.info, &ep, NULL));
	CHECK((got = fi_ep_bind(ep, &cq->fid, FI_TRANSMIT)) == -FI_EINVAL, "fi_endpoint(3): a CQ is of the endpoint's domain: %d", got);
	CHECK((got = fi_ep_bind(ep, &cntr->fid, FI_SEND)) == -FI_EINVAL, "fi_endpoint(3): a counter is of the endpoint's domain: %d", got);
	OK(fi_close(&ep->fid));
	OK(fi_close(&cntr->fid));
	OK(fi_close(&cq->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
	close_bed(&b);
}
