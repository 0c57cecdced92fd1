/* fi_cq(3), fi_eq(3), fi_poll(3): threads that block, and descriptors. */
#include "suite.h"

#include <signal.h>
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

/* The client waits for an object's descriptor, and reads the object before anything is there, as another thread may do. */
static void read_in_vain(struct bed *b, struct fid *fid)
{
	struct pollfd p = {.events = POLLIN};
	struct fi_cq_tagged_entry entry;
	struct fi_eq_cm_entry cm;
	uint32_t what;
	ssize_t n;

	OK(fi_control(fid, FI_GETWAIT, &p.fd));
	OK(fi_trywait(b->fabric, &fid, 1));
	if (fid == &b->eq->fid)
		n = fi_eq_read(b->eq, &what, &cm, sizeof cm, 0);
	else if (fid == &b->rx->fid)
		n = fi_cq_read(b->rx, &entry, 1);
	else
		n = fi_cntr_read(b->received) ? 1 : -FI_EAGAIN;
	CHECK(n == -FI_EAGAIN, "nothing is there yet: %zd", n);
	tell("w", 1);
	CHECK(poll(&p, 1, 15000) == 1, "fi_poll(3): after fi_trywait the descriptor is signaled, although a read found nothing: %s",
		fid == &b->eq->fid ? "EQ" : fid == &b->rx->fid ? "CQ" : "counter");
}

static void read_by_others(void)
{
	struct want w = {.cq_wait = FI_WAIT_FD, .eq_wait = FI_WAIT_FD, .counters = ours};
	struct fi_cq_tagged_entry entry;
	struct fi_eq_cm_entry cm;
	unsigned char data[100];
	struct fid *fid;
	struct bed b;
	int i;
	char c;

	open_connected(&b, &w);
	for (i = 0; i < 3; i++) { /* a message for the counter, one for the CQ, and the end for the EQ */
		if (!ours && i != 1)
			continue;
		fid = i == 0 ? &b.received->fid : i == 1 ? &b.rx->fid : &b.eq->fid;
		if (!server) {
			if (i < 2)
				POST(&b, fi_recv(b.ep, data, sizeof data, NULL, 0, NULL));
			read_in_vain(&b, fid);
			if (i < 2)
				OK(completion(b.rx, &entry));
			else
				event(&b, FI_SHUTDOWN, &cm, 0);
		} else {
			hear(&c, 1);
			usleep(100000); /* so that the client sleeps */
			if (i < 2)
				POST(&b, fi_inject(b.ep, data, 10, 0));
			else
				OK(fi_shutdown(b.ep, 0));
		}
		step();
	}
	close_bed(&b);
}

/* A thread polls the descriptor of a CQ while another one blocks in fi_cq_sread, which takes the first message. */
static struct bed two;

static void *polling(void *arg)
{
	struct fid *fid = &two.rx->fid;
	struct pollfd p = {.events = POLLIN};

	(void)arg;
	OK(fi_control(fid, FI_GETWAIT, &p.fd));
	while (fi_trywait(two.fabric, &fid, 1) != FI_SUCCESS)
		;
	tell("w", 1);
	CHECK(poll(&p, 1, 15000) == 1, "fi_poll(3): the descriptor is signaled, although another thread blocks");
	return NULL;
}

static void polled_and_blocked(void)
{
	struct want w = {.cq_wait = FI_WAIT_FD};
	unsigned char data[100];
	pthread_t threads[2];
	int i;
	char c;

	open_connected(&two, &w);
	if (!server) {
		POST(&two, fi_recv(two.ep, data, sizeof data, NULL, 0, NULL));
		pthread_create(&threads[0], NULL, blocked, two.rx);
		pthread_create(&threads[1], NULL, polling, NULL);
		for (i = 0; i < 2; i++)
			pthread_join(threads[i], NULL);
	} else {
		hear(&c, 1);
		usleep(100000);
		POST(&two, fi_inject(two.ep, data, 10, 0));
	}
	close_bed(&two);
}

static void on_signal(int number)
{
	(void)number;
}

static void *interrupting(void *thread)
{
	usleep(300000); /* so that it sleeps */
	pthread_kill(*(pthread_t *)thread, SIGUSR1);
	return NULL;
}

/* A program that blocks hears of its signals: its handler may have set what ends the loop around the call. */
static void interrupted(void)
{
	struct want w = {.cq_wait = FI_WAIT_UNSPEC};
	struct sigaction action = {.sa_handler = on_signal};
	struct fi_cq_tagged_entry entry;
	struct fi_eq_cm_entry cm;
	pthread_t me = pthread_self(), other;
	uint32_t what;
	struct bed b;
	int i;

	open_connected(&b, &w);
	sigaction(SIGUSR1, &action, NULL);
	for (i = 0; i < 2; i++) {
		double begun = seconds();
		ssize_t n;

		pthread_create(&other, NULL, interrupting, &me);
		n = i ? fi_eq_sread(b.eq, &what, &cm, sizeof cm, 15000, 0) : fi_cq_sread(b.rx, &entry, 1, NULL, 15000);
		pthread_join(other, NULL);
		CHECK(n == -FI_EAGAIN || (n == -FI_EINTR && !ours), "%s: a thread that is signaled: %zd", i ? "fi_eq(3)" : "fi_cq(3)", n);
		CHECK(seconds() - begun < 10, "%s: it returns before the timeout, not after %.1f s", i ? "fi_eq(3)" : "fi_cq(3)", seconds() - begun);
	}
	step();
	close_bed(&b);
}

void test_waiting(void)
{
	interrupted();
	sleeping(FI_PROGRESS_UNSPEC);
	if (ours)
		sleeping(FI_PROGRESS_AUTO);
	descriptors();
	read_by_others();
	polled_and_blocked();
	if (ours) /* tcp sees the end of a connection only when its CQs are read */
		event_descriptor();
}
