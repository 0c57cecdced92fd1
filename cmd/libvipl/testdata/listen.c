/*
 * listen: requests wait while the server listens and does not wait for them; when it has ended
 * that, they are refused, and a thread in VipConnectWait returns.
 *
 *	listen server|client DEVICE [ADDRESS]
 */
#include "pair.h"

#include <pthread.h>

enum { REQUESTS = 3 };

/* Longer than the time for which requests wait without VipxListen. */
#define AWAY 500000

static void *wait_for_none(void *arg)
{
	struct side *s = (struct side *)arg;
	union address local, remote;
	VIP_CONN_HANDLE conn;

	side_local(s, &local, "alone");
	EXPECT(VIP_INVALID_STATE, VipConnectWait(s->nic, &local.a, PATIENCE, &remote.a, NULL, &conn));
	return NULL;
}

static void serve(struct side *s, VIP_VI_HANDLE *vis)
{
	union address local, alone, remote;
	VIP_CONN_HANDLE conn;
	pthread_t thread;
	int i;

	side_local(s, &local, "listen");
	EXPECT(VIP_INVALID_STATE, VipxUnlisten(s->nic, &local.a));
	CHECK(VipxListen(s->nic, &local.a));
	EXPECT(VIP_INVALID_STATE, VipxListen(s->nic, &local.a));
	side_local(s, &alone, "alone"); /* which no client asks for */
	CHECK(VipxListen(s->nic, &alone.a));
	EXPECT(VIP_TIMEOUT, VipConnectWait(s->nic, &alone.a, 0, &remote.a, NULL, &conn));
	ASSERT(pthread_create(&thread, NULL, wait_for_none, s) == 0);
	usleep(AWAY);
	CHECK(VipxUnlisten(s->nic, &alone.a));
	ASSERT(pthread_join(thread, NULL) == 0);
	EXPECT(VIP_TIMEOUT, VipConnectWait(s->nic, &alone.a, 0, &remote.a, NULL, &conn));
	for (i = 0; i < REQUESTS; i++) {
		usleep(AWAY);
		CHECK(VipConnectWait(s->nic, &local.a, PATIENCE, &remote.a, NULL, &conn));
		CHECK(VipConnectAccept(conn, vis[i]));
	}
	CHECK(VipxUnlisten(s->nic, &local.a));
	EXPECT(VIP_INVALID_STATE, VipxUnlisten(s->nic, &local.a));
}

static void request(struct side *s, VIP_VI_HANDLE *vis)
{
	union address local, remote;
	VIP_RETURN code;
	int i;

	side_local(s, &local, "");
	side_remote(s->peer, &remote, "listen");
	for (i = 0; i < REQUESTS; i++) {
		while ((code = VipConnectRequest(vis[i], &local.a, &remote.a, PATIENCE, NULL)) == VIP_NO_MATCH && i == 0)
			usleep(1000); /* it has not begun */
		CHECK(code);
	}
	usleep(AWAY);
	CHECK(VipDisconnect(vis[0]));
	EXPECT(VIP_NO_MATCH, VipConnectRequest(vis[0], &local.a, &remote.a, PATIENCE, NULL));
}

int main(int argc, char **argv)
{
	VIP_VI_HANDLE vis[REQUESTS];
	struct side s;
	int i;

	side_open(&s, argc, argv);
	for (i = 0; i < REQUESTS; i++)
		vis[i] = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	if (s.server) {
		serve(&s, vis);
		usleep(3 * AWAY); /* the client is refused, and does not find this side gone */
	} else {
		request(&s, vis);
	}
	for (i = 0; i < REQUESTS; i++) {
		CHECK(VipDisconnect(vis[i]));
		CHECK(VipDestroyVi(vis[i]));
	}
	CHECK(VipDestroyPtag(s.nic, s.ptag));
	CHECK(VipCloseNic(s.nic));
	printf("listen: %d requests waited\n", REQUESTS);
	return 0;
}
