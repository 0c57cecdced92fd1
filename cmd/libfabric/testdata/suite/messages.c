/* fi_msg(3): data and its order, flow control, inject, remote CQ data. */
#include "suite.h"

static const size_t sizes[] = {0, 1, 7, 64, 1000, 4096, 16384, 16896, 16897, 65536, 300001, 1 << 20, (3 << 20) + 5};

enum { SIZES = sizeof sizes / sizeof *sizes, LARGEST = (3 << 20) + 5 };

static void all_sizes(struct bed *b)
{
	unsigned char *data = malloc(LARGEST);
	struct fi_cq_tagged_entry entry;
	int i, turn;

	for (i = 0; i < SIZES; i++)
		for (turn = 0; turn < 2; turn++) { /* each side sends, and receives */
			if (turn == server) {
				fill(data, sizes[i], (unsigned)i);
				POST(b, fi_send(b->ep, data, sizes[i], NULL, 0, &data[i]));
				OK(completion(b->tx, &entry));
				CHECK(entry.op_context == &data[i], "fi_cq(3): op_context is the operation's");
				CHECK(entry.flags & FI_SEND && entry.flags & FI_MSG, "fi_cq(3): FI_SEND | FI_MSG");
			} else {
				memset(data, 0xee, LARGEST);
				POST(b, fi_recv(b->ep, data, sizes[i] + 1, NULL, 0, &data[i]));
				OK(completion(b->rx, &entry));
				CHECK(entry.op_context == &data[i], "fi_cq(3): op_context is the operation's");
				CHECK(entry.flags & FI_RECV && entry.flags & FI_MSG, "fi_cq(3): FI_RECV | FI_MSG");
				CHECK(!(entry.flags & FI_REMOTE_CQ_DATA), "fi_cq(3): no data where none was sent");
				CHECK(entry.len == sizes[i] && filled(data, sizes[i], (unsigned)i), "fi_msg(3): %zu bytes arrive", sizes[i]);
				CHECK(sizes[i] == LARGEST || data[sizes[i]] == 0xee, "fi_msg(3): nothing is written behind a message");
			}
		}
	free(data);
	step();
}

static void vectors(struct bed *b)
{
	unsigned char one[10], two[40000], three[1];
	struct iovec out[3] = {{one, 10}, {two, 40000}, {three, 1}}, in[3] = {{three, 1}, {two, 40000}, {one, 10}};
	struct fi_msg msg = {.msg_iov = out, .iov_count = 3, .context = out};
	struct fi_cq_tagged_entry entry;
	unsigned char whole[40011];

	if (b->info->tx_attr->iov_limit < 3)
		return;
	fill(whole, sizeof whole, 9);
	if (server) {
		memcpy(one, whole, 10);
		memcpy(two, whole + 10, 40000);
		memcpy(three, whole + 40010, 1);
		POST(b, fi_sendv(b->ep, out, NULL, 3, 0, out));
		OK(completion(b->tx, &entry));
		POST(b, fi_sendmsg(b->ep, &msg, FI_COMPLETION));
		OK(completion(b->tx, &entry));
	} else {
		POST(b, fi_recvv(b->ep, in, NULL, 3, 0, in));
		OK(completion(b->rx, &entry));
		CHECK(three[0] == whole[0] && !memcmp(two, whole + 1, 40000) && !memcmp(one, whole + 40001, 10), "fi_msg(3): fi_recvv scatters in order");
		msg.msg_iov = in;
		memset(two, 0, sizeof two);
		POST(b, fi_recvmsg(b->ep, &msg, FI_COMPLETION | FI_TRANSMIT_COMPLETE));
		OK(completion(b->rx, &entry));
		CHECK(entry.len == sizeof whole && !memcmp(two, whole + 1, 40000), "fi_msg(3): fi_sendmsg, fi_recvmsg");
	}
	step();
}

