/*
 * The Go runtime's beginning, end, and way in and out.
 *
 * A program that is linked with the library, or has it preloaded, and never opens
 * a NIC should not notice it; one that forks before it opens a NIC has to find
 * everything working in the child. So the runtime starts with the first
 * VipOpenNic, not when the library is loaded: the build (see Makefile) moves the
 * initialisers of the Go half to a section of their own, which is called from
 * here. In a library of plain go build -buildmode=c-shared that section is
 * empty and the runtime runs from the beginning.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "_cgo_export.h"
#include "abi.h"
#include "enter.h"

typedef void initialiser(int argc, char **argv, char **envp);

extern initialiser *__start_via_go_init[] __attribute__((weak, visibility("hidden")));
extern initialiser *__stop_via_go_init[] __attribute__((weak, visibility("hidden")));

extern char **environ;

int via_started, via_forked;
__thread enum via_where via_where;

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

/*
 * Settings of the Go runtime, which the program's own GODEBUG goes behind: it
 * sends no signals to preempt its threads, takes no stack away, on which a
 * handler of the program without SA_ONSTACK may find itself, and ends no program
 * for a descriptor that is no pointer, whatever it is.
 */
static const char settings[] = "GODEBUG=asyncpreemptoff=1,gcshrinkstackoff=1,invalidptr=0";

/*
 * A setuid or setgid program has its environment from a user who must not gain its rights: VIA_AGENT=auto would run a
 * program from that user's PATH. AT_SECURE is set as well for a program with file capabilities, which keeps its settings.
 */
static int is_setuid(void)
{
	return getauxval(AT_UID) != getauxval(AT_EUID) || getauxval(AT_GID) != getauxval(AT_EGID);
}

const char *via_variable(const char *name)
{
	const char *value = is_setuid() ? NULL : getenv(name);

	return value ? value : "";
}

/*
 * Arguments, environment and auxiliary vector one behind the other, as the
 * kernel gives them and the runtime expects them. The environment is the one of
 * now, not that of the program's start.
 */
static char **arguments(void)
{
	static const unsigned long kinds[] = {AT_PAGESZ, AT_HWCAP, AT_HWCAP2, AT_RANDOM,
		AT_SYSINFO_EHDR, AT_SECURE, AT_CLKTCK};
	static char name[] = "vipl";
	const char *debug = via_variable("GODEBUG");
	size_t n = 0, i;
	unsigned long *block, *p;

	while (environ && environ[n] && !is_setuid())
		n++;
	block = calloc(2 + n + 2 + 2 * (sizeof kinds / sizeof *kinds + 1), sizeof *block);
	if (!block)
		return NULL;
	p = block;
	*p++ = (unsigned long)name;
	*p++ = 0;
	/* Go looks for a byte 16 at a time, also behind the end. */
	char *ours = calloc(1, sizeof settings + 1 + strlen(debug) + 16);
	if (!ours) {
		free(block);
		return NULL;
	}
	strcpy(ours, settings);
	if (*debug) {
		strcat(ours, ",");
		strcat(ours, debug);
	}
	*p++ = (unsigned long)ours;
	for (i = 0; i < n; i++)
		if (strncmp(environ[i], "GODEBUG=", 8) != 0)
			*p++ = (unsigned long)strdup(environ[i]);
	*p++ = 0;
	for (i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		*p++ = kinds[i];
		*p++ = getauxval(kinds[i]);
	}
	return (char **)block;
}

/*
 * The runtime's table of signals (Go's runtime/sigtab_linux_generic.go), which the
 * build makes visible; elsewhere it is not there.
 */
struct go_signal {
	int32_t flags;
	const char *name;
	intptr_t length;
};

enum { GO_NOTIFY = 1 << 0, GO_DEFAULT = 1 << 4, GO_UNBLOCK = 1 << 7, GO_IGN = 1 << 8 };

extern struct go_signal go_signals[] __asm__("runtime.sigtable") __attribute__((weak, visibility("hidden")));

/*
 * Has the runtime install no handlers: to take them away again could take away one that
 * another thread has installed meanwhile. Of the signals that each thread of the runtime's,
 * and each that calls it, takes off its mask, only faults and libc's own have to be.
 * It returns 0 if the table has another format.
 */
static int leave_signals(void)
{
	int i;

	if (!go_signals || go_signals[SIGCHLD].flags != (GO_NOTIFY | GO_UNBLOCK | GO_IGN) ||
		go_signals[SIGCONT].flags != (GO_NOTIFY | GO_DEFAULT | GO_IGN))
		return 0;
	for (i = 1; i < NSIG; i++) {
		if (i >= 32 && i < SIGRTMIN)
			continue;
		go_signals[i].flags |= GO_DEFAULT;
		switch (i) {
		case SIGILL: case SIGTRAP: case SIGBUS: case SIGFPE: case SIGSEGV: case SIGSTKFLT:
			break;
		default:
			go_signals[i].flags &= ~GO_UNBLOCK;
		}
	}
	return 1;
}

/*
 * A thread's first call into Go makes it one of the runtime's, which gives it a mask
 * and a stack for signals: it gets its own back, the stack where the runtime's handlers
 * were taken away. Nor does a signal find it on a stack that has not grown yet.
 */
