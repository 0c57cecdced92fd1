/* fi_cm(3): connections are made, with data both ways, refused, and ended. */
#include "suite.h"

struct room {
	struct fi_eq_cm_entry entry;
	unsigned char data[512];
};

enum { DATA = 24 }; /* what fi_rxm(7) needs; viaxdp has more */

static size_t amount(void)
{
	return ours ? 200 : DATA;
}

/* Data arrives, both ways; names are those of the peers. */
static void accepted(void)
{
	struct want w = {0};
	struct room r;
	struct bed b;
	unsigned char param[200];
	char name[64], peer[64];
	size_t n = amount(), length;

	open_bed(&b, &w);
	listen_at(&b);
	if (server) {
		CHECK(event(&b, FI_CONNREQ, &r.entry, sizeof r.data) >= n, "fi_eq(3): FI_CONNREQ has the requester's data");
		CHECK(filled(r.data, n, 1), "fi_eq(3): the data is the requester's");
		CHECK(r.entry.fid == &b.pep->fid, "fi_eq(3): the fid of FI_CONNREQ is the listener's");
		CHECK(r.entry.info && r.entry.info->handle, "fi_eq(3): FI_CONNREQ has an fi_info with a handle");
		CHECK(r.entry.info->ep_attr->type == FI_EP_MSG, "fi_eq(3): FI_CONNREQ: of an endpoint of the type");
		open_ep(&b, r.entry.info, &w);
		fi_freeinfo(r.entry.info);
		fill(param, n, 2);
		OK(fi_accept(b.ep, param, n));
		CHECK(event(&b, FI_CONNECTED, &r.entry, sizeof r.data) == 0 || !ours, "fi_eq(3): the listening side gets no data");
	} else {
		open_ep(&b, b.info, &w);
		CHECK(!ours || fi_send(b.ep, param, 1, NULL, 0, NULL) != 0, "fi_cm(3): no transfer before FI_CONNECTED");
		fill(param, n, 1);
		OK(fi_connect(b.ep, b.info->dest_addr, param, n));
		memset(param, 0, n); /* the call has copied it */
		CHECK(fi_connect(b.ep, b.info->dest_addr, NULL, 0) != 0, "fi_cm(3): fi_connect once in a lifetime");
		CHECK(event(&b, FI_CONNECTED, &r.entry, sizeof r.data) >= n, "fi_eq(3): FI_CONNECTED has the data of fi_accept");
		CHECK(filled(r.data, n, 2), "fi_eq(3): the data is the acceptor's");
	}
	CHECK(r.entry.fid == &b.ep->fid, "fi_eq(3): the fid of FI_CONNECTED is the endpoint's");
	length = sizeof name;
	OK(fi_getname(&b.ep->fid, name, &length));
	length = sizeof peer;
	OK(fi_getpeer(b.ep, peer, &length));
	CHECK(length == b.info->src_addrlen, "fi_cm(3): the peer's address is of the format");
	length = 1;
	CHECK(fi_getpeer(b.ep, peer, &length) == -FI_ETOOSMALL, "fi_cm(3): fi_getpeer: -FI_ETOOSMALL");
	close_bed(&b);
}

/* A rejection carries data, too. Programs of before libfabric 1.5 leave anything in the entry: it was for output only. */
static void rejected(uint32_t api)
{
	struct fi_eq_err_entry error = {.err_data = (void *)1, .err_data_size = api ? 1000 : 0}, again = {0};
	struct want w = {.api = api};
	struct room r;
	struct bed b;
	unsigned char param[200];
	uint32_t what;
	size_t n = amount();
	ssize_t got;

	open_bed(&b, &w);
	listen_at(&b);
	if (server) {
		event(&b, FI_CONNREQ, &r.entry, sizeof r.data);
		fill(param, n, 3);
		OK(fi_reject(b.pep, r.entry.info->handle, param, n));
		fi_freeinfo(r.entry.info);
	} else {
		open_ep(&b, b.info, &w);
		OK(fi_connect(b.ep, b.info->dest_addr, NULL, 0));
		got = fi_eq_sread(b.eq, &what, &r, sizeof r, 15000, 0);
		CHECK(got == -FI_EAVAIL, "fi_cm(3): a rejected request gives an error event, not %zd", got);
		CHECK(fi_eq_read(b.eq, &what, &r, sizeof r, 0) == -FI_EAVAIL, "fi_eq(3): until it is read by fi_eq_readerr");
		CHECK(fi_eq_readerr(b.eq, &again, FI_PEEK) == sizeof again && again.err == FI_ECONNREFUSED, "fi_eq(3): FI_PEEK reads an error");
		got = fi_eq_readerr(b.eq, &error, 0);
		CHECK(got == sizeof error && error.err == FI_ECONNREFUSED, "fi_cm(3): it is refused: %d", error.err);
		CHECK(error.fid == &b.ep->fid, "fi_eq(3): the fid is the endpoint's");
		CHECK(error.context == &b, "fi_eq(3): the context is the endpoint's");
		CHECK(error.err_data_size >= n && filled(error.err_data, n, 3), "fi_cm(3): the data of fi_reject is err_data");
		CHECK(fi_eq_strerror(b.eq, error.prov_errno, error.err_data, NULL, 0) != NULL, "fi_eq(3): fi_eq_strerror");
	}
	close_bed(&b);
}

