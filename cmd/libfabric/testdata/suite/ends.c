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

/* The server is killed in the midst of transfers. */
void test_killed(void)
{
	static unsigned char data[64][4000];
	struct want w = {0};
	struct fi_eq_cm_entry entry;
	struct fi_cq_err_entry error;
	struct fi_cq_tagged_entry c;
	struct bed b;
	int i, failed = 0;
	ssize_t n;

	open_connected(&b, &w);
	for (i = 0; i < 32; i++)
		POST(&b, fi_recv(b.ep, data[i], sizeof data[i], NULL, 0, data[i]));
	if (server) {
		POST(&b, fi_send(b.ep, data[0], 100, NULL, 0, NULL));
		OK(completion(b.tx, &c));
		step();
		raise(SIGKILL);
	}
	step();
	for (i = 32; i < 64; i++)
		fi_send(b.ep, data[i], sizeof data[i], NULL, 0, NULL);
	event(&b, FI_SHUTDOWN, &entry, 0);
	CHECK(entry.fid == &b.ep->fid, "fi_cm(3): FI_SHUTDOWN when the peer is gone");
	while ((n = fi_cq_read(b.rx, &c, 1)) == 1)
		;
	CHECK(n == -FI_EAVAIL, "fi_cq(3): receives that were posted fail");
	while (memset(&error, 0, sizeof error), fi_cq_readerr(b.rx, &error, 0) == 1)
		failed += error.err == FI_ECANCELED;
	CHECK(failed == 31, "all of them are cancelled: %d", failed);
	abandon(&b);
}
