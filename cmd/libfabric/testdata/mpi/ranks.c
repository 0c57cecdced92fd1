/*
 * ranks: an MPI program that checks what it gets: point-to-point, collectives, communicators, one-sided.
 * Any number of ranks from 2 on.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, size, checks;

#define CHECK(that)                                                                        \
	do {                                                                               \
		checks++;                                                                  \
		if (!(that)) {                                                             \
			fprintf(stderr, "rank %d: %s:%d: not %s\n", rank, __FILE__, __LINE__, #that); \
			MPI_Abort(MPI_COMM_WORLD, 1);                                      \
		}                                                                          \
	} while (0)

enum { LARGEST = 4 << 20 };

static unsigned char *out, *in;

static void fill(unsigned char *p, size_t n, unsigned seed)
{
	size_t i;

	for (i = 0; i < n; i++)
		p[i] = (unsigned char)(seed * 31 + i * 7 + (i >> 9));
}

static int filled(const unsigned char *p, size_t n, unsigned seed)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (p[i] != (unsigned char)(seed * 31 + i * 7 + (i >> 9)))
			return 0;
	return 1;
}

/* Around the ring, in all sizes: blocking, at once, synchronous, received late. */
static void ring(void)
{
	static const int sizes[] = {0, 1, 100, 4000, 16384, 20000, 65536, 131072, 200001, 1 << 20, LARGEST};
	int to = (rank + 1) % size, from = (rank + size - 1) % size, n;
	MPI_Request requests[2];
	MPI_Status status;
	size_t i;

	for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		fill(out, (size_t)sizes[i], (unsigned)rank);
		memset(in, 0, (size_t)sizes[i]);
		MPI_Sendrecv(out, sizes[i], MPI_BYTE, to, 1, in, LARGEST, MPI_BYTE, from, 1, MPI_COMM_WORLD, &status);
		MPI_Get_count(&status, MPI_BYTE, &n);
		CHECK(n == sizes[i] && status.MPI_SOURCE == from && status.MPI_TAG == 1 && filled(in, (size_t)n, (unsigned)from));
		memset(in, 0, (size_t)sizes[i]);
		MPI_Isend(out, sizes[i], MPI_BYTE, to, 2, MPI_COMM_WORLD, &requests[0]);
		usleep(rank % 2 ? 0 : 3000);
		MPI_Irecv(in, sizes[i], MPI_BYTE, from, 2, MPI_COMM_WORLD, &requests[1]);
		MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
		CHECK(filled(in, (size_t)sizes[i], (unsigned)from));
		memset(in, 0, (size_t)sizes[i]);
		MPI_Irecv(in, sizes[i], MPI_BYTE, from, 3, MPI_COMM_WORLD, &requests[1]);
		MPI_Ssend(out, sizes[i], MPI_BYTE, to, 3, MPI_COMM_WORLD);
		MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
		CHECK(filled(in, (size_t)sizes[i], (unsigned)from));
	}
}

/* Many messages at a time from all to all, matched by tag and source in another order than they are sent. */
static void matching(void)
{
	enum { EACH = 200, BYTES = 700 };
	MPI_Request *requests = malloc(sizeof *requests * (size_t)(2 * size * EACH));
	unsigned char *from = malloc((size_t)(size * EACH * BYTES)), *to = malloc((size_t)(size * EACH * BYTES));
	int i, p, n = 0;

	for (p = 0; p < size; p++)
		for (i = 0; i < EACH; i++) {
			unsigned char *at = to + (p * EACH + i) * BYTES;

			fill(at, BYTES, (unsigned)(rank * 1000 + i));
			MPI_Isend(at, BYTES, MPI_BYTE, p, i, MPI_COMM_WORLD, &requests[n++]);
		}
	for (i = EACH - 1; i >= 0; i--)
		for (p = 0; p < size; p++)
			MPI_Irecv(from + (p * EACH + i) * BYTES, BYTES, MPI_BYTE, p, i, MPI_COMM_WORLD, &requests[n++]);
	MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
	for (p = 0; p < size; p++)
		for (i = 0; i < EACH; i++)
			CHECK(filled(from + (p * EACH + i) * BYTES, BYTES, (unsigned)(p * 1000 + i)));
	free(requests);
	free(from);
	free(to);
}