/* Messages for which no receive is posted wait, and the connection lives. */
static void patience(struct bed *b, int count, size_t size)
{
	unsigned char *data = calloc((size_t)count, size);
	struct fi_cq_tagged_entry entry;
	int i, sent = 0, done = 0;
	double end = seconds() + 30;

	if (server) {
		for (i = 0; i < count; i++)
			fill(data + (size_t)i * size, size, (unsigned)i);
		while (done < count && seconds() < end) {
			if (sent < count && fi_send(b->ep, data + (size_t)sent * size, size, NULL, 0, data) == 0)
				sent++;
			while (fi_cq_read(b->tx, &entry, 1) == 1)
				done++;
			progress(b);
		}
		CHECK(done == count, "fi_msg(3): all sends complete, %d of %d", done, count);
	} else {
		usleep(300000);
		for (i = 0; i < count; i++) {
			unsigned char *at = data + (size_t)i * size;

			POST(b, fi_recv(b->ep, at, size, NULL, 0, at));
			OK(completion(b->rx, &entry));
			CHECK(entry.op_context == at && entry.len == size && filled(at, size, (unsigned)i), "fi_msg(3): message %d arrives in order", i);
		}
	}
	free(data);
	step();
}

/* Many receives and sends at a time, both ways. */
static void streams(struct bed *b)
{
	enum { N = 2000, SIZE = 2048, WINDOW = 32 };
	static unsigned char in[WINDOW][SIZE], out[WINDOW][SIZE];
	struct fi_cq_tagged_entry entry;
	int posted = 0, received = 0, sent = 0, done = 0;
	double end = seconds() + 60;

	while ((received < N || done < N) && seconds() < end) {
		if (posted < N && posted - received < WINDOW && !fi_recv(b->ep, in[posted % WINDOW], SIZE, NULL, 0, in[posted % WINDOW]))
			posted++;
		if (sent < N && sent - done < WINDOW) {
			fill(out[sent % WINDOW], SIZE, (unsigned)sent);
			if (!fi_send(b->ep, out[sent % WINDOW], SIZE, NULL, 0, NULL))
				sent++;
		}
		if (fi_cq_read(b->tx, &entry, 1) == 1)
			done++;
		if (fi_cq_read(b->rx, &entry, 1) == 1) {
			CHECK(entry.op_context == in[received % WINDOW] && filled(entry.op_context, SIZE, (unsigned)received), "fi_msg(3): message %d of a stream", received);
			received++;
		}
	}
	CHECK(received == N && done == N, "fi_msg(3): streams both ways end: %d received, %d sent", received, done);
	step();
}

static void injected(struct bed *b)
{
	enum { N = 50 };
	size_t size = b->info->tx_attr->inject_size < 1000 ? b->info->tx_attr->inject_size : 1000;
	unsigned char data[1000];
	struct iovec iov = {data, size};
	struct fi_msg msg = {.msg_iov = &iov, .iov_count = 1, .context = data};
	struct fi_cq_tagged_entry entry;
	int i;

	if (server) {
		for (i = 0; i < N; i++) {
			fill(data, size, (unsigned)i);
			POST(b, fi_inject(b->ep, data, size, 0));
			memset(data, 0, sizeof data); /* it is the program's again */
		}
		CHECK(fi_cq_read(b->tx, &entry, 1) == -FI_EAGAIN, "fi_msg(3): fi_inject writes no entry");
		fill(data, size, N);
		POST(b, fi_sendmsg(b->ep, &msg, FI_INJECT | FI_COMPLETION));
		memset(data, 0, sizeof data);
		OK(completion(b->tx, &entry));
		CHECK(entry.op_context == data, "fi_msg(3): FI_INJECT with FI_COMPLETION writes one");
	} else {
		for (i = 0; i <= N; i++) {
			POST(b, fi_recv(b->ep, data, sizeof data, NULL, 0, NULL));
			OK(completion(b->rx, &entry));
			CHECK(entry.len == size && filled(data, size, (unsigned)i), "fi_msg(3): the data at the time of fi_inject: %d", i);
		}
	}
	step();
}

static void remote_data(struct bed *b)
{
	const uint64_t value = b->info->domain_attr->cq_data_size >= 8 ? 0x1122334455667788 : 0x55667788;
	struct fi_cq_tagged_entry entry;
	unsigned char data[100];
	int i;

	if (!b->info->domain_attr->cq_data_size)
		return;
	if (server) {
		POST(b, fi_senddata(b->ep, data, sizeof data, NULL, value, 0, NULL));
		OK(completion(b->tx, &entry));
		POST(b, fi_injectdata(b->ep, data, 10, value + 1, 0));
	} else {
		for (i = 0; i < 2; i++) {
			POST(b, fi_recv(b->ep, data, sizeof data, NULL, 0, NULL));
			OK(completion(b->rx, &entry));
			CHECK(entry.flags & FI_REMOTE_CQ_DATA && entry.data == value + (uint64_t)i, "fi_msg(3): the data of fi_senddata");
			CHECK(entry.len == (i ? 10 : sizeof data), "fi_msg(3): beside the message");
		}
	}
	step();
}

