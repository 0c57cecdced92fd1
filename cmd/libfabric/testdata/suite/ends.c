/* fi_cm(3), fi_endpoint(3): the end of a connection. */
#include "suite.h"

#include <dirent.h>
#include <signal.h>

/* fi_shutdown: what was sent arrives, then the peer gets FI_SHUTDOWN, and receives are cancelled. */
static void shut(void)
{
	struct want w = {0};
	struct fi_eq_cm_entry entry;
	struct fi_cq_tagged_entry c;
	struct fi_cq_err_entry error;
	unsigned char data[2][100];
	struct bed b;

	open_connected(&b, &w);
	POST(&b, fi_recv(b.ep, data[0], 100, NULL, 0, data[0]));
	POST(&b, fi_recv(b.ep, data[1], 100, NULL, 0, data[1]));
	step();
	if (server) {
		POST(&b, fi_inject(b.ep, "the last", 8, 0));
		OK(fi_shutdown(b.ep, 0));
		CHECK(!ours || fi_send(b.ep, data, 1, NULL, 0, NULL) < 0, "fi_cm(3): no transfer after fi_shutdown");
	} else {
		OK(completion(b.rx, &c));
		CHECK(c.op_context == data[0] && c.len == 8 && !memcmp(data[0], "the last", 8), "fi_cm(3): what was sent before fi_shutdown arrives");
		event(&b, FI_SHUTDOWN, &entry, 0);
		CHECK(entry.fid == &b.ep->fid, "fi_eq(3): the fid of FI_SHUTDOWN is the endpoint's");
		if (ours) {
			CHECK(completion_error(b.rx, &error) == FI_ECANCELED && error.op_context == data[1], "fi_cm(3): a posted receive is cancelled");
			CHECK(fi_send(b.ep, data, 1, NULL, 0, NULL) == -FI_ENOTCONN, "a send on an ended connection");
		}
	}
	close_bed(&b);
}

/* fi_close of an endpoint ends its connection as well. */
static void closed(void)
{
	struct want w = {0};
	struct fi_eq_cm_entry entry;
	struct bed b;

	open_connected(&b, &w);
	if (server) {
		OK(fi_close(&b.ep->fid));
		b.ep = NULL;
	} else {
		event(&b, FI_SHUTDOWN, &entry, 0);
	}
	close_bed(&b);
}

/* An endpoint is closed with operations on it, and without ever having a connection. */
static void discarded(void)
{
	struct want w = {0};
	static unsigned char data[300][20000];
	struct bed b;
	int i;

	open_connected(&b, &w);
	for (i = 0; i < 50; i++)
		POST(&b, fi_recv(b.ep, data[i], sizeof data[i], NULL, 0, NULL));
	step(); /* both have posted before one of them closes */
	if (server)
		for (i = 0; i < 100; i++)
			if (fi_send(b.ep, data[i], sizeof data[i], NULL, 0, NULL) != 0)
				break;
	OK(fi_close(&b.ep->fid));
	b.ep = NULL;
	close_bed(&b);
	open_bed(&b, &w);
	open_ep(&b, b.info, &w);
	close_bed(&b);
}

static int descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* Connections come and go; nothing of them stays. */
static void again(void)
{
	struct want w = {0};
	struct bed b;
	int i, first = 0, last;

	for (i = 0; i < 20; i++) {
		open_connected(&b, &w);
		close_bed(&b);
		if (i == 4)
			first = descriptors();
	}
	last = descriptors();
	CHECK(last <= first, "fi_close releases what there was: %d descriptors, then %d", first, last);
}

void test_ends(void)
{
	shut();
	closed();
	discarded();
	again();
}

enum { SLOTS = 64, BIG = (SLOTS + 2) << 20 }; /* more than viaxdp hands to the VI at a time, a descriptor for each MiB */

/* RDMA operations that have to wait for a send slot. */
struct writes {
	struct bed b;
	uint64_t where[2]; /* address and key */
	int begun, ended[SLOTS + 1];
};

static unsigned char big[BIG];

static void begin_write(struct writes *w, size_t n, int with_data)
{
	void *context = &w->ended[w->begun];
	ssize_t got = with_data ? fi_writedata(w->b.ep, big, n, NULL, 1, 0, w->where[0], w->where[1], context) :
		fi_write(w->b.ep, big, n, NULL, 0, w->where[0], w->where[1], context);

	if (got == -FI_ENOTCONN) /* the provider has noticed that the peer is gone */
		return;
	OK(got);
	w->begun++;
}