static void wildcards(void)
{
	MPI_Status status;
	int i, n, value, seen = 0;

	if (rank) {
		for (i = 0; i < 50; i++) {
			value = rank * 100 + i;
			MPI_Send(&value, 1, MPI_INT, 0, i, MPI_COMM_WORLD);
		}
	} else {
		for (i = 0; i < 50 * (size - 1); i++) {
			MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
			MPI_Get_count(&status, MPI_INT, &n);
			CHECK(n == 1);
			MPI_Recv(&value, 1, MPI_INT, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			CHECK(value == status.MPI_SOURCE * 100 + status.MPI_TAG);
			seen++;
		}
		CHECK(seen == 50 * (size - 1));
	}
}

static void collectives(MPI_Comm comm)
{
	enum { N = 30000 };
	int me, all, i, p, *a, *b, *counts, *at;
	double x, y;

	MPI_Comm_rank(comm, &me);
	MPI_Comm_size(comm, &all);
	a = malloc(sizeof *a * (size_t)(N * all));
	b = malloc(sizeof *b * (size_t)(N * all));
	counts = malloc(sizeof *counts * (size_t)all);
	at = malloc(sizeof *at * (size_t)all);
	MPI_Barrier(comm);
	for (p = 0; p < all; p++) {
		for (i = 0; i < N; i++)
			a[i] = me == p ? p + i : -1;
		MPI_Bcast(a, N, MPI_INT, p, comm);
		for (i = 0; i < N; i += 97)
			CHECK(a[i] == p + i);
	}
	for (i = 0; i < N; i++)
		a[i] = me + i;
	MPI_Allreduce(a, b, N, MPI_INT, MPI_SUM, comm);
	for (i = 0; i < N; i += 97)
		CHECK(b[i] == all * i + all * (all - 1) / 2);
	MPI_Reduce(a, b, N, MPI_INT, MPI_MAX, all - 1, comm);
	for (i = 0; i < N && me == all - 1; i += 97)
		CHECK(b[i] == all - 1 + i);
	MPI_Allgather(a, N, MPI_INT, b, N, MPI_INT, comm);
	for (i = 0; i < N * all; i += 97)
		CHECK(b[i] == i / N + i % N);
	MPI_Gather(a, N, MPI_INT, b, N, MPI_INT, 0, comm);
	for (i = 0; i < N * all; i++)
		a[i] = me * 1000 + i / N;
	MPI_Alltoall(a, N, MPI_INT, b, N, MPI_INT, comm);
	for (i = 0; i < N * all; i += 97)
		CHECK(b[i] == i / N * 1000 + me);
	for (p = 0; p < all; p++) {
		counts[p] = 10 * (p + 1);
		at[p] = p ? at[p - 1] + counts[p - 1] : 0;
	}
	for (i = 0; i < counts[me]; i++)
		a[i] = me;
	MPI_Allgatherv(a, counts[me], MPI_INT, b, counts, at, MPI_INT, comm);
	for (p = 0; p < all; p++)
		for (i = 0; i < counts[p]; i++)
			CHECK(b[at[p] + i] == p);
	MPI_Scatterv(b, counts, at, MPI_INT, a, counts[me], MPI_INT, 0, comm);
	CHECK(a[counts[me] - 1] == me);
	x = me + 1;
	MPI_Scan(&x, &y, 1, MPI_DOUBLE, MPI_SUM, comm);
	CHECK(y == (me + 1) * (me + 2) / 2.0);
	for (i = 0; i < all; i++)
		a[i] = i;
	MPI_Reduce_scatter_block(a, b, 1, MPI_INT, MPI_SUM, comm);
	CHECK(b[0] == me * all);
	free(a);
	free(b);
	free(counts);
	free(at);
}

static void communicators(void)
{
	MPI_Comm half, copy, grid;
	int dims[1] = {0}, periods[1] = {1}, left, right, value, got;

	MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
	collectives(half);
	MPI_Comm_dup(half, &copy);
	collectives(copy);
	MPI_Comm_free(&copy);
	MPI_Comm_free(&half);
	MPI_Dims_create(size, 1, dims);
	MPI_Cart_create(MPI_COMM_WORLD, 1, dims, periods, 0, &grid);
	MPI_Cart_shift(grid, 0, 1, &left, &right);
	value = rank;
	MPI_Sendrecv(&value, 1, MPI_INT, right, 0, &got, 1, MPI_INT, left, 0, grid, MPI_STATUS_IGNORE);
	CHECK(got == left);
	MPI_Comm_free(&grid);
}

static void one_sided(void)
{
	enum { N = 50000 };
	int *memory, *mine = malloc(N * sizeof *mine), i, to = (rank + 1) % size, from = (rank + size - 1) % size;
	long one = 1, before, *counter;
	MPI_Win win, count;

	MPI_Win_allocate(N * sizeof *memory, sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &win);
	memset(memory, 0, N * sizeof *memory);
	MPI_Win_fence(0, win);
	for (i = 0; i < N; i++)
		mine[i] = rank * 7 + i;
	MPI_Put(mine, N, MPI_INT, to, 0, N, MPI_INT, win);
	MPI_Win_fence(0, win);
	for (i = 0; i < N; i += 31)
		CHECK(memory[i] == from * 7 + i);
	MPI_Win_fence(0, win);
	MPI_Get(mine, N, MPI_INT, from, 0, N, MPI_INT, win);
	MPI_Win_fence(0, win);
	for (i = 0; i < N; i += 31)
		CHECK(mine[i] == (from + size - 1) % size * 7 + i);
	for (i = 0; i < 1000; i++)
		mine[i] = 1;
	MPI_Win_fence(0, win);
	memset(memory, 0, N * sizeof *memory);
	MPI_Win_fence(0, win);
	MPI_Accumulate(mine, 1000, MPI_INT, 0, 0, 1000, MPI_INT, MPI_SUM, win);
	MPI_Win_fence(0, win);
	for (i = 0; i < 1000 && !rank; i++)
		CHECK(memory[i] == size);
	MPI_Win_free(&win);
	MPI_Win_allocate(sizeof *counter, sizeof *counter, MPI_INFO_NULL, MPI_COMM_WORLD, &counter, &count);
	*counter = 0;
	MPI_Barrier(MPI_COMM_WORLD);
	for (i = 0; i < 20; i++) {
		MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, count);
		MPI_Fetch_and_op(&one, &before, MPI_LONG, 0, 0, MPI_SUM, count);
		MPI_Win_unlock(0, count);
		CHECK(before >= i && before < 20L * size);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, count);
	MPI_Get(&before, 1, MPI_LONG, 0, 0, 1, MPI_LONG, count);
	MPI_Win_unlock(0, count);
	CHECK(before == 20L * size);
	MPI_Win_free(&count);
	free(mine);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	out = malloc(LARGEST);
	in = malloc(LARGEST);
	ring();
	if (argc > 1) {
		MPI_Barrier(MPI_COMM_WORLD);
		if (rank == size - 1)
			abort(); /* the job ends */
		sleep(60);
	}
	matching();
	wildcards();
	collectives(MPI_COMM_WORLD);
	communicators();
	one_sided();
	MPI_Barrier(MPI_COMM_WORLD);
	printf("rank %d of %d: %d checks\n", rank, size, checks);
	free(out);
	free(in);
	MPI_Finalize();
	return 0;
}