void via_bind(void)
{
	sigset_t all, before;
	stack_t stack;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	sigaltstack(NULL, &stack);
	viago_bind();
	if (__start_via_go_init)
		sigaltstack(&stack, NULL);
	via_where = VIA_OUTSIDE;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/*
 * The runtime's monitor, sysmon, would wake up every 20 us in a program that polls: each call from C leaves a P
 * behind in the same time slice, which the monitor takes away (runtime/proc.go, retake) and hands to a thread that
 * finds nothing to do. Where the program has one CPU, each time costs it tens of microseconds. The kernel may wake
 * the monitor up late, at most by MONITOR_SLACK. It has nothing else to do than to take back Ps of blocking system calls.
 *
 * It is the second thread that the runtime starts, and /proc lists threads in that order. Those of the runtime have
 * inherited the given timer slack, which no thread of the program has.
 */
enum { MONITOR_SLACK = 10000000 /* ns */ };

static void relax_monitor(int inherited)
{
	DIR *d = opendir("/proc/self/task");
	struct dirent *e;
	char text[64];
	ssize_t length;
	int fd, n = 0;

	while (d && n < 2 && (e = readdir(d))) {
		snprintf(text, sizeof text, "/proc/%.20s/timerslack_ns", e->d_name);
		fd = open(text, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			continue;
		length = read(fd, text, sizeof text - 1);
		text[length > 0 ? length : 0] = 0;
		if (atoi(text) == inherited && ++n == 2)
			dprintf(fd, "%d", MONITOR_SLACK);
		close(fd);
	}
	if (d)
		closedir(d);
}

/*
 * Runs the initialisers. The runtime's threads inherit a mask that blocks all
 * signals, so that the program's are delivered to the program's threads. Handlers
 * that the runtime installs all the same are taken away again: a fault in the
 * program is the program's, and nothing here depends on catching one.
 */
static int run(void)
{
	struct sigaction was[NSIG], now;
	sigset_t all, before;
	static char **argv; /* the runtime keeps looking at it */
	initialiser **f;
	int i, left, slack = prctl(PR_GET_TIMERSLACK);

	argv = arguments();
	if (!argv)
		return 0;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	for (i = 1; i < NSIG; i++)
		sigaction(i, NULL, &was[i]);
	left = leave_signals();
	prctl(PR_SET_TIMERSLACK, slack + 1L);
	for (f = __start_via_go_init; f < __stop_via_go_init; f++)
		(*f)(1, argv, argv + 2);
	prctl(PR_SET_TIMERSLACK, (long)slack);
	via_bind(); /* returns when the runtime is ready */
	via_where = VIA_INSIDE; /* see start */
	viago_started();
	relax_monitor(slack + 1);
	for (i = 1; i < NSIG && !left; i++)
		if (sigaction(i, NULL, &now) == 0 &&
			(now.sa_handler != was[i].sa_handler || now.sa_flags != was[i].sa_flags))
			sigaction(i, &was[i], NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return 1;
}

/* The child of a fork has none of the runtime's threads, or half a runtime. */
static void forked(void)
{
	via_forked = 1;
	via_where = VIA_OUTSIDE;
}

/* A program that ends tells its peers, but not from a handler in the midst of Go. */
static void ended(void)
{
	if (via_enter())
		via_leave(viago_farewell());
}

/*
 * The first caller starts Go. In a child that another thread forks meanwhile no thread
 * would ever unlock the mutex. So the process is noted in starter before it locks. Nor would
 * one if a handler that interrupts this thread waited for it, or the thread were cancelled.
 */
static int start(void)
{
	static pid_t starter;
	enum via_where was = via_where;
	pid_t other = 0;
	int ok = 1, cancel;

	if (!__atomic_compare_exchange_n(&starter, &other, getpid(), 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED) &&
		other != getpid())
		return 0;
	via_where = VIA_INSIDE;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	pthread_mutex_lock(&starting);
	if (!via_started) {
		via_barrier_init();
		ok = !__start_via_go_init || run();
		if (ok) {
			pthread_atfork(NULL, NULL, forked);
			__atomic_store_n(&via_started, 1, __ATOMIC_RELEASE);
			atexit(ended);
		}
	}
	pthread_mutex_unlock(&starting);
	pthread_setcancelstate(cancel, NULL);
	via_where = was;
	return ok;
}

int via_start_and_enter(void)
{
	return via_where != VIA_INSIDE && !via_forked && start() && via_enter();
}

/*
 * The program's handlers run on a thread of Go, outside of it.
 */
void via_call_error(uintptr_t handler, uintptr_t context, uintptr_t nic, uintptr_t vi, uintptr_t cq,
	uintptr_t descriptor, uint64_t op, int resource, int code)
{
	VIP_ERROR_DESCRIPTOR e = {(void *)nic, (void *)vi, (void *)cq, (VIP_DESCRIPTOR *)descriptor, op,
		(VIP_RESOURCE_CODE)resource, (VIP_ERROR_CODE)code};
	enum via_where was = via_where;

	via_where = VIA_OUTSIDE;
	((VIP_ERROR_HANDLER)handler)((void *)context, &e);
	via_where = was;
}

void via_call_vi(uintptr_t handler, uintptr_t context, uintptr_t nic, uintptr_t vi,
	uintptr_t descriptor)
{
	enum via_where was = via_where;

	via_where = VIA_OUTSIDE;
	((VIP_VI_CALLBACK)handler)((void *)context, (void *)nic, (void *)vi, (VIP_DESCRIPTOR *)descriptor);
	via_where = was;
}

void via_call_cq(uintptr_t handler, uintptr_t context, uintptr_t nic, uintptr_t vi, int recv)
{
	enum via_where was = via_where;

	via_where = VIA_OUTSIDE;
	((VIP_CQ_CALLBACK)handler)((void *)context, (void *)nic, (void *)vi, recv);
	via_where = was;
}
