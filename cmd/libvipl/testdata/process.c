/*
 * process: the library in processes as programs make them: with signal handlers
 * that know nothing of it, forks, threads and names of their own.
 *
 *	process TEST DEVICE
 */
#include "pair.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

/* Names that a program may well have, and the library must not take for its own. */
void sem_post(void) { abort(); }
void sem_wait(void) { abort(); }
void enter(void) { abort(); }
void start(void) { abort(); }
void look(void) { abort(); }
void run(void) { abort(); }
void forked(void) { abort(); }
void via_enter(void) { abort(); }
void crosscall2(void) { abort(); }
int started = 1, table = 1, environment = 1;

static struct side s;
static VIP_MEM_HANDLE handle;
static char *memory;
static VIP_VI_HANDLE left, right;

static void *accepts(void *unused)
{
	union address local, remote;
	VIP_VI_ATTRIBUTES theirs;
	VIP_CONN_HANDLE conn;

	(void)unused;
	side_local(&s, &local, "self");
	CHECK(VipConnectWait(s.nic, &local.a, PATIENCE, &remote.a, &theirs, &conn));
	CHECK(VipConnectAccept(conn, right));
	return NULL;
}

static void opens(const char *device)
{
	char *arguments[3];

	arguments[0] = arguments[1] = (char *)"server";
	arguments[2] = (char *)device;
	side_open(&s, 3, arguments);
	memory = side_memory(&s, 65536, &handle);
}

/* Two VIs of this process, connected with each other. */
static void connects(void)
{
	union address a;
	VIP_VI_ATTRIBUTES theirs;
	VIP_RETURN got;
	pthread_t thread;

	left = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	right = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	ASSERT(pthread_create(&thread, NULL, accepts, NULL) == 0);
	side_local(&s, &a, "self");
	do
		got = VipConnectRequest(left, &a.a, &a.a, PATIENCE, &theirs);
	while (got == VIP_NO_MATCH);
	CHECK(got);
	ASSERT(pthread_join(thread, NULL) == 0);
}

static void message(VIP_VI_HANDLE from, VIP_VI_HANDLE to, int value)
{
	VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)memory, *got;
	VIP_RETURN code;

	describe(d, memory + 4096, 64, handle);
	CHECK(VipPostRecv(to, d, handle));
	memcpy(memory + 8192, &value, sizeof value);
	describe(d + 1, memory + 8192, 64, handle);
	CHECK(VipPostSend(from, d + 1, handle));
	while ((code = VipRecvDone(to, &got)) == VIP_NOT_DONE)
		;
	CHECK(code);
	ASSERT(memcmp(memory + 4096, &value, sizeof value) == 0);
	while ((code = VipSendDone(from, &got)) == VIP_NOT_DONE)
		;
	CHECK(code);
}

static volatile sig_atomic_t alarms;

/* A handler that needs much of the stack that it happens to be on. */
static void on_alarm(int sig)
{
	volatile char room[50000];
	unsigned i;

	(void)sig;
	for (i = 0; i < sizeof room; i += 512)
		room[i] = 1;
	alarms++;
}

static void every(long us, void (*handler)(int))
{
	struct sigaction a;
	timer_t timer;
	struct itimerspec t;

	memset(&a, 0, sizeof a);
	a.sa_handler = handler; /* no SA_ONSTACK, no SA_RESTART */
	ASSERT(sigaction(SIGALRM, &a, NULL) == 0);
	memset(&t, 0, sizeof t);
	t.it_interval.tv_nsec = t.it_value.tv_nsec = us * 1000;
	ASSERT(timer_create(CLOCK_MONOTONIC, NULL, &timer) == 0);
	ASSERT(timer_settime(timer, 0, &t, NULL) == 0);
}

/* Alarms arrive in C, in Go and in system calls of both. */
static void test_signals(const char *device)
{
	VIP_DESCRIPTOR *d;
	VIP_CQ_HANDLE cq;
	VIP_VI_HANDLE vi;
	VIP_BOOLEAN recv;
	int i;

	opens(device);
	connects();
	every(50, on_alarm);
	for (i = 0; i < 20000 || alarms < 500; i++)
		message(i % 2 ? left : right, i % 2 ? right : left, i);
	EXPECT(VIP_DESCRIPTOR_ERROR, VipRecvDone(left, &d));
	CHECK(VipCreateCQ(s.nic, 1, &cq));
	EXPECT(VIP_TIMEOUT, VipCQWait(cq, 300, &vi, &recv));
	CHECK(VipCloseNic(s.nic));
}