/* Each of them ends once, with an error. */
static void end_writes(struct writes *w)
{
	struct fi_cq_err_entry error;
	struct fi_eq_cm_entry entry;
	struct fi_cq_tagged_entry c;
	int *ended, left = w->begun;

	event(&w->b, FI_SHUTDOWN, &entry, 0);
	while (fi_cq_read(w->b.tx, &c, 1) == -FI_EAVAIL) {
		memset(&error, 0, sizeof error);
		CHECK(fi_cq_readerr(w->b.tx, &error, 0) == 1, "fi_cq(3): fi_cq_readerr returns the entry");
		ended = error.op_context;
		CHECK(ended >= w->ended && ended < w->ended + w->begun && !*ended, "fi_cq(3): an operation completes once");
		*ended = 1;
		left--;
	}
	CHECK(left == 0, "fi_cq(3): all writes to a peer that is gone fail: %d of %d are left", left, w->begun);
}

/* The server is killed in the midst of transfers. */
void test_killed(void)
{
	static unsigned char data[64][4000];
	struct want w = {0};
	struct fi_eq_cm_entry entry;
	struct fi_cq_err_entry error;
	struct fi_cq_tagged_entry c;
	static struct writes writes[2];
	struct fid_mr *mr;
	struct bed b;
	int i, failed = 0;
	ssize_t n;

	for (i = 0; i < 2; i++)
		open_connected(&writes[i].b, &w);
	open_connected(&b, &w);
	for (i = 0; i < 10; i++) { /* so that no thread of the provider is asked to make progress any more */
		POST(&b, fi_recv(b.ep, data[0], sizeof data[0], NULL, 0, NULL));
		step();
		POST(&b, fi_send(b.ep, data[1], 100, NULL, 0, NULL));
		OK(completion(b.tx, &c));
		OK(completion(b.rx, &c));
	}
	for (i = 0; i < 32; i++)
		POST(&b, fi_recv(b.ep, data[i], sizeof data[i], NULL, 0, data[i]));
	if (server) {
		POST(&b, fi_send(b.ep, data[0], 100, NULL, 0, NULL));
		OK(completion(b.tx, &c));
		for (i = 0; i < 2; i++) {
			OK(fi_mr_reg(writes[i].b.domain, big, BIG, FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
			writes[i].where[0] = (uint64_t)(uintptr_t)big;
			writes[i].where[1] = fi_mr_key(mr);
			tell(writes[i].where, sizeof writes[i].where);
		}
		step();
		raise(SIGKILL);
	}
	for (i = 0; i < 2; i++)
		hear(writes[i].where, sizeof writes[i].where);
	step();
	CHECK(heard(15000), "the server's end closes its socket");
	begin_write(&writes[0], BIG, 0); /* waits for a slot for data */
	begin_write(&writes[1], 100000, 0);
	for (i = 0; i < SLOTS / 2; i++) /* two slots each: the last one waits for one for its message */
		begin_write(&writes[1], 100000, 1);
	for (i = 32; i < 64; i++)
		fi_send(b.ep, data[i], sizeof data[i], NULL, 0, NULL);
	sleep(6); /* the VIs notice, and no call of the program takes what they have flushed */
	for (i = 0; i < 2; i++) /* this one does, to get a slot for the operation that waits */
		begin_write(&writes[i], 100, 0);
	event(&b, FI_SHUTDOWN, &entry, 0);
	CHECK(entry.fid == &b.ep->fid, "fi_cm(3): FI_SHUTDOWN when the peer is gone");
	while ((n = fi_cq_read(b.rx, &c, 1)) == 1)
		;
	CHECK(n == -FI_EAVAIL, "fi_cq(3): receives that were posted fail");
	while (memset(&error, 0, sizeof error), fi_cq_readerr(b.rx, &error, 0) == 1)
		failed += error.err == FI_ECANCELED;
	CHECK(failed == 31, "all of them are cancelled: %d", failed);
	for (i = 0; i < 2; i++)
		end_writes(&writes[i]);
	abandon(&b);
}