/* A listener that is closed refuses. */
static void refused(void)
{
	struct fi_eq_err_entry error = {0};
	struct want w = {0};
	struct room r;
	struct bed b;
	uint32_t what;
	ssize_t got;

	open_bed(&b, &w);
	listen_at(&b);
	if (server) {
		OK(fi_close(&b.pep->fid));
		b.pep = NULL;
		usleep(200000); /* what was under way is answered */
	}
	step();
	if (!server) {
		open_ep(&b, b.info, &w);
		OK(fi_connect(b.ep, b.info->dest_addr, NULL, 0));
		got = fi_eq_sread(b.eq, &what, &r, sizeof r, 15000, 0);
		CHECK(got == -FI_EAVAIL, "fi_cm(3): a failed request gives an error event, not %zd", got);
		got = fi_eq_readerr(b.eq, &error, 0);
		CHECK(got == sizeof error && error.err == FI_ECONNREFUSED, "fi_cm(3): it is refused: %d", error.err);
	}
	close_bed(&b);
}

/* A port has one listener. */
static void taken(void)
{
	struct want w = {0};
	struct fid_pep *other;
	struct bed b;
	size_t n;
	int got;

	open_bed(&b, &w);
	listen_at(&b);
	if (server) {
		n = b.info->src_addrlen;
		OK(fi_getname(&b.pep->fid, b.info->src_addr, &n));
		got = fi_passive_ep(b.fabric, b.info, &other, NULL); /* tcp refuses here */
		if (!got) {
			OK(fi_pep_bind(other, &b.eq->fid, 0));
			got = fi_listen(other);
			OK(fi_close(&other->fid));
		}
		CHECK(got == -FI_EADDRINUSE, "fi_errno(3): FI_EADDRINUSE, not %d", got);
	}
	close_bed(&b);
}

/* fi_close of a listener wakes its thread, which waits 100 ms at a time. */
static void ended(void)
{
	struct want w = {0};
	double least = 1, began;
	struct fid_pep *pep;
	struct bed b;
	int i;

	open_bed(&b, &w);
	for (i = 0; i < 5 && server; i++) {
		OK(fi_passive_ep(b.fabric, b.info, &pep, NULL));
		OK(fi_pep_bind(pep, &b.eq->fid, 0));
		OK(fi_listen(pep));
		usleep(10000); /* it waits */
		began = seconds();
		OK(fi_close(&pep->fid));
		if (seconds() - began < least)
			least = seconds() - began;
	}
	CHECK(!server || least < 0.05, "fi_close of a listener took at least %.3f s", least);
	close_bed(&b);
}

/* No host has the address. */
static void unreachable(void)
{
	struct fi_eq_err_entry error = {0};
	struct want w = {0};
	struct room r;
	struct bed b;
	uint32_t what;
	ssize_t got;

	open_bed(&b, &w);
	listen_at(&b);
	if (!server) {
		unsigned char *host = b.info->dest_addr;

		host[strchr(address, ':') ? 23 : 7] = 77; /* the last byte of its address */
		open_ep(&b, b.info, &w);
		OK(fi_connect(b.ep, b.info->dest_addr, NULL, 0));
		got = fi_eq_sread(b.eq, &what, &r, sizeof r, 20000, 0);
		CHECK(got == -FI_EAVAIL, "fi_cm(3): a failed request gives an error event, not %zd", got);
		got = fi_eq_readerr(b.eq, &error, 0);
		CHECK(got == sizeof error && (error.err == FI_EHOSTUNREACH || error.err == FI_ETIMEDOUT), "fi_cm(3): the host does not answer: %d", error.err);
	}
	close_bed(&b);
}

