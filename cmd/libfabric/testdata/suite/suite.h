/*
 * suite.h - a test of libfabric's promises, with any provider that has FI_EP_MSG, and FI_EP_RDM by itself or by ofi_rxm.
 *
 *	suite server|client PROVIDER SERVER-ADDRESS PORT [TEST ...]
 *
 * The server listens on SERVER-ADDRESS, and both sides run the same tests in step. They keep step by a socket
 * of the kernel, on PORT. Each check says which promise of which manual page it is about.
 */
#ifndef SUITE_H
#define SUITE_H

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
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

extern int server;           /* this side */
extern const char *provider, *address;
extern int ours;             /* the provider is viaxdp: it also has what others need not */

#define CHECK(that, ...)                                               \
	do {                                                           \
		int that_ = (that) ? 1 : 0;                            \
		check(that_, __FILE__, __LINE__, #that, __VA_ARGS__);  \
	} while (0)
void check(int that, const char *file, int line, const char *text, const char *promise, ...)
	__attribute__((format(printf, 5, 6)));
/* The call returns 0. */
#define OK(call) ok((call), __FILE__, __LINE__, #call)
void ok(long result, const char *file, int line, const char *text);

void step(void);                        /* both sides are here; makes progress until then */
int heard(int ms);                      /* the other side has sent a line within ms */
void tell(const void *data, size_t n);  /* to the other side, by the socket of the kernel */
void hear(void *data, size_t n);
double seconds(void);
int time_left(double end);              /* seconds() is before end; other processes run first */

/* Fabric, domain, an EQ, and a connection. */
struct bed {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_eq *eq;
	struct fid_pep *pep;
	struct fid_cq *tx, *rx;
	struct fid_cntr *sent, *received, *read, *written;
	struct fid_ep *ep;
};

struct want { /* zeros: the usual */
	uint64_t caps;
	enum fi_wait_obj cq_wait, eq_wait; /* cq_wait: of counters, too */
	enum fi_cq_format format;
	uint64_t tx_bind, rx_bind; /* e.g. FI_SELECTIVE_COMPLETION */
	enum fi_progress progress;
	int counters;
	uint32_t api; /* version of the interface that the fabric is opened with */
};

struct fi_info *hints_of(uint64_t caps);
struct fi_info *find(const char *node, const char *service, uint64_t flags, uint64_t caps);
void open_bed(struct bed *b, const struct want *w);
void open_ep(struct bed *b, struct fi_info *info, const struct want *w);
void listen_at(struct bed *b);           /* the server; the client hears of the port */
void connect_bed(struct bed *b, const struct want *w);
void open_connected(struct bed *b, const struct want *w);
void close_bed(struct bed *b);
void abandon(struct bed *b);             /* the same, when the other side is gone; the program ends */

/* The next event, of at most 15 seconds; the length of its data. */
size_t any_event(struct bed *b, uint32_t *what, struct fi_eq_cm_entry *entry, size_t room);
size_t event(struct bed *b, uint32_t want, struct fi_eq_cm_entry *entry, size_t room);
/* The next completion, of at most 15 seconds; a negative error. */
#define completion(cq, entry) completion_at(cq, entry, __FILE__, __LINE__)
int completion_at(struct fid_cq *cq, struct fi_cq_tagged_entry *entry, const char *file, int line);
int completion_error(struct fid_cq *cq, struct fi_cq_err_entry *entry); /* the same, which fails */
/* A call that may return -FI_EAGAIN while the queues are full. */
#define POST(b, call)                                                 \
	do {                                                          \
		ssize_t posted_;                                      \
		double end_ = seconds() + 15;                         \
		while ((posted_ = (call)) == -FI_EAGAIN && time_left(end_)) \
			progress(b);                                  \
		ok(posted_, __FILE__, __LINE__, #call);               \
	} while (0)
void progress(struct bed *b);

void fill(void *data, size_t n, unsigned seed);
int filled(const void *data, size_t n, unsigned seed);

void test_info(void);
void test_objects(void);
void test_interfaces(void);
void test_connections(void);
void test_messages(void);
void test_completions(void);
void test_waiting(void);
void test_rma(void);
void test_ends(void);
void test_threads(void);
void test_killed(void);
void test_rdm(void);
void test_rdm_killed(void);
void test_rdm_late(void);
void test_doorbells(void);

#endif
