/*
 * apps: the two applications of mvich/mpiapps in C, for any MPI: a stencil (Jacobi) on a plate whose border has fixed
 * temperatures, and conjugate gradients for a matrix of five diagonals. Both cut a square into a block for each rank.
 * Rank 0 does the same alone afterwards, and compares point by point: the stencil's are equal, and those of conjugate
 * gradients differ by the order of sums only.
 *
 *	apps stencil|cg SIZE STEPS
 */
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct plane { /* a square of n x n points, cut into down x across blocks */
	MPI_Comm comm;
	int rank, size, n, down, across;
};

struct block { /* a rank's part: rows x cols points and a border of one around them */
	struct plane *p;
	int top, left, rows, cols;
	double *points;
	MPI_Datatype column;
};

static void cut_plane(struct plane *p, MPI_Comm comm, int n)
{
	int a;

	p->comm = comm;
	p->n = n;
	MPI_Comm_rank(comm, &p->rank);
	MPI_Comm_size(comm, &p->size);
	p->down = p->size;
	p->across = 1;
	for (a = 1; a * a <= p->size; a++)
		if (p->size % a == 0) {
			p->down = p->size / a;
			p->across = a;
		}
}

/* Where part i begins when n points are cut into parts. */
static int cut(int n, int parts, int i)
{
	return i * (n / parts) + (i < n % parts ? i : n % parts);
}

static void area(const struct plane *p, int rank, int *top, int *left, int *rows, int *cols)
{
	int i = rank / p->across, j = rank % p->across;

	*top = cut(p->n, p->down, i);
	*left = cut(p->n, p->across, j);
	*rows = cut(p->n, p->down, i + 1) - *top;
	*cols = cut(p->n, p->across, j + 1) - *left;
}

static void make_block(struct block *b, struct plane *p)
{
	b->p = p;
	area(p, p->rank, &b->top, &b->left, &b->rows, &b->cols);
	b->points = calloc((size_t)(b->rows + 2) * (size_t)(b->cols + 2), sizeof *b->points);
	MPI_Type_vector(b->rows, 1, b->cols + 2, MPI_DOUBLE, &b->column);
	MPI_Type_commit(&b->column);
}

static void free_block(struct block *b)
{
	MPI_Type_free(&b->column);
	free(b->points);
}

static double *at(struct block *b, int row, int col)
{
	return b->points + (size_t)row * (size_t)(b->cols + 2) + col;
}

static int neighbour(const struct plane *p, int down, int right)
{
	int i = p->rank / p->across + down, j = p->rank % p->across + right;

	return i < 0 || i >= p->down || j < 0 || j >= p->across ? MPI_PROC_NULL : i * p->across + j;
}

/* Gives the neighbours the rows and columns at the edges, and has theirs in the border then. */
static void swap(struct block *b)
{
	struct {
		MPI_Datatype type;
		int count;
		double *out, *in;
		int to, from;
	} ways[4] = {
		{MPI_DOUBLE, b->cols, at(b, 1, 1), at(b, b->rows + 1, 1), neighbour(b->p, -1, 0), neighbour(b->p, 1, 0)},
		{MPI_DOUBLE, b->cols, at(b, b->rows, 1), at(b, 0, 1), neighbour(b->p, 1, 0), neighbour(b->p, -1, 0)},
		{b->column, 1, at(b, 1, 1), at(b, 1, b->cols + 1), neighbour(b->p, 0, -1), neighbour(b->p, 0, 1)},
		{b->column, 1, at(b, 1, b->cols), at(b, 1, 0), neighbour(b->p, 0, 1), neighbour(b->p, 0, -1)},
	};
	MPI_Request requests[8];
	int i;

	for (i = 0; i < 4; i++) {
		MPI_Irecv(ways[i].in, ways[i].count, ways[i].type, ways[i].from, i, b->p->comm, &requests[2 * i]);
		MPI_Isend(ways[i].out, ways[i].count, ways[i].type, ways[i].to, i, b->p->comm, &requests[2 * i + 1]);
	}
	MPI_Waitall(8, requests, MPI_STATUSES_IGNORE);
}

static double all(const struct plane *p, double v, MPI_Op op)
{
	double result;

	MPI_Allreduce(&v, &result, 1, MPI_DOUBLE, op, p->comm);
	return result;
}

static double temperature(int n, int row, int col)
{
	return (double)(row * row - 2 * col * (n - col)) / n;
}

static void heat(struct block *b)
{
	int i, j, n = b->p->n;

	for (i = 0; i < b->rows + 2; i++)
		for (j = 0; j < b->cols + 2; j++) {
			int r = b->top + i, c = b->left + j;

			if (r == 0 || c == 0 || r == n + 1 || c == n + 1)
				*at(b, i, j) = temperature(n, r, c);
		}
}

static void stencil(struct plane *p, int steps, struct block *result)
{
	enum { LOOK_EVERY = 10 };
	struct block now, next, other;
	int step, i, j;

	make_block(&now, p);
	make_block(&next, p);
	heat(&now);
	heat(&next);
	for (step = 1; step <= steps; step++) {
		swap(&now);
		for (i = 1; i <= now.rows; i++)
			for (j = 1; j <= now.cols; j++)
				*at(&next, i, j) = (*at(&now, i - 1, j) + *at(&now, i + 1, j) + *at(&now, i, j - 1) + *at(&now, i, j + 1)) / 4;
		if (step % LOOK_EVERY == 0) {
			double most = 0;

			for (i = 1; i <= now.rows; i++)
				for (j = 1; j <= now.cols; j++)
					most = fmax(most, fabs(*at(&next, i, j) - *at(&now, i, j)));
			if (all(p, most, MPI_MAX) == 0)
				break;
		}
		other = now;
		now = next;
		next = other;
	}
	free_block(&next);
	*result = now;
}