/* The requester's endpoint has no host: the listener gets the one that the request comes from. */
static void anywhere(void)
{
	struct want w = {0};
	struct fi_eq_err_entry error = {0};
	static const unsigned char zeros[16];
	size_t at = strchr(address, ':') ? 8 : 4, n = strchr(address, ':') ? 16 : 4; /* the host in an address */
	struct room r;
	struct bed b;
	uint32_t what;

	open_bed(&b, &w);
	listen_at(&b);
	if (server) {
		event(&b, FI_CONNREQ, &r.entry, 0);
		CHECK(memcmp((char *)r.entry.info->dest_addr + at, zeros, n) != 0, "fi_eq(3): FI_CONNREQ has the requester's address");
		OK(fi_reject(b.pep, r.entry.info->handle, NULL, 0));
		fi_freeinfo(r.entry.info);
	} else {
		memset((char *)b.info->src_addr + at, 0, n);
		open_ep(&b, b.info, &w);
		OK(fi_connect(b.ep, b.info->dest_addr, NULL, 0));
		CHECK(fi_eq_sread(b.eq, &what, &r, sizeof r, 15000, 0) == -FI_EAVAIL, "fi_cm(3): a rejected request gives an error event");
		CHECK(fi_eq_readerr(b.eq, &error, 0) == sizeof error && error.err == FI_ECONNREFUSED, "fi_cm(3): it is refused: %d", error.err);
	}
	close_bed(&b);
}

/* Several at a time, by one listener. */
static void several(void)
{
	enum { N = 6 };
	struct want w = {0};
	struct room r;
	struct bed b;
	struct fid_ep *eps[N];
	struct fid_cq *cqs[N][2];
	uint32_t what;
	int i, connected = 0;

	open_bed(&b, &w);
	listen_at(&b);
	for (i = 0; i < N && !server; i++) {
		open_ep(&b, b.info, &w);
		OK(fi_connect(b.ep, b.info->dest_addr, &i, sizeof i));
		eps[i] = b.ep;
		cqs[i][0] = b.tx;
		cqs[i][1] = b.rx;
	}
	for (i = 0; i < N && server; ) {
		size_t n = any_event(&b, &what, &r.entry, sizeof r.data);

		if (what == FI_CONNECTED) {
			connected++;
			continue;
		}
		CHECK(what == FI_CONNREQ && n >= sizeof i, "fi_eq(3): each FI_CONNREQ has its data");
		open_ep(&b, r.entry.info, &w);
		fi_freeinfo(r.entry.info);
		OK(fi_accept(b.ep, NULL, 0));
		eps[i] = b.ep;
		cqs[i][0] = b.tx;
		cqs[i++][1] = b.rx;
	}
	for (; connected < N; connected++)
		event(&b, FI_CONNECTED, &r.entry, sizeof r.data);
	step();
	b.ep = NULL;
	b.tx = b.rx = NULL;
	for (i = 0; i < N; i++) {
		OK(fi_close(&eps[i]->fid));
		OK(fi_close(&cqs[i][0]->fid));
		OK(fi_close(&cqs[i][1]->fid));
	}
	close_bed(&b);
}

/* The requester is gone before the answer. Until fi_accept, which fails, the endpoint is like one that is not connected. */
static void gone(void)
{
	struct want w = {0};
	struct fi_cq_err_entry error;
	struct room r, none;
	struct bed b;
	char data[100];
	uint32_t what;
	ssize_t got;

	open_bed(&b, &w);
	listen_at(&b);
	if (!server) {
		open_ep(&b, b.info, &w);
		OK(fi_connect(b.ep, b.info->dest_addr, NULL, 0));
		step(); /* the server has the request */
		OK(fi_close(&b.ep->fid));
		b.ep = NULL;
		step();
	} else {
		event(&b, FI_CONNREQ, &r.entry, sizeof r.data);
		step();
		step();
		got = fi_eq_sread(b.eq, &what, &none, sizeof none, 300, 0); /* the provider learns of the end */
		CHECK(got == -FI_EAGAIN, "fi_cm(3): no event for a request that is gone, not %zd", got);
		open_ep(&b, r.entry.info, &w);
		fi_freeinfo(r.entry.info);
		OK(fi_recv(b.ep, data, sizeof data, NULL, 0, data));
		progress(&b);
		CHECK(fi_accept(b.ep, NULL, 0) == -FI_ECONNABORTED, "fi_cm(3): fi_accept of a request that is gone");
		CHECK(completion_error(b.rx, &error) == FI_ECANCELED && error.op_context == data, "fi_cm(3): a posted receive is cancelled");
		CHECK(fi_recv(b.ep, data, sizeof data, NULL, 0, data) == -FI_ENOTCONN, "fi_msg(3): a receive on a connection that has failed");
	}
	close_bed(&b);
}