/* Handlers of the program are unchanged; other signals still end the process. */
static char *page;
static volatile int faults;

static void on_fault(int sig)
{
	(void)sig;
	faults++;
	ASSERT(mprotect(page, 4096, PROT_READ | PROT_WRITE) == 0);
}

static void test_dispositions(const char *device)
{
	struct sigaction before[65], now, a;
	int i, pipes[2];

	signal(SIGUSR1, on_alarm);
	signal(SIGCHLD, SIG_IGN);
	for (i = 1; i < 65; i++)
		sigaction(i, NULL, &before[i]);
	opens(device);
	connects();
	for (i = 1; i < 65; i++) {
		if (sigaction(i, NULL, &now) != 0)
			continue;
		now.sa_flags &= ~0x04000000; /* SA_RESTORER, which libc adds to what it sets */
		before[i].sa_flags &= ~0x04000000;
		if (now.sa_handler != before[i].sa_handler || now.sa_flags != before[i].sa_flags) {
			fprintf(stderr, "signal %d: handler and flags were changed\n", i);
			exit(1);
		}
	}
	/* A program that shares memory by page faults. */
	memset(&a, 0, sizeof a);
	a.sa_handler = on_fault;
	sigaction(SIGSEGV, &a, NULL);
	page = (char *)mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	page[5] = 1;
	ASSERT(faults == 1);
	signal(SIGPIPE, SIG_IGN);
	ASSERT(pipe(pipes) == 0);
	close(pipes[0]);
	ASSERT(write(pipes[1], "x", 1) == -1);
	message(left, right, 1);
	signal(SIGPIPE, SIG_DFL);
	if (write(pipes[1], "x", 1) == -1) /* ends the program */
		fprintf(stderr, "SIGPIPE did nothing\n");
	exit(1);
}

/* fork and system before the first call, and what a child may not do after it. */
static void test_fork(const char *device)
{
	int status, i;

	ASSERT(system("true") == 0);
	for (i = 0; i < 2; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			opens(device);
			connects();
			for (i = 0; i < 100; i++)
				message(left, right, i);
			exit(0);
		}
		ASSERT(waitpid(pid, &status, 0) == pid && status == 0);
	}
	opens(device);
	connects();
	ASSERT(system("true") == 0);
	message(left, right, 1);
	if (fork() == 0) {
		VIP_NIC_HANDLE nic;
		VIP_DESCRIPTOR *d;

		EXPECT(VIP_ERROR_RESOURCE, VipOpenNic(device, &nic));
		EXPECT(VIP_ERROR_RESOURCE, VipRecvDone(left, &d));
		EXPECT(VIP_ERROR_RESOURCE, VipPostSend(left, (VIP_DESCRIPTOR *)memory, handle));
		EXPECT(VIP_ERROR_RESOURCE, VipCloseNic(s.nic));
		exit(0);
	}
	ASSERT(wait(&status) > 0 && status == 0);
	message(left, right, 2);
}

/* What happens while the first VipOpenNic starts the library. That calls sigfillset, which is the program's own here. */
static void (*meanwhile)(void);
static const char *the_device;

int sigfillset(sigset_t *set)
{
	void (*happens)(void) = meanwhile;

	memset(set, 0xff, sizeof *set);
	meanwhile = NULL;
	if (happens)
		happens();
	return 0;
}

static void opens_meanwhile(const char *device, void (*happens)(void))
{
	the_device = device;
	meanwhile = happens;
	alarm(PATIENCE / 1000);
	opens(device);
	alarm(0);
	connects();
	message(left, right, 1);
}

/* Another thread forks. */
static int forked_child;

static void *forks(void *unused)
{
	int status;

	(void)unused;
	if (fork() == 0) {
		VIP_NIC_HANDLE nic;

		alarm(PATIENCE / 1000);
		EXPECT(VIP_ERROR_RESOURCE, VipOpenNic(the_device, &nic));
		_exit(0);
	}
	ASSERT(wait(&status) > 0 && status == 0);
	forked_child = 1;
	return NULL;
}

static void fork_in_thread(void)
{
	pthread_t thread;

	ASSERT(pthread_create(&thread, NULL, forks, NULL) == 0);
	ASSERT(pthread_join(thread, NULL) == 0);
}

