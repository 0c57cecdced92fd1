/* fi_cq(3), fi_cntr(3): which operations write entries, in which format, and what they say of errors. */
#include "suite.h"

static void selective(void)
{
	struct want w = {.tx_bind = FI_SELECTIVE_COMPLETION, .rx_bind = FI_SELECTIVE_COMPLETION};
	unsigned char data[100];
	struct iovec iov = {data, sizeof data};
	struct fi_msg msg = {.msg_iov = &iov, .iov_count = 1, .context = &iov};
	struct fi_cq_tagged_entry entry;
	struct bed b;

	open_connected(&b, &w);
	if (server) {
		POST(&b, fi_send(b.ep, data, sizeof data, NULL, 0, data));
		POST(&b, fi_sendmsg(b.ep, &msg, 0));
		POST(&b, fi_sendmsg(b.ep, &msg, FI_COMPLETION));
		OK(completion(b.tx, &entry));
		CHECK(entry.op_context == &iov, "fi_endpoint(3): FI_SELECTIVE_COMPLETION: only operations with FI_COMPLETION write entries");
		step();
		CHECK(fi_cq_read(b.tx, &entry, 1) == -FI_EAGAIN, "fi_endpoint(3): no other entry");
	} else {
		POST(&b, fi_recv(b.ep, data, sizeof data, NULL, 0, data));
		POST(&b, fi_recvmsg(b.ep, &msg, 0));
		POST(&b, fi_recvmsg(b.ep, &msg, FI_COMPLETION));
		OK(completion(b.rx, &entry));
		CHECK(entry.op_context == &iov, "fi_endpoint(3): FI_SELECTIVE_COMPLETION, receives");
		step();
		CHECK(fi_cq_read(b.rx, &entry, 1) == -FI_EAGAIN, "fi_endpoint(3): no other entry");
	}
	close_bed(&b);
}

static void formats(void)
{
	static const enum fi_cq_format all[] = {FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_DATA};
	static const size_t size[] = {sizeof(struct fi_cq_entry), sizeof(struct fi_cq_msg_entry), sizeof(struct fi_cq_data_entry)};
	union {
		unsigned char bytes[3 * sizeof(struct fi_cq_tagged_entry)];
		struct fi_cq_entry context;
		struct fi_cq_msg_entry msg;
		struct fi_cq_data_entry data;
	} entry;
	unsigned char data[3][100];
	fi_addr_t from[3];
	size_t i, j;

	for (i = 0; i < 3; i++) {
		struct want w = {.format = all[i]};
		struct bed b;
		ssize_t got = 0, n;
		double end;

		open_connected(&b, &w);
		for (j = 0; j < 3 && server; j++)
			POST(&b, fi_send(b.ep, data[j], sizeof data[j], NULL, 0, data[j]));
		for (j = 0; j < 3 && !server; j++)
			POST(&b, fi_recv(b.ep, data[j], sizeof data[j], NULL, 0, data[j]));
		memset(&entry, 0x77, sizeof entry);
		for (end = seconds() + 15; got < 3 && seconds() < end; ) {
			n = fi_cq_readfrom(server ? b.tx : b.rx, entry.bytes + (size_t)got * size[i], (size_t)(3 - got), from + got);
			got += n > 0 ? n : 0;
		}
		CHECK(got == 3, "fi_cq(3): three entries, of %zu bytes each", size[i]);
		for (j = 0; j < 3; j++)
			CHECK(memcmp(entry.bytes + j * size[i], &(void *){data[j]}, sizeof(void *)) == 0, "fi_cq(3): op_context first, format %zu", i);
		CHECK(entry.bytes[3 * size[i]] == 0x77, "fi_cq(3): nothing behind the entries");
		if (!server && all[i] != FI_CQ_FORMAT_CONTEXT)
			CHECK(entry.msg.flags & FI_RECV && entry.msg.len == sizeof data[0], "fi_cq(3): flags and length");
		if (!server && ours) /* tcp leaves it */
			CHECK(from[0] == FI_ADDR_NOTAVAIL, "fi_cq(3): no source of a connected endpoint");
		close_bed(&b);
	}
}

static void truncated(void)
{
	struct want w = {0};
	unsigned char data[50000];
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error;
	struct bed b;

	open_connected(&b, &w);
	fill(data, sizeof data, 4);
	if (server) {
		POST(&b, fi_send(b.ep, data, sizeof data, NULL, 0, data));
		POST(&b, fi_send(b.ep, data, 10, NULL, 0, data));
	} else {
		memset(data, 0, sizeof data);
		POST(&b, fi_recv(b.ep, data, 20000, NULL, 0, data));
		CHECK(completion_error(b.rx, &error) == FI_ETRUNC, "fi_errno(3): FI_ETRUNC for a message longer than its receive");
		CHECK(error.op_context == data && error.flags & FI_RECV, "fi_cq(3): the error is the operation's");
		CHECK(data[20000] == 0, "fi_msg(3): nothing is written behind the buffer");
		if (!ours)
			goto end; /* tcp ends the connection */
		CHECK(error.olen == 30000 && error.len == 20000, "fi_cq(3): olen and len: %zu, %zu", error.olen, error.len);
		CHECK(filled(data, 20000, 4), "fi_cq(3): what has room is there");
		POST(&b, fi_recv(b.ep, data, 20000, NULL, 0, data));
		OK(completion(b.rx, &entry));
		CHECK(entry.len == 10, "the connection goes on");
	}
end:
	close_bed(&b);
}

