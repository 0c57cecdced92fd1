/* fi_rma(3), fi_mr(3): reads and writes of the peer's memory. */
#include "suite.h"

enum { REGION = 5 << 20 };

struct target {
	uint64_t address, key;
};

static unsigned char *region, *local;

static void done(struct bed *b, uint64_t flag)
{
	struct fi_cq_tagged_entry entry;

	OK(completion(b->tx, &entry));
	CHECK(entry.flags & FI_RMA && entry.flags & flag, "fi_cq(3): FI_RMA and what it was");
}

static void initiate(struct bed *b, struct target t)
{
	static const size_t sizes[] = {1, 8, 100, 4096, 4097, 70000, 1 << 20, REGION};
	struct fi_cq_tagged_entry entry;
	size_t i, n;

	for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		n = sizes[i];
		fill(local, n, (unsigned)i);
		POST(b, fi_write(b->ep, local, n, NULL, 0, t.address, t.key, local));
		done(b, FI_WRITE);
		memset(local, 0, n);
		POST(b, fi_read(b->ep, local, n, NULL, 0, t.address, t.key, local));
		done(b, FI_READ);
		CHECK(filled(local, n, (unsigned)i), "fi_rma(3): %zu bytes that were written are read", n);
	}
	{ /* vectors, both sides; with offsets */
		struct iovec iov[2] = {{local + 100, 50}, {local + 5000, 6000}};
		struct fi_rma_iov remote[2] = {{t.address + 1000, 3000, t.key}, {t.address + 9000, 3050, t.key}};
		struct fi_msg_rma m = {.msg_iov = iov, .iov_count = 2, .rma_iov = remote, .rma_iov_count = 2, .context = &m};

		fill(local, 20000, 77);
		POST(b, fi_writev(b->ep, iov, NULL, 2, 0, t.address + 20003, t.key, &m));
		done(b, FI_WRITE);
		POST(b, fi_writemsg(b->ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
		done(b, FI_WRITE);
		memset(local, 0, 20000);
		POST(b, fi_readmsg(b->ep, &m, FI_COMPLETION));
		done(b, FI_READ);
		fill(local + 20000, 20000, 77);
		CHECK(!memcmp(local + 100, local + 20100, 50) && !memcmp(local + 5000, local + 25000, 6000), "fi_rma(3): vectors gather and scatter in order");
		memset(local, 0, 20000);
		POST(b, fi_readv(b->ep, iov, NULL, 2, 0, t.address + 20003, t.key, &m));
		done(b, FI_READ);
		CHECK(!memcmp(local + 100, local + 20100, 50) && !memcmp(local + 5000, local + 25000, 6000), "fi_rma(3): fi_writev, fi_readv");
	}
	fill(local, 64, 5);
	POST(b, fi_inject_write(b->ep, local, 64, 0, t.address + 64, t.key));
	memset(local, 0, 64);
	POST(b, fi_read(b->ep, local, 64, NULL, 0, t.address + 64, t.key, NULL));
	done(b, FI_READ);
	CHECK(filled(local, 64, 5), "fi_rma(3): fi_inject_write has copied its data; a read behind it sees it");
	if (b->info->domain_attr->cq_data_size) {
		fill(local, 3000, 6);
		POST(b, fi_writedata(b->ep, local, 3000, NULL, 0x1234, 0, t.address, t.key, NULL));
		done(b, FI_WRITE);
		POST(b, fi_inject_writedata(b->ep, local, 16, 0x1235, 0, t.address, t.key));
	}
	CHECK(fi_cq_read(b->tx, &entry, 1) == -FI_EAGAIN, "fi_rma(3): injected operations write no entry");
}

static void expose(struct bed *b)
{
	struct fi_cq_tagged_entry entry;
	int i;

	for (i = 0; i < 2 && b->info->domain_attr->cq_data_size; i++) {
		OK(completion(b->rx, &entry));
		CHECK(entry.flags & FI_REMOTE_WRITE && entry.flags & FI_REMOTE_CQ_DATA && entry.data == 0x1234 + (uint64_t)i, "fi_rma(3): remote CQ data of a write, %d", i);
		CHECK(i || filled(region, 3000, 6), "fi_rma(3): the data is there when its completion is");
	}
}

/* FI_DELIVERY_COMPLETE: the data is in the peer's memory when the write completes. */
static void delivered(struct bed *b, struct target t)
{
	enum { N = 20, SIZE = 70000 };
	struct iovec iov = {local, SIZE};
	struct fi_rma_iov remote = {t.address, SIZE, t.key};
	struct fi_msg_rma m = {.msg_iov = &iov, .iov_count = 1, .rma_iov = &remote, .rma_iov_count = 1};
	unsigned i;

	for (i = 0; i < N; i++) {
		if (!server) {
			fill(local, SIZE, i);
			POST(b, fi_writemsg(b->ep, &m, FI_DELIVERY_COMPLETE | FI_COMPLETION));
			done(b, FI_WRITE);
		}
		step(); /* by another way than the connection */
		if (server)
			CHECK(filled(region, SIZE, i), "fi_endpoint(3): FI_DELIVERY_COMPLETE: the result of write %u is available", i);
		step();
	}
}

/* FI_FENCE: an operation begins when those before it are complete. */
static void fenced(struct bed *b, struct target t)
{
	enum { N = 20, SIZE = 1 << 20 };
	struct iovec iov = {local, SIZE}, last = {local + SIZE, 1};
	struct fi_rma_iov remote = {t.address, SIZE, t.key}, flag = {t.address + SIZE, 1, t.key};
	struct fi_msg_rma m = {.msg_iov = &iov, .iov_count = 1, .rma_iov = &remote, .rma_iov_count = 1, .context = &m};
	struct fi_msg_rma f = {.msg_iov = &last, .iov_count = 1, .rma_iov = &flag, .rma_iov_count = 1, .context = &f};
	volatile unsigned char *seen = region + SIZE;
	struct fi_cq_tagged_entry entry;
	double end = seconds() + 30;
	unsigned i;

	for (i = 1; i <= N; i++) {
		if (server) {
			while (*seen != i && seconds() < end)
				progress(b);
			CHECK(*seen == i && filled(region, SIZE, i), "fi_rma(3): FI_FENCE: the write before the fence is there when that behind it is, %u", i);
		} else {
			fill(local, SIZE, i);
			local[SIZE] = (unsigned char)i;
			POST(b, fi_writemsg(b->ep, &m, FI_COMPLETION));
			POST(b, fi_writemsg(b->ep, &f, FI_COMPLETION | FI_FENCE));
			OK(completion(b->tx, &entry));
			CHECK(entry.op_context == &m, "fi_rma(3): FI_FENCE: the operation before the fence completes first");
			OK(completion(b->tx, &entry));
			POST(b, fi_readmsg(b->ep, &m, FI_COMPLETION));
			POST(b, fi_writemsg(b->ep, &f, FI_COMPLETION | FI_FENCE | FI_DELIVERY_COMPLETE));
			OK(completion(b->tx, &entry));
			CHECK(entry.op_context == &m && filled(local, SIZE, i), "fi_rma(3): FI_FENCE: a read before it, too");
			OK(completion(b->tx, &entry));
		}
		step();
	}
}

/* FI_INJECT among an endpoint's flags is for writes: a read of any length gets its data, also one that has to wait. */
static void read_with_inject(struct bed *b, struct target t)
{
	enum { N = 200, SIZE = 100, WHOLE = N * SIZE };
	uint64_t flags = FI_TRANSMIT | FI_INJECT;
	unsigned i;

	if (server)
		fill(region, WHOLE, 7);
	step();
	if (!server) {
		memset(local, 0, WHOLE);
		OK(fi_control(&b->ep->fid, FI_SETOPSFLAG, &flags));
		for (i = 0; i < N; i++)
			POST(b, fi_read(b->ep, local + i * SIZE, SIZE, NULL, 0, t.address + i * SIZE, t.key, NULL));
		for (i = 0; i < N; i++)
			done(b, FI_READ);
		CHECK(filled(local, WHOLE, 7), "fi_rma(3): FI_INJECT applies to writes");
		POST(b, fi_read(b->ep, local, WHOLE, NULL, 0, t.address, t.key, NULL));
		done(b, FI_READ);
	}
	step();
}

/* Memory that is not open to it stays as it is, and the operation fails. A key is wrong, too, if its lower half is right. */
static void denied(int by_key)
{
	struct want w = {0};
	struct fi_cq_err_entry error;
	struct target t;
	struct fid_mr *mr;
	struct bed b;
	static unsigned char memory[4096], data[4096];
	struct iovec iov = {data, 100};
	struct fi_rma_iov remote = {.len = 100};
	struct fi_msg_rma m = {.msg_iov = &iov, .iov_count = 1, .rma_iov = &remote, .rma_iov_count = 1};

	open_connected(&b, &w);
	OK(fi_mr_reg(b.domain, memory, sizeof memory, by_key ? FI_REMOTE_WRITE : FI_REMOTE_READ, 0, 1, 0, &mr, NULL));
	t.key = fi_mr_key(mr) + ((uint64_t)by_key << 32);
	t.address = (uint64_t)(uintptr_t)memory;
	tell(&t, sizeof t);
	hear(&t, sizeof t);
	if (!server) {
		memset(data, 1, sizeof data);
		remote.addr = t.address;
		remote.key = t.key;
		POST(&b, fi_writemsg(b.ep, &m, FI_DELIVERY_COMPLETE | FI_COMPLETION));
		CHECK(completion_error(b.tx, &error) != 0, "fi_mr(3): a write to memory that is registered for reads fails, and one with a wrong key");
	}
	step();
	CHECK(memory[0] == 0, "fi_mr(3): the memory is as it was");
	OK(fi_close(&mr->fid));
	close_bed(&b);
}

/* Counters of reads and of writes, also of injected ones, and of those that fail. */
static void counted(void)
{
	struct want w = {.counters = 1};
	static unsigned char memory[4096], data[4096];
	struct fi_cq_err_entry error;
	struct target t;
	struct fid_mr *mr;
	struct bed b;
	int i;

	open_connected(&b, &w);
	OK(fi_mr_reg(b.domain, memory, sizeof memory, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0, &mr, NULL));
	t = (struct target){(uint64_t)(uintptr_t)memory, fi_mr_key(mr)};
	tell(&t, sizeof t);
	hear(&t, sizeof t);
	for (i = 0; i < 5 && !server; i++) {
		POST(&b, fi_write(b.ep, data, sizeof data, NULL, 0, t.address, t.key, NULL));
		POST(&b, fi_inject_write(b.ep, data, 8, 0, t.address, t.key));
		POST(&b, fi_writedata(b.ep, data, 100, NULL, 1, 0, t.address, t.key, NULL));
		POST(&b, fi_read(b.ep, data, sizeof data, NULL, 0, t.address, t.key, NULL));
	}
	if (!server) {
		OK(fi_cntr_wait(b.written, 15, 15000));
		OK(fi_cntr_wait(b.read, 5, 15000));
		for (i = 0; i < 15; i++) {
			struct fi_cq_tagged_entry entry;

			OK(completion(b.tx, &entry));
		}
		POST(&b, fi_read(b.ep, data, 8, NULL, 0, t.address, t.key + 1, NULL));
		CHECK(completion_error(b.tx, &error) != 0, "fi_mr(3): a read with a wrong key fails");
		CHECK(fi_cntr_readerr(b.read) == 1 && fi_cntr_read(b.read) == 5, "fi_cntr(3): it counts as an error of FI_READ");
		CHECK(fi_cntr_read(b.written) == 15 && fi_cntr_readerr(b.written) == 0, "fi_endpoint(3): FI_WRITE: fi_write, fi_inject_write, fi_writedata");
		CHECK(fi_cntr_read(b.sent) == 0, "fi_endpoint(3): FI_SEND does not count them");
	}
	step();
	CHECK(!server || fi_cntr_read(b.read) + fi_cntr_read(b.written) + fi_cntr_read(b.received) == 0, "fi_endpoint(3): these counters are of the endpoint's own operations");
	CHECK(fi_ep_bind(b.ep, &b.read->fid, FI_REMOTE_WRITE) != 0, "fi_endpoint(3): a counter that there is not is refused");
	OK(fi_close(&mr->fid));
	close_bed(&b);
}

void test_rma(void)
{
	struct want w = {0};
	struct target t;
	struct fid_mr *mr;
	struct bed b;

	if (ours) { /* counters of tcp's message endpoints came later than 1.17 */
		denied(0);
	denied(1);
		counted();
	}
	region = calloc(1, REGION);
	local = calloc(1, REGION);
	open_connected(&b, &w);
	OK(fi_mr_reg(b.domain, region, REGION, FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ | FI_WRITE, 0, 1, 0, &mr, NULL));
	t.key = fi_mr_key(mr);
	t.address = b.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)region : 0;
	tell(&t, sizeof t);
	hear(&t, sizeof t);
	if (server)
		expose(&b);
	else
		initiate(&b, t);
	step();
	if (ours) { /* tcp of libfabric 1.17 has neither */
		delivered(&b, t);
		fenced(&b, t);
		read_with_inject(&b, t); /* last: it leaves the flag */
	}
	OK(fi_close(&mr->fid));
	close_bed(&b);
	free(region);
	free(local);
}
