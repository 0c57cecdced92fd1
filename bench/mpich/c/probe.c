/* What via-xdp mpibench measures, for another MPI: the same benchmarks, windows
 * and columns, so that the two can stand side by side. Latency has quantiles
 * behind the mean. Usage, by a launcher that speaks PMI-1 on PMI_FD, or Open MPI's:
 * probe MIN MAX STEP ITERATIONS WARMUP MOST_BYTES NAME...
 * where 0 stands for OSU's, or no limit, as in mpibench.Options. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WINDOW = 64, LARGE = 8192, DATA = 1, REPLY = 2 };

static int rank, size, half, partner, sender;
static char *out, *in;
static double *trips;
static MPI_Request requests[2 * WINDOW];
static MPI_Status statuses[2 * WINDOW];

static void ping_pong(int bytes, int count, int keep) {
	for (int i = 0; i < count; i++) {
		double began = MPI_Wtime();
		if (sender)
			MPI_Send(out, bytes, MPI_CHAR, partner, DATA, MPI_COMM_WORLD);
		MPI_Recv(in, bytes, MPI_CHAR, partner, DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (!sender)
			MPI_Send(out, bytes, MPI_CHAR, partner, DATA, MPI_COMM_WORLD);
		if (keep)
			trips[i] = MPI_Wtime() - began;
	}
}

static void windows(int bytes, int count, int both) {
	for (int i = 0; i < count; i++) {
		int n = 0;
		for (int j = 0; j < WINDOW && (both || !sender); j++)
			MPI_Irecv(in, bytes, MPI_CHAR, partner, DATA, MPI_COMM_WORLD, &requests[n++]);
		for (int j = 0; j < WINDOW && (both || sender); j++)
			MPI_Isend(out, bytes, MPI_CHAR, partner, DATA, MPI_COMM_WORLD, &requests[n++]);
		MPI_Waitall(n, requests, statuses);
		if (sender)
			MPI_Recv(in, 1, MPI_CHAR, partner, REPLY, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		else
			MPI_Send(out, 1, MPI_CHAR, partner, REPLY, MPI_COMM_WORLD);
	}
}

static void work(const char *name, int bytes, int count, int keep) {
	if (!strcmp(name, "latency"))
		ping_pong(bytes, count, keep);
	else if (!strcmp(name, "bw") || !strcmp(name, "mbw_mr"))
		windows(bytes, count, 0);
	else if (!strcmp(name, "bibw"))
		windows(bytes, count, 1);
	else if (!strcmp(name, "allreduce"))
		for (int i = 0; i < count; i++)
			MPI_Allreduce(out, in, bytes, MPI_CHAR, MPI_SUM, MPI_COMM_WORLD);
	else
		for (int i = 0; i < count; i++)
			MPI_Alltoall(out, bytes, MPI_CHAR, in, bytes, MPI_CHAR, MPI_COMM_WORLD);
}

static int ascending(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double quantile(int count, double q) { return trips[(int)(q * (count - 1))] * 1e6 / 2; }

/* One exchange with who has started the ranks: PMI-1, a line each. */
static void pmi(const char *command) {
	int fd = atoi(getenv("PMI_FD"));
	char c = 0;
	if (write(fd, command, strlen(command)) < 0)
		_exit(1);
	while (c != '\n')
		if (read(fd, &c, 1) != 1)
			_exit(1);
}

/* Ends the rank without MPI_Finalize, which in MPICH 4.0 over UCX does not always
 * come to an end: a rank that closes its endpoints waits for an answer of the
 * peer's library, while the peer may be in a barrier of PMI already, where it does
 * not look for messages. The barrier keeps connections open until all are done. */
static void leave(void) {
	MPI_Barrier(MPI_COMM_WORLD);
	if (!getenv("PMI_FD")) {
		MPI_Finalize();
		exit(0);
	}
	pmi("cmd=barrier_in\n");
	pmi("cmd=finalize\n");
	_exit(0);
}

static int collective(const char *name) { return !strcmp(name, "allreduce") || !strcmp(name, "alltoall"); }

static int in_windows(const char *name) { return !strcmp(name, "bw") || !strcmp(name, "bibw") || !strcmp(name, "mbw_mr"); }

static void measure(const char *name, int bytes, int count, int warm) {
	trips = realloc(trips, count * sizeof *trips);
	work(name, bytes, warm, 0);
	MPI_Barrier(MPI_COMM_WORLD);
	double began = MPI_Wtime(), took, sum = 0;
	work(name, bytes, count, 1);
	took = MPI_Wtime() - began;
	MPI_Reduce(&took, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank > 0)
		return;
	double us = sum / size * 1e6, messages = (double)count * WINDOW * half * (strcmp(name, "bibw") ? 1 : 2);
	if (!strcmp(name, "latency")) {
		qsort(trips, count, sizeof *trips, ascending);
		printf("%-10d%18.2f%12.2f%12.2f%12.2f%12.2f%10d\n", bytes, us / count / 2,
		       quantile(count, 0), quantile(count, .5), quantile(count, .99), quantile(count, .999), count);
	} else if (collective(name)) {
		printf("%-10d%18.2f\n", bytes, us / count);
	} else {
		printf("%-10d%18.2f%18.2f\n", bytes, messages * bytes / us, messages / us * 1e6);
	}
	fflush(stdout);
}

int main(int argc, char **argv) {
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc < 8)
		return MPI_Abort(MPI_COMM_WORLD, 2);
	int min = atoi(argv[1]), max = atoi(argv[2]), step = atoi(argv[3]), iterations = atoi(argv[4]), warmup = atoi(argv[5]);
	long most = atol(argv[6]);
	if (min < 1 || max < min || step < 2 || iterations < 0 || warmup < 0 || most < 0)
		return MPI_Abort(MPI_COMM_WORLD, 2);
	half = size / 2 > 0 ? size / 2 : 1;
	sender = rank < half;
	partner = (rank + half) % size;
	out = malloc((size_t)size * max);
	in = malloc((size_t)size * max);
	memset(out, 'a', (size_t)size * max);
	memset(in, 'b', (size_t)size * max);
	for (char **name = argv + 7; *name; name++) {
		int latency = !strcmp(*name, "latency");
		if (!latency && !in_windows(*name) && !collective(*name) || !collective(*name) && size % 2)
			return MPI_Abort(MPI_COMM_WORLD, 2);
		if (rank == 0)
			printf("# %s\n", *name);
		for (long bytes = min; bytes <= max; bytes *= step) {
			int count = latency ? 10000 : collective(*name) ? 1000 : 100;
			int warm = latency || collective(*name) ? 200 : 10;
			if (bytes > LARGE) {
				count /= 10;
				warm /= 10;
			}
			if (iterations > 0)
				count = iterations;
			if (most > 0) {
				long fit = most / (bytes * (in_windows(*name) ? WINDOW : 1));
				count = fit < 1 ? 1 : fit < count ? fit : count;
			}
			warm = warmup > 0 ? warmup : warm < count ? warm : count;
			measure(*name, bytes, count, warm);
		}
	}
	leave();
}