/* The right side of the system: a number between -1 and 1 without any pattern. */
static double load(int row, int col)
{
	uint64_t h = (uint64_t)row << 32 | (uint64_t)col;

	h = (h ^ h >> 31) * 0x9e3779b97f4a7c15;
	h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9;
	return (double)(int64_t)(h ^ h >> 32) / 9223372036854775808.0;
}

static void gradients(struct plane *p, int steps, struct block *result)
{
	const double accuracy = 1e-9;
	struct block x, d, r, q;
	double rr = 0, first, before, dq;
	int step, i, j;

	make_block(&x, p);
	make_block(&d, p);
	make_block(&r, p);
	make_block(&q, p);
#define EACH(b) for (i = 1; i <= (b).rows; i++) for (j = 1; j <= (b).cols; j++)
	EACH(x) {
		*at(&d, i, j) = *at(&r, i, j) = load(x.top + i, x.left + j);
		rr += *at(&r, i, j) * *at(&r, i, j);
	}
	first = rr = all(p, rr, MPI_SUM);
	for (step = 0; step < steps && sqrt(rr) > accuracy * sqrt(first); step++) {
		swap(&d);
		dq = 0;
		EACH(x) {
			*at(&q, i, j) = 4 * *at(&d, i, j) - *at(&d, i, j - 1) - *at(&d, i, j + 1) - *at(&d, i - 1, j) - *at(&d, i + 1, j);
			dq += *at(&q, i, j) * *at(&d, i, j);
		}
		dq = all(p, dq, MPI_SUM);
		before = rr;
		rr = 0;
		EACH(x) {
			*at(&x, i, j) += before / dq * *at(&d, i, j);
			*at(&r, i, j) -= before / dq * *at(&q, i, j);
			rr += *at(&r, i, j) * *at(&r, i, j);
		}
		rr = all(p, rr, MPI_SUM);
		EACH(x)
			*at(&d, i, j) = *at(&r, i, j) + rr / before * *at(&d, i, j);
	}
	free_block(&d);
	free_block(&r);
	free_block(&q);
	*result = x;
}

/* The whole square, row by row, at rank 0; NULL elsewhere. */
static double *gather(struct block *b)
{
	struct plane *p = b->p;
	double *mine = malloc((size_t)(b->rows * b->cols) * sizeof *mine), *parts = NULL, *square = NULL, *next;
	int *counts = malloc((size_t)p->size * sizeof *counts), *begin = malloc((size_t)p->size * sizeof *begin);
	int i, rank, top, left, rows, cols, sum = 0;

	for (i = 1; i <= b->rows; i++)
		memcpy(mine + (i - 1) * b->cols, at(b, i, 1), (size_t)b->cols * sizeof *mine);
	for (rank = 0; rank < p->size; rank++) {
		area(p, rank, &top, &left, &rows, &cols);
		counts[rank] = rows * cols;
		begin[rank] = sum;
		sum += counts[rank];
	}
	if (p->rank == 0) {
		parts = malloc((size_t)sum * sizeof *parts);
		square = malloc((size_t)sum * sizeof *square);
	}
	MPI_Gatherv(mine, b->rows * b->cols, MPI_DOUBLE, parts, counts, begin, MPI_DOUBLE, 0, p->comm);
	for (rank = 0, next = parts; p->rank == 0 && rank < p->size; rank++) {
		area(p, rank, &top, &left, &rows, &cols);
		for (i = 0; i < rows; i++, next += cols)
			memcpy(square + (size_t)(top + i) * (size_t)p->n + left, next, (size_t)cols * sizeof *square);
	}
	free(mine);
	free(parts);
	free(counts);
	free(begin);
	return square;
}

static double *solve(const char *name, MPI_Comm comm, int n, int steps)
{
	struct plane p;
	struct block b;
	double *square;

	cut_plane(&p, comm, n);
	if (strcmp(name, "cg") == 0)
		gradients(&p, steps, &b);
	else
		stencil(&p, steps, &b);
	square = gather(&b);
	free_block(&b);
	return square;
}

int main(int argc, char **argv)
{
	double *got, *want, most = 0, largest = 0, tolerance, began, took;
	int rank, size, n, steps, i;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc < 4)
		MPI_Abort(MPI_COMM_WORLD, 2);
	n = atoi(argv[2]);
	steps = atoi(argv[3]);
	tolerance = strcmp(argv[1], "cg") == 0 ? 1e-6 : 0;
	MPI_Barrier(MPI_COMM_WORLD);
	began = MPI_Wtime();
	got = solve(argv[1], MPI_COMM_WORLD, n, steps);
	took = MPI_Wtime() - began;
	if (rank == 0) {
		want = solve(argv[1], MPI_COMM_SELF, n, steps);
		for (i = 0; i < n * n; i++) {
			most = fmax(most, fabs(got[i] - want[i]));
			largest = fmax(largest, fabs(want[i]));
		}
		if (!(largest > 0 && most <= tolerance * largest)) {
			fprintf(stderr, "%s: the result differs by %g, of %g\n", argv[1], most, largest);
			MPI_Abort(MPI_COMM_WORLD, 3);
		}
		printf("%s of %d x %d points, %d ranks, %.3f s: as alone\n", argv[1], n, n, size, took);
		free(want);
	}
	free(got);
	MPI_Finalize();
	return 0;
}