static void test_starting(const char *device)
{
	opens_meanwhile(device, fork_in_thread);
	ASSERT(forked_child);
}

/* A handler opens a NIC, too. */
static void on_signal_open(int sig)
{
	VIP_NIC_HANDLE nic;

	(void)sig;
	EXPECT(VIP_ERROR_RESOURCE, VipOpenNic(the_device, &nic));
	alarms++;
}

static void raises(void)
{
	raise(SIGUSR1);
}

static void test_reentered(const char *device)
{
	signal(SIGUSR1, on_signal_open);
	opens_meanwhile(device, raises);
	ASSERT(alarms == 1);
}

/* Another thread installs handlers. */
static const int handled_signals[] = {SIGPIPE, SIGSEGV, SIGURG, SIGUSR2, 64};
enum { HANDLED = sizeof handled_signals / sizeof *handled_signals };

static void *handles(void *unused)
{
	struct sigaction before;
	int i;

	(void)unused;
	for (i = 0; i < HANDLED; i++) {
		ASSERT(sigaction(handled_signals[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL);
		signal(handled_signals[i], on_alarm);
	}
	return NULL;
}

static void handle_in_thread(void)
{
	static int calls;
	pthread_t thread;

	if (calls++ == 0) { /* when Go has begun, the next time */
		meanwhile = handle_in_thread;
		return;
	}
	ASSERT(pthread_create(&thread, NULL, handles, NULL) == 0);
	ASSERT(pthread_join(thread, NULL) == 0);
	alarms++;
}

static void test_handles(const char *device)
{
	struct sigaction now;
	int i;

	opens_meanwhile(device, handle_in_thread);
	ASSERT(alarms == 1);
	for (i = 0; i < HANDLED; i++)
		ASSERT(sigaction(handled_signals[i], NULL, &now) == 0 && now.sa_handler == on_alarm);
}

/* Other threads begin. None of them gets the timer slack of the runtime's monitor. */
static pthread_t begun_threads[2];

static void *has_slack(void *slack)
{
	while (!alarms)
		usleep(1000);
	ASSERT(prctl(PR_GET_TIMERSLACK) == *(int *)slack);
	return NULL;
}

static int slack;

static void begin_threads(void)
{
	int i;

	for (i = 0; i < 2; i++)
		ASSERT(pthread_create(&begun_threads[i], NULL, has_slack, &slack) == 0);
}

static void test_slack(const char *device)
{
	char line[64];
	int i, relaxed = 0;
	FILE *f;

	slack = prctl(PR_GET_TIMERSLACK);
	opens_meanwhile(device, begin_threads);
	ASSERT(prctl(PR_GET_TIMERSLACK) == slack);
	f = popen("for t in /proc/$PPID/task/*; do cat /proc/${t##*/}/timerslack_ns; done", "r");
	ASSERT(f != NULL);
	while (fgets(line, sizeof line, f))
		relaxed += atoi(line) == 10000000;
	pclose(f);
	alarms = 1;
	for (i = 0; i < 2; i++)
		ASSERT(pthread_join(begun_threads[i], NULL) == 0);
	ASSERT(relaxed > 0); /* a thread that the monitor starts inherits it */
}

/* A thread is cancelled while it starts the library. It ends at the program's next cancellation point. */
static void *opens_cancelled(void *unused)
{
	VIP_NIC_HANDLE nic;

	(void)unused;
	ASSERT(pthread_cancel(pthread_self()) == 0);
	CHECK(VipOpenNic(the_device, &nic));
	CHECK(VipCloseNic(nic));
	alarms++;
	pthread_testcancel();
	return NULL;
}

static void test_cancelled(const char *device)
{
	pthread_t thread;
	void *how;

	the_device = device;
	ASSERT(pthread_create(&thread, NULL, opens_cancelled, NULL) == 0);
	ASSERT(pthread_join(thread, &how) == 0);
	ASSERT(how == PTHREAD_CANCELED && alarms == 1);
}

/* exit in a handler, wherever the program was; with another thread asleep. */
static void on_alarm_exit(int sig)
{
	(void)sig;
	exit(7);
}

static void *waits(void *unused)
{
	VIP_CQ_HANDLE cq;
	VIP_VI_HANDLE vi;
	VIP_BOOLEAN recv;

	(void)unused;
	CHECK(VipCreateCQ(s.nic, 1, &cq));
	EXPECT(VIP_SUCCESS, VipCQWait(cq, VIP_INFINITE, &vi, &recv)); /* never */
	return NULL;
}

static void test_exit(const char *device)
{
	pthread_t thread;
	int i;

	opens(device);
	connects();
	ASSERT(pthread_create(&thread, NULL, waits, NULL) == 0);
	every(20000, on_alarm_exit);
	for (i = 0;; i++)
		message(left, right, i);
}

/* SIGINT without a handler ends a program that is asleep in the library. */
static void test_interrupt(const char *device)
{
	int status, pipes[2];
	char c;
	pid_t pid;

	ASSERT(pipe(pipes) == 0);
	pid = fork();
	if (pid == 0) {
		opens(device);
		ASSERT(write(pipes[1], "x", 1) == 1);
		waits(NULL);
	}
	ASSERT(read(pipes[0], &c, 1) == 1);
	usleep(300000); /* until it sleeps */
	kill(pid, SIGINT);
	ASSERT(waitpid(pid, &status, 0) == pid);
	ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
}

/* A handler of errors that gives up, as handlers do: not a thread of the program's ends it. */
static void on_error_exit(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e)
{
	ASSERT(context == &s && e->ErrorCode == VIP_ERROR_CONN_LOST && e->ViHandle == right);
	exit(5);
}

static void test_handler(const char *device)
{
	opens(device);
	connects();
	message(left, right, 1);
	CHECK(VipErrorCallback(s.nic, &s, on_error_exit));
	CHECK(VipDisconnect(left));
	waits(NULL);
}

/*
 * A library above this one, and destructors in C++, clean up at exit what they have made:
 * first what was set up last, so that these run when the library has said farewell.
 */
static int cleaned;

static void cleans_up(void)
{
	VIP_DESCRIPTOR *d;
	VIP_VI_STATE state;

	CHECK(VipQueryVi(left, &state, NULL, NULL, NULL));
	CHECK(VipDisconnect(left));
	CHECK(VipDisconnect(right));
	CHECK(VipQueryVi(right, &state, NULL, NULL, NULL));
	ASSERT(state == VIP_STATE_IDLE);
	while (VipRecvDone(left, &d), d != NULL)
		;
	while (VipRecvDone(right, &d), d != NULL)
		ASSERT(d->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR);
	CHECK(VipDestroyVi(left));
	CHECK(VipDestroyVi(right));
	CHECK(VipDeregisterMem(s.nic, memory, handle));
	CHECK(VipDestroyPtag(s.nic, s.ptag));
	CHECK(VipCloseNic(s.nic));
	cleaned = 1;
}

static void was_cleaned(void)
{
	if (!cleaned)
		_exit(3);
}

static void test_atexit(const char *device)
{
	VIP_DESCRIPTOR *d;

	ASSERT(atexit(was_cleaned) == 0 && atexit(cleans_up) == 0);
	opens(device);
	connects();
	message(left, right, 1);
	d = (VIP_DESCRIPTOR *)memory;
	describe(d, memory + 4096, 64, handle);
	CHECK(VipPostRecv(right, d, handle));
}

/* Threads come and go; each may call. */
static void *one_message(void *unused)
{
	(void)unused;
	message(left, right, 3);
	return NULL;
}

static void test_threads(const char *device)
{
	int i;

	opens(device);
	connects();
	for (i = 0; i < 200; i++) {
		pthread_t thread;

		ASSERT(pthread_create(&thread, NULL, one_message, NULL) == 0);
		ASSERT(pthread_join(thread, NULL) == 0);
	}
	for (i = 0; i < 10; i++) { /* a NIC again and again */
		CHECK(VipCloseNic(s.nic));
		opens(device);
		connects();
		message(left, right, i);
	}
}

/* A mask, and the lack of a stack for signals, stay as they were in a thread that calls. */
static void *first_call(void *unused)
{
	VIP_NIC_ATTRIBUTES attributes;
	sigset_t before, now;
	stack_t stack;
	int i;

	(void)unused;
	ASSERT(pthread_sigmask(SIG_BLOCK, NULL, &before) == 0);
	CHECK(VipQueryNic(s.nic, &attributes));
	ASSERT(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0);
	for (i = 1; i < 65; i++)
		ASSERT(sigismember(&now, i) == sigismember(&before, i));
	ASSERT(sigaltstack(NULL, &stack) == 0 && (stack.ss_flags & SS_DISABLE));
	return NULL;
}

/*
 * A program that blocks signals in all its threads, to take them with sigwait, gets
 * them: no thread of the library's does, nor one that calls.
 */
static void test_masks(const char *device)
{
	const int kinds[] = {SIGCHLD, SIGPROF, SIGRTMIN, SIGTERM, SIGUSR1};
	enum { KINDS = sizeof kinds / sizeof *kinds };
	static const struct timespec long_enough = {PATIENCE / 1000, 0};
	sigset_t all;
	pthread_t thread;
	char line[256];
	int i, tasks = 0;
	FILE *f;

	sigemptyset(&all);
	for (i = 0; i < KINDS; i++)
		sigaddset(&all, kinds[i]);
	ASSERT(pthread_sigmask(SIG_BLOCK, &all, NULL) == 0);
	opens(device);
	connects();
	for (i = 0; i < KINDS; i++)
		ASSERT(kill(getpid(), kinds[i]) == 0);
	first_call(NULL);
	ASSERT(pthread_create(&thread, NULL, first_call, NULL) == 0);
	ASSERT(pthread_join(thread, NULL) == 0);
	message(left, right, 1);
	f = popen("cat /proc/$PPID/task/*/status", "r");
	ASSERT(f != NULL);
	while (fgets(line, sizeof line, f)) {
		unsigned long long blocked;

		if (sscanf(line, "SigBlk: %llx", &blocked) != 1)
			continue;
		tasks++;
		for (i = 0; i < KINDS; i++)
			if (!(blocked >> (kinds[i] - 1) & 1)) {
				fprintf(stderr, "a thread does not block signal %d: %s", kinds[i], line);
				exit(1);
			}
	}
	pclose(f);
	ASSERT(tasks > 2);
	for (i = 0; i < KINDS; i++) {
		int got = sigtimedwait(&all, NULL, &long_enough);

		ASSERT(got > 0);
		sigdelset(&all, got);
	}
}

/* Where no frame has room for data, a connect fails, and the acceptor can tell the other side. */
static void *is_rejected(void *unused)
{
	union address a;
	VIP_RETURN got;

	(void)unused;
	side_local(&s, &a, "self");
	do
		got = VipConnectRequest(left, &a.a, &a.a, VIP_INFINITE, NULL);
	while (got == VIP_NO_MATCH);
	EXPECT(VIP_REJECT, got);
	return NULL;
}

static void test_narrow(const char *device)
{
	union address local, remote;
	VIP_CONN_HANDLE conn;
	pthread_t thread;

	opens(device);
	left = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	right = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	ASSERT(pthread_create(&thread, NULL, is_rejected, NULL) == 0);
	side_local(&s, &local, "self");
	CHECK(VipConnectWait(s.nic, &local.a, PATIENCE, &remote.a, NULL, &conn));
	EXPECT(VIP_ERROR_RESOURCE, VipConnectAccept(conn, right));
	EXPECT(VIP_ERROR_RESOURCE, VipConnectAccept(conn, right));
	CHECK(VipConnectReject(conn));
	ASSERT(pthread_join(thread, NULL) == 0);
	CHECK(VipDestroyVi(right));
	CHECK(VipCloseNic(s.nic));
}

/* A request that the program has not answered when it closes the NIC is rejected, also if another handle stays open. */
static void test_unanswered(const char *device)
{
	union address local, remote;
	VIP_CONN_HANDLE conn;
	VIP_NIC_HANDLE other;
	pthread_t thread;

	opens(device);
	left = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	CHECK(VipOpenNic(device, &other));
	ASSERT(pthread_create(&thread, NULL, is_rejected, NULL) == 0);
	side_local(&s, &local, "self");
	CHECK(VipConnectWait(other, &local.a, PATIENCE, &remote.a, NULL, &conn));
	CHECK(VipCloseNic(other));
	ASSERT(pthread_join(thread, NULL) == 0);
	EXPECT(VIP_INVALID_PARAMETER, VipConnectReject(conn));
	CHECK(VipCloseNic(s.nic));
}

/* The interface gets its address when the NIC is open. */
static void test_unaddressed(const char *device)
{
	union address local, remote;
	pthread_t thread;
	VIP_RETURN got;

	opens(device);
	ASSERT(s.attributes.NicAddressLen == 4 && memcmp(s.attributes.LocalNicAddress, "\0\0\0", 4) == 0);
	ASSERT(fclose(fopen(getenv("OPEN"), "w")) == 0);
	left = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	right = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	ASSERT(pthread_create(&thread, NULL, accepts, NULL) == 0);
	side_local(&s, &local, "requester");
	side_remote(getenv("ADDRESS"), &remote, "self");
	while ((got = VipConnectRequest(left, &local.a, &remote.a, PATIENCE, NULL)) == VIP_NO_MATCH || got == VIP_NOT_REACHABLE)
		usleep(1000);
	CHECK(got);
	ASSERT(pthread_join(thread, NULL) == 0);
	message(left, right, 1);
}

/* Handlers that wait behind one that runs are not called when the NIC is closed. */
static pthread_mutex_t handling = PTHREAD_MUTEX_INITIALIZER;
static volatile int begun, closed;

static void on_error_hold(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e)
{
	(void)context;
	(void)e;
	ASSERT(!closed);
	begun = 1;
	pthread_mutex_lock(&handling);
	pthread_mutex_unlock(&handling);
}

static void test_closed(const char *device)
{
	int i;

	opens(device);
	left = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	CHECK(VipErrorCallback(s.nic, NULL, on_error_hold));
	pthread_mutex_lock(&handling);
	for (i = 0; i < 3; i++)
		EXPECT(VIP_INVALID_PARAMETER, VipPostRecv(left, NULL, handle));
	while (!begun)
		usleep(1000);
	CHECK(VipCloseNic(s.nic));
	closed = 1;
	pthread_mutex_unlock(&handling);
	usleep(100000); /* until another one would have begun */
}

/* A handler that is called late gets the handle of its VI, also if the program has destroyed the VI since. */
static volatile int handled;

static void on_error_of_left(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e)
{
	(void)context;
	pthread_mutex_lock(&handling);
	pthread_mutex_unlock(&handling);
	ASSERT(e->ViHandle == left);
	handled++;
}

static void test_destroyed(const char *device)
{
	int i;

	opens(device);
	left = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	CHECK(VipErrorCallback(s.nic, NULL, on_error_of_left));
	pthread_mutex_lock(&handling);
	for (i = 0; i < 2; i++)
		EXPECT(VIP_INVALID_PARAMETER, VipPostRecv(left, NULL, handle));
	CHECK(VipDestroyVi(left));
	pthread_mutex_unlock(&handling);
	while (handled < 2)
		usleep(1000);
	CHECK(VipCloseNic(s.nic));
}

/* Nobody reads the standard error of a program that ignores SIGPIPE, or handles it. The library writes there all the same. */
static void test_unread(const char *device)
{
	union address a;
	int pipes[2], i;

	opens(device);
	left = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	side_local(&s, &a, "none");
	ASSERT(pipe(pipes) == 0 && close(pipes[0]) == 0 && dup2(pipes[1], 2) == 2);
	for (i = 0; i < 2; i++) {
		signal(SIGPIPE, i == 0 ? SIG_IGN : on_alarm);
		setenv("VIA_VERBOSE", "0", 1);
		EXPECT(VIP_INVALID_PARAMETER, VipPostRecv(left, NULL, handle)); /* an asynchronous error, too */
		usleep(100000); /* until it is logged */
		setenv("VIA_VERBOSE", "1", 1);
		EXPECT(VIP_NO_MATCH, VipConnectRequest(left, &a.a, &a.a, PATIENCE, NULL));
	}
	ASSERT(alarms > 0);
	CHECK(VipCloseNic(s.nic));
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(const char *device);
	} tests[] = {
		{"signals", test_signals}, {"dispositions", test_dispositions}, {"fork", test_fork},
		{"exit", test_exit}, {"interrupt", test_interrupt}, {"threads", test_threads},
		{"handler", test_handler}, {"atexit", test_atexit}, {"masks", test_masks},
		{"narrow", test_narrow}, {"closed", test_closed}, {"starting", test_starting},
		{"destroyed", test_destroyed}, {"unanswered", test_unanswered},
		{"unread", test_unread}, {"reentered", test_reentered}, {"cancelled", test_cancelled}, {"handles", test_handles},
		{"slack", test_slack}, {"unaddressed", test_unaddressed},
	};
	unsigned i;

	if (argc != 3)
		side_usage(argv[0]);
	for (i = 0; i < sizeof tests / sizeof *tests; i++)
		if (strcmp(argv[1], tests[i].name) == 0) {
			tests[i].run(argv[2]);
			return 0;
		}
	side_usage(argv[0]);
	return 2;
}
