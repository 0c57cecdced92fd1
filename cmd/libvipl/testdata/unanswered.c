/*
 * unanswered: the server ends without an answer to requests that it has taken. Each is rejected.
 *
 *	unanswered server DEVICE close | exit
 *	unanswered client DEVICE ADDRESS close | exit
 */
#include "pair.h"

#include <pthread.h>

enum { REQUESTS = 8 };

static struct side s;

static const char *names[REQUESTS] = {"0", "1", "2", "3", "4", "5", "6", "7"};

static void *request(void *name)
{
	union address local, remote;
	VIP_VI_HANDLE vi = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	VIP_RETURN got;

	side_local(&s, &local, (const char *)name);
	side_remote(s.peer, &remote, (const char *)name);
	while ((got = VipConnectRequest(vi, &local.a, &remote.a, PATIENCE / 10, NULL)) == VIP_NO_MATCH)
		usleep(1000); /* the server is not there yet */
	EXPECT(VIP_REJECT, got);
	return NULL;
}

static void requests(void)
{
	pthread_t threads[REQUESTS];
	int i;

	for (i = 0; i < REQUESTS; i++)
		ASSERT(pthread_create(&threads[i], NULL, request, (void *)names[i]) == 0);
	for (i = 0; i < REQUESTS; i++)
		ASSERT(pthread_join(threads[i], NULL) == 0);
	printf("unanswered: %d rejected\n", REQUESTS);
}

static void takes(int closes)
{
	VIP_NIC_HANDLE other;
	int i;

	CHECK(VipOpenNic(s.device, &other));
	for (i = 0; i < REQUESTS; i++) {
		union address local, remote;
		VIP_CONN_HANDLE conn;

		side_local(&s, &local, names[i]);
		CHECK(VipConnectWait(s.nic, &local.a, PATIENCE, &remote.a, NULL, &conn));
	}
	if (closes)
		CHECK(VipCloseNic(s.nic));
	exit(0);
}

int main(int argc, char **argv)
{
	side_open(&s, argc, argv);
	if (s.server)
		takes(strcmp(argv[argc - 1], "close") == 0);
	requests();
	return 0;
}
