/*
 * cause: a program with a handler of its own for errors learns why its connections
 * broke: in the handler, and later, until it connects again.
 *
 *	cause server|client DEVICE [ADDRESS]
 */
#include "pair.h"

#define ROOM 256

static volatile int lost;
static char told[ROOM];

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e)
{
	VIP_ULONG room = sizeof told;

	ASSERT(context == (VIP_PVOID)told);
	if (e->ErrorCode != VIP_ERROR_CONN_LOST)
		return;
	CHECK(VipxQueryCause(e->ViHandle, told, &room));
	ASSERT(room == strlen(told) + 1);
	lost = 1;
}

static void expect(VIP_VI_HANDLE vi, const char *words)
{
	char text[ROOM];
	VIP_ULONG room = 1;
	double start = seconds();

	while (!lost && (seconds() - start) * 1e3 < PATIENCE)
		usleep(1000);
	ASSERT(lost);
	lost = 0;
	if (strstr(told, words) == NULL) {
		fprintf(stderr, "cause: the handler was told \"%s\", want \"%s\"\n", told, words);
		exit(1);
	}
	CHECK(VipDisconnect(vi)); /* it is told all the same */
	text[0] = 'x';
	EXPECT(VIP_ERROR_RESOURCE, VipxQueryCause(vi, text, &room));
	ASSERT(text[0] == 'x' && room == strlen(told) + 1);
	CHECK(VipxQueryCause(vi, text, &room));
	ASSERT(strcmp(text, told) == 0);
	printf("cause: %s\n", text);
}

/* Connects: there is no cause any more. */
static void connects(struct side *s, VIP_VI_HANDLE vi)
{
	char text[ROOM];
	VIP_ULONG room = sizeof text;

	side_connect(s, vi, "cause");
	if (s->server)
		return; /* the client may have left already */
	EXPECT(VIP_INVALID_STATE, VipxQueryCause(vi, text, &room));
	ASSERT(room == sizeof text);
}

static void leaves(struct side *s, VIP_VI_HANDLE vi)
{
	char text[ROOM];
	VIP_ULONG room = sizeof text;

	connects(s, vi);
	if (s->server) {
		expect(vi, "the peer disconnected");
		return;
	}
	CHECK(VipDisconnect(vi));
	EXPECT(VIP_INVALID_STATE, VipxQueryCause(vi, text, &room)); /* that is no break */
}

int main(int argc, char **argv)
{
	struct side s;
	VIP_VI_HANDLE vi;
	VIP_DESCRIPTOR *d, *done;
	VIP_MEM_HANDLE handle;
	VIP_RETURN got;
	VIP_ULONG room = ROOM;
	char *memory, text[ROOM];

	side_open(&s, argc, argv);
	CHECK(VipErrorCallback(s.nic, told, on_error));
	memory = side_memory(&s, 4096, &handle);
	vi = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	EXPECT(VIP_INVALID_STATE, VipxQueryCause(vi, text, &room));
	EXPECT(VIP_INVALID_PARAMETER, VipxQueryCause(NULL, text, &room));
	EXPECT(VIP_INVALID_PARAMETER, VipxQueryCause(s.nic, text, &room));
	EXPECT(VIP_INVALID_PARAMETER, VipxQueryCause(vi, NULL, &room));
	EXPECT(VIP_INVALID_PARAMETER, VipxQueryCause(vi, text, NULL));

	leaves(&s, vi);
	connects(&s, vi); /* the client sends where no receive is posted */
	if (s.server) {
		expect(vi, "no receive was posted");
	} else {
		d = (VIP_DESCRIPTOR *)memory;
		describe(d, memory + 1024, 64, handle);
		CHECK(VipPostSend(vi, d, handle));
		expect(vi, "the peer broke the connection");
		while ((got = VipSendDone(vi, &done)) == VIP_NOT_DONE)
			;
		ASSERT((got == VIP_SUCCESS || got == VIP_DESCRIPTOR_ERROR) && done == d);
	}
	leaves(&s, vi);
	CHECK(VipDestroyVi(vi));
	EXPECT(VIP_INVALID_PARAMETER, VipxQueryCause(vi, text, &room));
	CHECK(VipCloseNic(s.nic));
	return 0;
}