static void cancelled(void)
{
	struct want w = {0};
	unsigned char data[3][10];
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error;
	struct bed b;

	open_connected(&b, &w);
	if (!server) {
		POST(&b, fi_recv(b.ep, data[0], 10, NULL, 0, data[0]));
		POST(&b, fi_recv(b.ep, data[1], 10, NULL, 0, data[1]));
		POST(&b, fi_recv(b.ep, data[2], 10, NULL, 0, data[2]));
		OK(fi_cancel(&b.ep->fid, data[1]));
		CHECK(completion_error(b.rx, &error) == FI_ECANCELED && error.op_context == data[1], "fi_endpoint(3): fi_cancel: FI_ECANCELED");
	}
	step();
	if (server) {
		POST(&b, fi_inject(b.ep, "one", 3, 0));
		POST(&b, fi_inject(b.ep, "three", 5, 0));
	} else {
		OK(completion(b.rx, &entry));
		CHECK(entry.op_context == data[0] && entry.len == 3, "fi_endpoint(3): the others stay: the first");
		OK(completion(b.rx, &entry));
		CHECK(entry.op_context == data[2] && entry.len == 5, "fi_endpoint(3): the others stay: the last");
	}
	close_bed(&b);
}

/* The entry of libfabric 1.4 ends before err_data_size. */
static void old_entry(void)
{
	struct want w = {.api = FI_VERSION(1, 4)};
	struct fi_cq_err_entry error = {.err_data = (void *)1, .err_data_size = 1000};
	unsigned char data[10];
	struct bed b;

	open_bed(&b, &w);
	open_ep(&b, b.info, &w);
	POST(&b, fi_recv(b.ep, data, sizeof data, NULL, 0, data));
	OK(fi_cancel(&b.ep->fid, data));
	CHECK(fi_cq_readerr(b.rx, &error, 0) == 1 && error.op_context == data, "fi_cq(3): the entry of the receive");
	CHECK(error.err_data_size == 1000, "fi_cq(3): nothing is written behind the entry of release 1.4");
	CHECK(!ours || !error.err_data, "fi_cq(3): release 1.4: err_data is the provider's");
	close_bed(&b);
}

static void counted(void)
{
	enum { N = 20 };
	struct want w = {.counters = 1};
	unsigned char data[N][100];
	struct bed b;
	int i;

	if (!ours)
		return; /* counters of tcp's message endpoints came later than 1.17 */
	open_connected(&b, &w);
	for (i = 0; i < N && server; i++)
		POST(&b, i % 2 ? fi_inject(b.ep, data[i], 100, 0) : fi_send(b.ep, data[i], 100, NULL, 0, NULL));
	for (i = 0; i < N && !server; i++)
		POST(&b, fi_recv(b.ep, data[i], 100, NULL, 0, NULL));
	OK(fi_cntr_wait(server ? b.sent : b.received, N, 15000));
	CHECK(fi_cntr_read(server ? b.sent : b.received) == N, "fi_endpoint(3): counters count sends, injected ones, too, and receives");
	CHECK(fi_cntr_readerr(b.sent) == 0, "fi_cntr(3): no error");
	close_bed(&b);
}

static void multi_receives(void)
{
	enum { N = 200, SIZE = 3000, BUFFER = 65536 };
	struct want w = {.caps = FI_MSG | FI_MULTI_RECV};
	static unsigned char buffer[2][BUFFER], data[SIZE];
	struct fi_cq_tagged_entry entry;
	struct iovec iov;
	struct fi_msg msg = {.msg_iov = &iov, .iov_count = 1};
	struct fi_cq_err_entry error;
	struct bed b;
	size_t min = SIZE;
	int i, got, next = 0;

	if (!ours)
		return;
	open_connected(&b, &w);
	OK(fi_setopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &min, sizeof min));
	if (server) {
		for (i = 0; i < N; i++) {
			fill(data, SIZE, (unsigned)i);
			POST(&b, fi_send(b.ep, data, (size_t)(SIZE - i), NULL, 0, NULL));
			OK(completion(b.tx, &entry));
		}
	} else {
		for (i = 0; i < 2; i++) {
			iov = (struct iovec){buffer[i], BUFFER};
			msg.context = buffer[i];
			POST(&b, fi_recvmsg(b.ep, &msg, FI_MULTI_RECV | FI_COMPLETION));
		}
		for (got = 0; got < N; ) {
			OK(completion(b.rx, &entry));
			if (entry.flags & FI_RECV) {
				CHECK(entry.op_context == buffer[next], "fi_msg(3): the buffers are used in order");
				CHECK((unsigned char *)entry.buf >= buffer[next] && (unsigned char *)entry.buf + entry.len <= buffer[next] + BUFFER, "fi_cq(3): buf is in the buffer");
				CHECK(entry.len == (size_t)(SIZE - got) && filled(entry.buf, entry.len, (unsigned)got), "fi_msg(3): message %d is packed into it", got);
				got++;
			}
			if (entry.flags & FI_MULTI_RECV) { /* released: it is posted again */
				iov.iov_base = msg.context = buffer[next];
				POST(&b, fi_recvmsg(b.ep, &msg, FI_MULTI_RECV | FI_COMPLETION));
				next = 1 - next;
			}
		}
		OK(fi_cancel(&b.ep->fid, buffer[next]));
		CHECK(completion_error(b.rx, &error) == FI_ECANCELED && error.op_context == buffer[next], "fi_endpoint(3): fi_cancel: FI_ECANCELED");
		CHECK(error.flags & FI_MULTI_RECV, "fi_msg(3): FI_MULTI_RECV: a buffer that is cancelled is released");
	}
	close_bed(&b);
}

void test_completions(void)
{
	selective();
	formats();
	truncated();
	cancelled();
	old_entry();
	counted();
	multi_receives();
}