/* fi_shutdown of an endpoint with a request ends it as any other. */
static void withdrawn(void)
{
	struct want w = {0};
	struct fi_eq_err_entry error = {0};
	struct room r;
	struct bed b;
	uint32_t what;

	open_bed(&b, &w);
	listen_at(&b);
	if (server) {
		event(&b, FI_CONNREQ, &r.entry, 0);
		open_ep(&b, r.entry.info, &w);
		fi_freeinfo(r.entry.info);
		OK(fi_shutdown(b.ep, 0));
		CHECK(fi_recv(b.ep, &r, sizeof r, NULL, 0, NULL) == -FI_ENOTCONN, "fi_cm(3): no receive after fi_shutdown");
		CHECK(fi_accept(b.ep, NULL, 0) == -FI_ECONNABORTED, "fi_cm(3): fi_accept after fi_shutdown");
	} else {
		open_ep(&b, b.info, &w);
		OK(fi_connect(b.ep, b.info->dest_addr, NULL, 0));
		CHECK(fi_eq_sread(b.eq, &what, &r, sizeof r, 15000, 0) == -FI_EAVAIL, "fi_cm(3): a rejected request gives an error event");
		CHECK(fi_eq_readerr(b.eq, &error, 0) == sizeof error && error.err == FI_ECONNREFUSED, "fi_cm(3): it is refused: %d", error.err);
	}
	close_bed(&b);
}

/* A request is refused when its listener is closed, or by fi_reject. Then its handle is invalid. */
static void invalid_handles(void)
{
	struct want w = {0};
	struct fi_eq_err_entry error = {0};
	struct fid_pep *other;
	struct fid_ep *ep;
	struct room r;
	struct bed b;
	uint32_t what;
	int i;
	ssize_t got;

	for (i = 0; i < 2; i++) {
		open_bed(&b, &w);
		listen_at(&b);
		if (server) {
			OK(fi_passive_ep(b.fabric, b.info, &other, NULL));
			OK(fi_pep_bind(other, &b.eq->fid, 0));
			OK(fi_listen(other));
			event(&b, FI_CONNREQ, &r.entry, 0);
			CHECK(fi_reject(other, r.entry.info->handle, NULL, 0) == -FI_EINVAL, "fi_cm(3): fi_reject of another listener's request");
			if (i == 0) {
				OK(fi_close(&b.pep->fid));
				b.pep = NULL;
			} else {
				OK(fi_reject(b.pep, r.entry.info->handle, NULL, 0));
				CHECK(fi_reject(b.pep, r.entry.info->handle, NULL, 0) == -FI_EINVAL, "fi_cm(3): fi_reject, once");
			}
			CHECK(fi_reject(other, r.entry.info->handle, NULL, 0) == -FI_EINVAL, "fi_cm(3): fi_reject of a request that is gone");
			CHECK(fi_endpoint(b.domain, r.entry.info, &ep, NULL) == -FI_EINVAL, "fi_endpoint(3): for a request that is gone");
			r.entry.info->handle = &other->fid; /* an endpoint with the listener's address */
			OK(fi_endpoint(b.domain, r.entry.info, &ep, NULL));
			OK(fi_close(&ep->fid));
			OK(fi_close(&other->fid));
			CHECK(fi_endpoint(b.domain, r.entry.info, &ep, NULL) == -FI_EINVAL, "fi_endpoint(3): the handle of a listener that is closed");
			fi_freeinfo(r.entry.info);
		} else {
			open_ep(&b, b.info, &w);
			OK(fi_connect(b.ep, b.info->dest_addr, NULL, 0));
			got = fi_eq_sread(b.eq, &what, &r, sizeof r, 15000, 0);
			CHECK(got == -FI_EAVAIL, "fi_cm(3): a request whose listener is closed fails, %zd", got);
			got = fi_eq_readerr(b.eq, &error, 0);
			CHECK(got == sizeof error && error.err == FI_ECONNREFUSED, "fi_cm(3): it is refused: %d", error.err);
		}
		close_bed(&b);
	}
}

void test_connections(void)
{
	accepted();
	rejected(0);
	rejected(FI_VERSION(1, 4));
	refused();
	taken();
	ended();
	if (ours) /* tcp takes the kernel's time */
		unreachable();
	anywhere();
	several();
	if (ours) { /* others report it after fi_accept, and leave such handles to the program */
		gone();
		withdrawn();
		invalid_handles();
	}
}
