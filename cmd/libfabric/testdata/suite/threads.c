/* fi_domain(3): FI_THREAD_SAFE. Several threads use one domain, one EQ, one endpoint and one CQ. */
#include "suite.h"

enum { THREADS = 4, ROUNDS = 300, SIZE = 3000 };

static struct bed shared;
static struct fid_ep *eps[THREADS];
static struct fid_cq *cqs[THREADS][2];

/* A ping-pong on an endpoint of its own: by sleeping, or by polling. */
static void *talker(void *arg)
{
	long me = (long)arg;
	unsigned char in[SIZE], out[SIZE];
	struct fi_cq_tagged_entry entry;
	double end = seconds() + 60;
	int i;

	for (i = 0; i < ROUNDS; i++) {
		int receive = (i + server) % 2;
		struct fid_cq *cq = cqs[me][receive];
		ssize_t n;

		if (receive)
			OK(fi_recv(eps[me], in, SIZE, NULL, 0, in));
		else {
			fill(out, SIZE, (unsigned)(me * 1000 + i));
			while ((n = fi_send(eps[me], out, SIZE, NULL, 0, out)) == -FI_EAGAIN && seconds() < end)
				fi_cq_read(cq, &entry, 0);
			OK(n);
		}
		while ((n = me % 2 ? fi_cq_read(cq, &entry, 1) : fi_cq_sread(cq, &entry, 1, NULL, 1000)) == -FI_EAGAIN && seconds() < end)
			;
		CHECK(n == 1, "fi_domain(3): FI_THREAD_SAFE: thread %ld, round %d: %zd", me, i, n);
		CHECK(!receive || filled(in, SIZE, (unsigned)(me * 1000 + i)), "the message is that of the thread's peer");
	}
	return NULL;
}

static void connections(void)
{
	struct want w = {.cq_wait = FI_WAIT_UNSPEC};
	struct fi_eq_cm_entry entry;
	pthread_t threads[THREADS];
	uint32_t what;
	long i, connected = 0;

	open_bed(&shared, &w);
	listen_at(&shared);
	for (i = 0; i < THREADS; ) {
		if (!server) {
			open_ep(&shared, shared.info, &w);
			OK(fi_connect(shared.ep, shared.info->dest_addr, &i, sizeof i));
			event(&shared, FI_CONNECTED, &entry, 0); /* in order, so that both sides number them alike */
		} else {
			any_event(&shared, &what, &entry, 0);
			if (what == FI_CONNECTED) {
				connected++;
				continue;
			}
			open_ep(&shared, entry.info, &w);
			fi_freeinfo(entry.info);
			OK(fi_accept(shared.ep, NULL, 0));
		}
		eps[i] = shared.ep;
		cqs[i][0] = shared.tx;
		cqs[i++][1] = shared.rx;
	}
	for (; server && connected < THREADS; connected++)
		event(&shared, FI_CONNECTED, &entry, 0);
	shared.ep = NULL;
	shared.tx = shared.rx = NULL;
	step();
	for (i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, talker, (void *)i);
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	step();
	for (i = 0; i < THREADS; i++) {
		OK(fi_close(&eps[i]->fid));
		OK(fi_close(&cqs[i][0]->fid));
		OK(fi_close(&cqs[i][1]->fid));
	}
	close_bed(&shared);
}

static int sends;

/* Sends on the endpoint that others use, too. */
static void *sender(void *arg)
{
	unsigned char data[100];
	double end = seconds() + 60;
	int i;

	(void)arg;
	for (i = 0; i < ROUNDS && seconds() < end; )
		if (fi_send(shared.ep, data, sizeof data, NULL, 0, NULL) == 0)
			i++;
		else
			usleep(100);
	__atomic_add_fetch(&sends, i, __ATOMIC_SEQ_CST);
	return NULL;
}

static void one_endpoint(void)
{
	struct want w = {.cq_wait = FI_WAIT_UNSPEC};
	struct fi_cq_tagged_entry entry[16];
	unsigned char data[100];
	pthread_t threads[THREADS];
	int i, got = 0, posted = 0;
	double end = seconds() + 60;
	ssize_t n;

	open_connected(&shared, &w);
	if (server) {
		for (i = 0; i < THREADS; i++)
			pthread_create(&threads[i], NULL, sender, NULL);
		while (got < THREADS * ROUNDS && seconds() < end)
			if ((n = fi_cq_sread(shared.tx, entry, 16, NULL, 100)) > 0)
				got += (int)n;
		for (i = 0; i < THREADS; i++)
			pthread_join(threads[i], NULL);
		CHECK(sends == THREADS * ROUNDS && got == sends, "fi_domain(3): FI_THREAD_SAFE: %d sends, %d completions", sends, got);
	} else {
		while (got < THREADS * ROUNDS && seconds() < end) {
			while (posted - got < 32 && fi_recv(shared.ep, data, sizeof data, NULL, 0, NULL) == 0)
				posted++;
			if ((n = fi_cq_read(shared.rx, entry, 16)) > 0)
				got += (int)n;
		}
		CHECK(got == THREADS * ROUNDS, "all messages arrive: %d", got);
	}
	close_bed(&shared);
}

void test_threads(void)
{
	connections();
	one_endpoint();
}