/* Operations at the levels that fi_cq(3) defines complete, in order with a fence. */
static void levels(struct bed *b)
{
	static const uint64_t flags[] = {FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE, FI_DELIVERY_COMPLETE | FI_FENCE, FI_MORE, 0};
	unsigned char data[5000];
	struct iovec iov = {data, sizeof data};
	struct fi_msg msg = {.msg_iov = &iov, .iov_count = 1};
	struct fi_cq_tagged_entry entry;
	size_t i, n = sizeof flags / sizeof *flags;

	if (!ours)
		return;
	if (server) {
		for (i = 0; i < n; i++) {
			msg.context = (void *)&flags[i];
			POST(b, fi_sendmsg(b->ep, &msg, flags[i] | FI_COMPLETION));
		}
		for (i = 0; i < n; i++)
			OK(completion(b->tx, &entry));
	} else {
		for (i = 0; i < n; i++) {
			POST(b, fi_recv(b->ep, data, sizeof data, NULL, 0, NULL));
			OK(completion(b->rx, &entry));
		}
	}
	step();
}

/* FI_MORE: what has it arrives, in order, with what follows, and also if nothing does. */
static void more(struct bed *b)
{
	enum { ROUNDS = 50, BURST = 7 };
	struct fi_cq_tagged_entry entry;
	unsigned char data[BURST][300];
	struct iovec iov = {NULL, 300};
	struct fi_msg msg = {.msg_iov = &iov, .iov_count = 1};
	unsigned i, j;

	for (i = 0; i < ROUNDS; i++) {
		for (j = 0; j < BURST; j++)
			if (server) {
				iov.iov_base = data[j];
				fill(data[j], 300, i * BURST + j);
				POST(b, fi_sendmsg(b->ep, &msg, FI_COMPLETION | (j < BURST - 1 || i == ROUNDS - 1 ? FI_MORE : 0)));
			} else {
				POST(b, fi_recv(b->ep, data[j], 300, NULL, 0, data[j]));
			}
		for (j = 0; j < BURST; j++) {
			OK(completion(server ? b->tx : b->rx, &entry));
			CHECK(server || (entry.op_context == data[j] && filled(data[j], 300, i * BURST + j)), "fi_msg(3): FI_MORE: message %u of burst %u", j, i);
		}
	}
	step();
}

/* A queue that is full refuses with -FI_EAGAIN, and loses nothing. */
static void full(struct bed *b)
{
	static unsigned char data[3000];
	struct fi_cq_tagged_entry entry;
	size_t posted = 0, limit = 8 * b->info->tx_attr->size, i;
	ssize_t got = 0;

	if (server) {
		while (posted < limit && (got = fi_send(b->ep, data, sizeof data, NULL, 0, NULL)) == 0)
			posted++;
		CHECK(got == -FI_EAGAIN, "fi_domain(3): FI_RM_ENABLED: -FI_EAGAIN from a full queue, not %zd after %zu", got, posted);
		CHECK(posted >= b->info->tx_attr->size, "fi_endpoint(3): tx_attr's size: %zu operations fit", posted);
		tell(&posted, sizeof posted);
		for (i = 0; i < posted; i++)
			OK(completion(b->tx, &entry));
	} else {
		hear(&posted, sizeof posted);
		for (i = 0; i < posted; i++) {
			POST(b, fi_recv(b->ep, data, sizeof data, NULL, 0, NULL));
			OK(completion(b->rx, &entry));
			CHECK(entry.len == sizeof data, "fi_domain(3): FI_RM_ENABLED: nothing is lost, %zu", i);
		}
		for (i = 0, got = 0; i < limit && got == 0; i++)
			got = fi_recv(b->ep, data, sizeof data, NULL, 0, data);
		CHECK(got == -FI_EAGAIN && i > b->info->rx_attr->size, "fi_endpoint(3): rx_attr's size: %zu receives fit, then %zd", i - 1, got);
		for (; i > 1; i--) {
			struct fi_cq_err_entry error;

			OK(fi_cancel(&b->ep->fid, data));
			CHECK(completion_error(b->rx, &error) == FI_ECANCELED, "fi_endpoint(3): fi_cancel");
		}
	}
	step();
}

