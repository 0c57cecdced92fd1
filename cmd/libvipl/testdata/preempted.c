/*
 * preempted: a thread loses its CPU in the midst of a poll. Before it goes on,
 * another thread closes the NIC, frees far more handles, and has the collector run.
 * Neither may the poll fault, nor take what a later handle has.
 *
 *	preempted server DEVICE
 */
#define _GNU_SOURCE 1 /* dladdr1, REG_RIP */
#include "pair.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <ucontext.h>

enum { TURNS = 12, TRIES = 200000, CHURN = 3000 };

typedef VIP_RETURN poll_call(void);

static VIP_NIC_HANDLE nic;
static VIP_VI_HANDLE vi;
static VIP_CQ_HANDLE cq;

static VIP_RETURN poll_nic(void) { return VipxPoll(nic); }

static VIP_RETURN poll_queue(void)
{
	VIP_DESCRIPTOR *d;

	return VipRecvDone(vi, &d);
}

static VIP_RETURN poll_cq(void)
{
	VIP_VI_HANDLE of;
	VIP_BOOLEAN recv;

	return VipCQDone(cq, &of, &recv);
}

static const struct {
	const char *name;
	poll_call *call;
} polls[] = {{"VipxPoll", poll_nic}, {"VipRecvDone", poll_queue}, {"VipCQDone", poll_cq}};

static int turn;                /* which of polls */
static unsigned long from, end; /* its code */
static volatile int stopped, resume, finished;

static unsigned long counter(const ucontext_t *c)
{
#if defined(__x86_64__)
	return (unsigned long)c->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
	return (unsigned long)c->uc_mcontext.pc;
#else
#error "where is the program counter?"
#endif
}

/* Keeps the thread where it is, if that is in the library's poll. */
static void on_signal(int sig, siginfo_t *info, void *context)
{
	unsigned long at = counter((const ucontext_t *)context);

	(void)sig;
	(void)info;
	if (at <= from || at >= end || resume)
		return;
	stopped = 1;
	while (!resume)
		usleep(100);
}

static void *poller(void *unused)
{
	(void)unused;
	while (!finished)
		polls[turn].call();
	return NULL;
}

static void find_code(const char *name)
{
	Dl_info info;
	ElfW(Sym) *symbol = NULL;
	void *at = dlsym(RTLD_DEFAULT, name);

	ASSERT(at != NULL && dladdr1(at, &info, (void **)&symbol, RTLD_DL_SYMENT) != 0 && symbol != NULL);
	from = (unsigned long)at;
	end = from + symbol->st_size;
}

static void opens(const char *device)
{
	VIP_VI_ATTRIBUTES a;

	memset(&a, 0, sizeof a);
	a.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
	CHECK(VipOpenNic(device, &nic));
	CHECK(VipCreateCQ(nic, 16, &cq));
	CHECK(VipCreateVi(nic, &a, NULL, NULL, &vi));
}

/* Makes and frees VIs, which are much garbage, on a NIC of its own. */
static void churn(const char *device)
{
	VIP_VI_ATTRIBUTES a;
	VIP_NIC_HANDLE other;
	VIP_VI_HANDLE v;
	int i;

	memset(&a, 0, sizeof a);
	a.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
	CHECK(VipOpenNic(device, &other));
	for (i = 0; i < CHURN; i++) {
		CHECK(VipCreateVi(other, &a, NULL, NULL, &v));
		CHECK(VipDestroyVi(v));
	}
	CHECK(VipCloseNic(other));
}

int main(int argc, char **argv)
{
	struct sigaction a;
	pthread_t thread;
	int i, tries, stops = 0;

	if (argc < 3)
		side_usage(argv[0]);
	memset(&a, 0, sizeof a);
	a.sa_sigaction = on_signal;
	a.sa_flags = SA_SIGINFO;
	ASSERT(sigaction(SIGUSR1, &a, NULL) == 0);
	opens(argv[2]);
	for (i = 0; i < TURNS; i++) {
		turn = i % (int)(sizeof polls / sizeof *polls);
		find_code(polls[turn].name);
		stopped = resume = finished = 0;
		ASSERT(pthread_create(&thread, NULL, poller, NULL) == 0);
		for (tries = 0; !stopped && tries < TRIES; tries++) {
			ASSERT(pthread_kill(thread, SIGUSR1) == 0);
			usleep(50);
		}
		stops += stopped;
		CHECK(VipCloseNic(nic));
		churn(argv[2]);
		finished = 1;
		resume = 1;
		ASSERT(pthread_join(thread, NULL) == 0);
		opens(argv[2]);
	}
	CHECK(VipCloseNic(nic));
	ASSERT(stops == TURNS);
	printf("preempted: %d polls\n", stops);
	return 0;
}
