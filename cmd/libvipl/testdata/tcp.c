/*
 * tcp: what pingpong and window do, over a TCP connection of the kernel that is
 * polled without sleeping.
 *
 *	tcp server|client pingpong|window [ADDRESS] COUNT SIZE
 */
#define _GNU_SOURCE 1
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int fd;
static char buffer[65536];

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void move(int out, long n)
{
	long k, at = 0;

	while (at < n) {
		k = out ? send(fd, buffer + at, (size_t)(n - at), MSG_DONTWAIT | MSG_NOSIGNAL)
			: recv(fd, buffer + at, (size_t)(n - at), MSG_DONTWAIT);
		if (k > 0)
			at += k;
		else if (k == 0 || errno != EAGAIN) {
			perror("tcp");
			exit(1);
		}
	}
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	int server = argc > 1 && strcmp(argv[1], "server") == 0, one = 1, k = server ? 3 : 4, window;
	struct sockaddr_in a;
	long count, n, i;
	double start = 0, *trips;

	if (argc != k + 2)
		return 2;
	window = strcmp(argv[2], "window") == 0;
	count = atol(argv[k]);
	n = atol(argv[k + 1]);
	memset(&a, 0, sizeof a);
	a.sin_family = AF_INET;
	a.sin_port = htons(7471);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	if (server) {
		int listener = fd;

		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		if (bind(listener, (struct sockaddr *)&a, sizeof a) != 0 || listen(listener, 1) != 0 ||
			(fd = accept(listener, NULL, NULL)) < 0) {
			perror("tcp");
			return 1;
		}
	} else {
		inet_pton(AF_INET, argv[3], &a.sin_addr);
		for (i = 0; connect(fd, (struct sockaddr *)&a, sizeof a) != 0; i++) {
			if (i == 2000) {
				perror("tcp");
				return 1;
			}
			close(fd);
			usleep(2000); /* the server is not there yet */
			fd = socket(AF_INET, SOCK_STREAM, 0);
		}
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	trips = malloc((size_t)count * sizeof *trips);
	for (i = -count / 10 - 1; i < count; i++) {
		double began = seconds();

		if (i == 0)
			start = began;
		if (window) {
			move(!server, n);
			continue;
		}
		if (!server)
			move(1, n);
		move(0, n);
		if (server)
			move(1, n);
		if (i >= 0)
			trips[i] = seconds() - began;
	}
	if (window)
		move(server, 1); /* everything has come */
	if (!server && window)
		printf("%10ld %12.1f %12.0f\n", n, (double)(n * count) / (seconds() - start) / 1e6,
			(double)count / (seconds() - start));
	if (!server && !window) {
		double mean = (seconds() - start) / (double)count / 2 * 1e6;

		qsort(trips, (size_t)count, sizeof *trips, ascending);
		printf("%10ld %14.2f %12.2f\n", n, mean, trips[count / 2] / 2 * 1e6);
	}
	return 0;
}