/* The flags of calls without flags can be read and set. */
static void default_flags(struct bed *b)
{
	uint64_t flags = FI_TRANSMIT;
	struct fi_cq_tagged_entry entry;
	unsigned char data[10];

	OK(fi_control(&b->ep->fid, FI_GETOPSFLAG, &flags));
	CHECK(flags == b->info->tx_attr->op_flags, "fi_endpoint(3): FI_GETOPSFLAG gives tx_attr's op_flags, not %" PRIx64, flags);
	flags = FI_TRANSMIT | FI_DELIVERY_COMPLETE;
	OK(fi_control(&b->ep->fid, FI_SETOPSFLAG, &flags));
	flags = FI_TRANSMIT;
	OK(fi_control(&b->ep->fid, FI_GETOPSFLAG, &flags));
	CHECK(flags == FI_DELIVERY_COMPLETE, "fi_endpoint(3): FI_SETOPSFLAG sets them, %" PRIx64, flags);
	if (server) {
		POST(b, fi_send(b->ep, data, sizeof data, NULL, 0, data));
		OK(completion(b->tx, &entry));
	} else {
		POST(b, fi_recv(b->ep, data, sizeof data, NULL, 0, data));
		OK(completion(b->rx, &entry));
	}
	flags = FI_TRANSMIT;
	OK(fi_control(&b->ep->fid, FI_SETOPSFLAG, &flags));
	step();
}

void test_messages(void)
{
	struct want w = {0};
	struct bed b;

	open_connected(&b, &w);
	all_sizes(&b);
	vectors(&b);
	patience(&b, 40, 100);
	if (ours) {
		patience(&b, 1000, 600);
		patience(&b, 300, 40000);
	}
	streams(&b);
	injected(&b);
	remote_data(&b);
	levels(&b);
	if (ours) { /* tcp of libfabric 1.17 has not all of it */
		more(&b);
		full(&b);
		default_flags(&b);
	}
	close_bed(&b);
}

/*
 * Bursts of messages, a frame each, first without FI_MORE and then with it, and last a long message each. The client answers each, so that nothing is
 * under way when the next one begins. The server tells its user when it begins and after each kind, and goes on when
 * that has counted doorbells or packets, and answers.
 */
void test_doorbells(void)
{
	enum { ROUNDS = 200, BURST = 3, SIZE = 1000, PIECES = 65536 };
	static unsigned char data[BURST][PIECES];
	unsigned char answer = 0;
	struct want w = {0};
	struct fi_cq_tagged_entry entry;
	struct iovec iov = {data, SIZE};
	struct fi_msg msg = {.msg_iov = &iov, .iov_count = 1};
	struct bed b;
	int more, i, j, burst = BURST;

	open_connected(&b, &w);
	for (more = -1; more < 3; more++) {
		if (more == 2) {
			burst = 1;
			iov.iov_len = PIECES;
		}
		for (i = 0; i < ROUNDS && more >= 0; i++) {
			for (j = 0; j < burst && !server; j++)
				POST(&b, fi_recv(b.ep, data[j], PIECES, NULL, 0, NULL));
			if (server)
				POST(&b, fi_recv(b.ep, &answer, 1, NULL, 0, NULL));
			step();
			for (j = 0; j < burst && server; j++)
				POST(&b, fi_sendmsg(b.ep, &msg, FI_COMPLETION | (more && j < burst - 1 ? FI_MORE : 0)));
			for (j = 0; j < burst; j++)
				OK(completion(server ? b.tx : b.rx, &entry));
			if (!server)
				POST(&b, fi_send(b.ep, &answer, 1, NULL, 0, NULL));
			OK(completion(server ? b.rx : b.tx, &entry));
		}
		step();
		if (server) {
			printf("bursts\n");
			fflush(stdout);
			CHECK(getchar() != EOF, "the user answers");
		}
	}
	close_bed(&b);
}
