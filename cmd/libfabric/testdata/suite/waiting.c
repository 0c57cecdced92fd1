/* fi_cq(3), fi_eq(3), fi_poll(3): threads that block, and descriptors. */
#include "suite.h"

#include <sys/epoll.h>

static void *blocked(void *arg)
{
	struct fi_cq_tagged_entry entry;
	struct fid_cq *cq = arg;

	CHECK(fi_cq_sread(cq, &entry, 1, NULL, 15000) == 1, "fi_cq(3): a thread that blocks gets the completion");
	return NULL;
}

static void sleeping(enum fi_progress data_progress)
{
	enum { N = 100 };
	struct want w = {.cq_wait = FI_WAIT_UNSPEC, .progress = data_progress};
	struct fi_cq_tagged_entry entry;
	unsigned char data[9000];
	pthread_t thread;
	struct bed b;
	int i;

	open_connected(&b, &w);
	for (i = 0; i < N; i++) { /* ping-pong of sleepers */
		if (i % 2 == server) {
			POST(&b, fi_send(b.ep, data, sizeof data, NULL, 0, NULL));
			CHECK(fi_cq_sread(b.tx, &entry, 1, NULL, 15000) == 1, "fi_cq(3): fi_cq_sread of a send");
		} else {
			POST(&b, fi_recv(b.ep, data, sizeof data, NULL, 0, NULL));
			CHECK(fi_cq_sread(b.rx, &entry, 1, NULL, 15000) == 1, "fi_cq(3): fi_cq_sread of a receive");
		}
	}
	step();
	if (server) { /* a receive of another thread */
		POST(&b, fi_recv(b.ep, data, sizeof data, NULL, 0, NULL));
		pthread_create(&thread, NULL, blocked, b.rx);
		step();
		pthread_join(thread, NULL);
	} else {
		step();
		usleep(100000);
		POST(&b, fi_inject(b.ep, data, 5, 0));
	}
	close_bed(&b);
}

/* The loop of fi_poll(3), with epoll. */
static void descriptors(void)
{
	enum { N = 100 };
	struct want w = {.cq_wait = FI_WAIT_FD, .eq_wait = FI_WAIT_FD};
	struct fi_cq_tagged_entry entry;
	struct epoll_event e = {.events = EPOLLIN};
	unsigned char data[20000];
	struct bed b;
	int fd, epfd = epoll_create1(EPOLL_CLOEXEC), got = 0, i;
	struct fid *fids[1];
	double end = seconds() + 60;

	open_connected(&b, &w);
	OK(fi_control(&b.eq->fid, FI_GETWAIT, &fd));
	CHECK(fd >= 0, "fi_eq(3): FI_GETWAIT gives a descriptor");
	OK(fi_control(&b.rx->fid, FI_GETWAIT, &fd));
	CHECK(fd >= 0, "fi_cq(3): FI_GETWAIT gives a descriptor");
	epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &e);
	fids[0] = &b.rx->fid;
	if (server) {
		for (i = 0; i < N; i++) {
			POST(&b, fi_send(b.ep, data, sizeof data, NULL, 0, NULL));
			OK(completion(b.tx, &entry));
			if (i % 10 == 0)
				usleep(20000); /* so that the other side sleeps */
		}
		step();
	} else {
		POST(&b, fi_recv(b.ep, data, sizeof data, NULL, 0, NULL));
		while (got < N && seconds() < end) {
			if (fi_trywait(b.fabric, fids, 1) == FI_SUCCESS)
				CHECK(epoll_wait(epfd, &e, 1, 15000) == 1, "fi_poll(3): after fi_trywait the descriptor is signaled, message %d", got);
			while (fi_cq_read(b.rx, &entry, 1) == 1)
				if (++got < N)
					POST(&b, fi_recv(b.ep, data, sizeof data, NULL, 0, NULL));
		}
		CHECK(got == N, "fi_poll(3): all messages arrive: %d", got);
		step();
	}
	close(epfd);
	close_bed(&b);
}

/* The events of a connection, by the descriptor of the EQ. */
static void event_descriptor(void)
{
	struct want w = {.eq_wait = FI_WAIT_FD};
	struct fi_eq_cm_entry entry;
	struct pollfd p = {.events = POLLIN};
	struct fid *fids[1];
	uint32_t what = 0;
	ssize_t n = -FI_EAGAIN;
	struct bed b;
	double end = seconds() + 15;

	open_connected(&b, &w);
	OK(fi_control(&b.eq->fid, FI_GETWAIT, &p.fd));
	fids[0] = &b.eq->fid;
	if (server) {
		usleep(300000);
		OK(fi_shutdown(b.ep, 0));
		step();
	} else {
		while (n == -FI_EAGAIN && seconds() < end) {
			if (fi_trywait(b.fabric, fids, 1) == FI_SUCCESS)
				CHECK(poll(&p, 1, 15000) == 1, "fi_poll(3): the descriptor of an EQ is signaled");
			n = fi_eq_read(b.eq, &what, &entry, sizeof entry, 0);
		}
		CHECK(n >= (ssize_t)sizeof entry && what == FI_SHUTDOWN && entry.fid == &b.ep->fid, "fi_cm(3): FI_SHUTDOWN, %zd", n);
		step();
	}
	close_bed(&b);
}

void test_waiting(void)
{
	sleeping(FI_PROGRESS_UNSPEC);
	if (ours)
		sleeping(FI_PROGRESS_AUTO);
	descriptors();
	if (ours) /* tcp sees the end of a connection only when its CQs are read */
		event_descriptor();
}
