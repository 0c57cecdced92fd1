/*
 * The peers of an FI_EP_RDM endpoint, and its links to them. The endpoint listens at its address as a listener of the
 * program does. The first operation for a peer starts a thread that connects; operations wait until the link is up.
 * The peer uses the same link for its own.
 *
 * If two endpoints request each other at a time, the request of the one with the lower address is accepted, and the other
 * is rejected as crossed. A rejected endpoint waits for the other request, and then tries again.
 *
 * A link that is lost fails the operations that use it. The next operation connects again, maybe with a new endpoint
 * at the same address: the hello tells its instance.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

#include "match.h"

struct vx_greeting { /* the data of hello, answer and rejection */
	uint64_t instance;
	uint32_t crossed, reserved;
};

static int greet(struct vx_link *link, enum vx_type type, int crossed)
{
	struct vx_rdm *rdm = link->ep->rdm;
	struct vx_greeting g = {.instance = rdm->instance, .crossed = (uint32_t)crossed};

	return vx_link_greet(link, type, &rdm->pep.name, &g, sizeof g);
}

static struct vx_peer **bucket(struct vx_rdm *rdm, const union vx_addr *name)
{
	const unsigned char *p = name->sa.sa_family == AF_INET6 ? name->in6.sin6_addr.s6_addr : (const unsigned char *)&name->in.sin_addr;
	unsigned i, n = name->sa.sa_family == AF_INET6 ? 16 : 4, h = vx_addr_port(name);

	for (i = 0; i < n; i++)
		h = h * 31 + p[i];
	return &rdm->peers[h % (sizeof rdm->peers / sizeof *rdm->peers)];
}

static struct vx_peer *find(struct vx_rdm *rdm, const union vx_addr *name)
{
	struct vx_peer *peer;

	for (peer = *bucket(rdm, name); peer && vx_addr_compare(&peer->name, name) != 0; peer = peer->next)
		;
	return peer;
}

/* Remembers the peer of an fi_addr_t. */
static int index_peer(struct vx_rdm *rdm, struct vx_peer *peer, fi_addr_t addr)
{
	if (addr >= rdm->by_addr_size) {
		size_t size = 2 * (size_t)addr + 16;
		struct vx_peer **all = realloc(rdm->by_addr, size * sizeof *all);

		if (!all)
			return -FI_ENOMEM;
		memset(all + rdm->by_addr_size, 0, (size - rdm->by_addr_size) * sizeof *all);
		rdm->by_addr = all;
		rdm->by_addr_size = size;
	}
	rdm->by_addr[addr] = peer;
	peer->addr = addr;
	return 0;
}

static struct vx_peer *find_or_make(struct vx_rdm *rdm, const union vx_addr *name)
{
	struct vx_peer *peer = find(rdm, name), **at = bucket(rdm, name);
	fi_addr_t addr;

	if (peer || !(peer = calloc(1, sizeof *peer)))
		return peer;
	vx_tx_init(&peer->tx, rdm->ep);
	peer->name = *name;
	peer->addr = FI_ADDR_NOTAVAIL;
	peer->next = *at;
	*at = peer;
	addr = vx_av_find(rdm->av, name);
	if (addr != FI_ADDR_NOTAVAIL)
		index_peer(rdm, peer, addr);
	return peer;
}

void vx_rdm_collect(struct vx_rdm *rdm, struct vx_peer *peer)
{
	struct vx_peer **at = bucket(rdm, &peer->name);

	if (peer->addr != FI_ADDR_NOTAVAIL || peer->links || peer->connecting || peer->unexpected || !vx_tx_idle(&peer->tx))
		return;
	while (*at != peer)
		at = &(*at)->next;
	*at = peer->next;
	free(peer);
}

void vx_rdm_inserted(struct vx_rdm *rdm, fi_addr_t addr, const union vx_addr *name)
{
	struct vx_peer *peer = find(rdm, name);

	if (peer)
		index_peer(rdm, peer, addr);
}

void vx_rdm_removed(struct vx_rdm *rdm, fi_addr_t addr)
{
	struct vx_peer *peer = addr < rdm->by_addr_size ? rdm->by_addr[addr] : NULL;

	if (!peer)
		return;
	rdm->by_addr[addr] = NULL;
	peer->addr = FI_ADDR_NOTAVAIL;
	vx_rdm_collect(rdm, peer);
}

static void attach(struct vx_link *link, struct vx_rdm *rdm, struct vx_peer *peer)
{
	link->ep = rdm->ep;
	link->tx = &peer->tx;
	link->of = peer;
	link->rdm = 1;
	peer->links++;
}

/* Closes a link, without the lock, after what was sent has arrived. */
static void close_link(struct vx_link *link)
{
	struct vx_nic *nic = link->nic;
	struct vx_peer *peer = link->of;
	struct vx_rdm *rdm = link->ep->rdm;

	pthread_mutex_lock(&nic->lock);
	vx_link_set(link, VX_DOWN);
	pthread_mutex_unlock(&nic->lock);
	VipDisconnect(link->vi);
	pthread_mutex_lock(&nic->lock);
	vx_link_reap(link);
	pthread_mutex_unlock(&nic->lock);
	vx_link_close(link);
	pthread_mutex_lock(&nic->lock);
	peer->links--;
	vx_rdm_collect(rdm, peer);
	pthread_mutex_unlock(&nic->lock);
}

/* The listener's thread closes it. */
static void retire(struct vx_rdm *rdm, struct vx_link *link)
{
	vx_link_set(link, VX_DOWN);
	vx_match_cut(link);
	vx_match_lost(rdm, link);
	link->sibling = rdm->dead;
	rdm->dead = link;
}

void vx_rdm_reap(struct vx_rdm *rdm)
{
	struct vx_link *link;

	for (;;) {
		pthread_mutex_lock(&rdm->ep->nic->lock);
		link = rdm->dead;
		if (link)
			rdm->dead = link->sibling;
		pthread_mutex_unlock(&rdm->ep->nic->lock);
		if (!link)
			return;
		close_link(link);
	}
}

static void up(struct vx_peer *peer, struct vx_link *link, uint64_t instance, int theirs)
{
	struct vx_rdm *rdm = peer->tx.ep->rdm;

	vx_link_set(link, VX_UP);
	peer->tx.link = link;
	peer->tx.full = link->full;
	peer->instance = instance;
	peer->theirs = theirs;
	peer->reached = 1;
	peer->error = 0;
	pthread_cond_broadcast(&rdm->changed);
	vx_tx_pump(&peer->tx);
}

/* The link of a peer is gone, and what was under way on it. */
static void drop(struct vx_peer *peer)
{
	struct vx_rdm *rdm = peer->tx.ep->rdm;
	struct vx_link *link = peer->tx.link;

	peer->tx.link = NULL;
	vx_tx_flush(&peer->tx, FI_ECONNRESET);
	retire(rdm, link);
}

/* Both sides request each other: whether ours is the one that counts. */
static int we_win(const struct vx_rdm *rdm, const struct vx_peer *peer)
{
	return vx_addr_compare(&rdm->pep.name, &peer->name) < 0;
}

/* A peer requests a connection. */
void vx_rdm_hello(struct vx_link *link, const void *data, size_t length)
{
	struct vx_rdm *rdm = link->pep ? link->pep->rdm : NULL;
	struct vx_greeting g;
	struct vx_peer *peer;
	int own;

	if (!rdm || rdm->ep->closing || length < sizeof g || !vx_addr_len(&link->peer) || !vx_pep_honest(link) ||
		!(peer = find_or_make(rdm, &link->peer))) {
		vx_link_set(link, VX_DOWN); /* the listener closes it */
		return;
	}
	memcpy(&g, data, sizeof g);
	own = g.instance == rdm->instance && vx_addr_compare(&link->peer, &rdm->pep.name) == 0; /* a peer knows the instance, too */
	if (peer->tx.link)
		vx_link_receive(peer->tx.link); /* what the peer sent before, and the end of that link */
	vx_pep_forget(link);
	attach(link, rdm, peer);
	if (!own && ((peer->tx.link && peer->instance == g.instance && !peer->theirs) ||
		(!peer->tx.link && peer->trying && we_win(rdm, peer)))) {
		greet(link, VX_REJECT, 1);
		retire(rdm, link);
		return;
	}
	if (greet(link, VX_ACCEPT, 0)) {
		retire(rdm, link);
		return;
	}
	if (own) { /* this end receives; the one that requests sends */
		vx_link_set(link, VX_UP);
		return;
	}
	if (peer->tx.link)
		drop(peer);
	up(peer, link, g.instance, 1);
}

void vx_rdm_answer(struct vx_link *link, int accepted, const void *data, size_t length)
{
	struct vx_peer *peer = link->of;
	struct vx_greeting g = {0};

	if (length >= sizeof g)
		memcpy(&g, data, sizeof g);
	if (accepted && peer->trying == link && !peer->tx.link) {
		peer->trying = NULL; /* the thread sees that it has none */
		up(peer, link, g.instance, 0);
		return;
	}
	peer->crossed = !accepted && g.crossed;
	vx_link_set(link, VX_DOWN);
	pthread_cond_broadcast(&peer->tx.ep->rdm->changed);
}

void vx_rdm_lost(struct vx_link *link)
{
	struct vx_peer *peer = link->of;

	if (!peer)
		return; /* the listener closes it */
	if (peer->trying == link)
		pthread_cond_broadcast(&peer->tx.ep->rdm->changed); /* its thread does */
	else if (peer->tx.link == link)
		drop(peer);
	else
		retire(peer->tx.ep->rdm, link);
}

/* Waits under the lock for a change, or at most some milliseconds. */
static void wait_change(struct vx_rdm *rdm, int ms)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_nsec += (long)ms * 1000000;
	t.tv_sec += t.tv_nsec / 1000000000;
	t.tv_nsec %= 1000000000;
	pthread_cond_timedwait(&rdm->changed, &rdm->ep->nic->lock, &t);
}

/*
 * One attempt to connect, under the lock, which it gives up at times. An errno, or 0: the peer has a link, or its
 * own request is expected.
 */
static int attempt(struct vx_peer *peer, int64_t end)
{
	struct vx_rdm *rdm = peer->tx.ep->rdm;
	struct vx_ep *ep = rdm->ep;
	union net_address local, remote;
	struct vx_link *link;
	VIP_RETURN code;
	int64_t ms;
	int error = -vx_link_open(ep->nic, &link);

	if (error)
		return error;
	attach(link, rdm, peer);
	vx_link_set(link, VX_REQUESTING);
	peer->trying = link;
	peer->crossed = 0;
	vx_cm_address(&local, &rdm->pep.name, 0);
	vx_cm_address(&remote, &peer->name, 1);
	ms = (end - vx_now()) / 1000000;
	pthread_mutex_unlock(&ep->nic->lock);
	code = VipConnectRequest(link->vi, &local.a, &remote.a, (VIP_ULONG)(ms > 1 ? ms : 1), NULL);
	pthread_mutex_lock(&ep->nic->lock);
	error = vx_errno(code);
	if (!error && !ep->closing && !peer->tx.link) {
		vx_link_set(link, VX_GREETED);
		error = -greet(link, VX_HELLO, 0);
		vx_link_receive(link);
		vx_link_pump(link);
		while (!error && peer->trying == link && link->state == VX_GREETED && !peer->tx.link && !ep->closing)
			if (vx_now() < end)
				wait_change(rdm, 100);
			else
				error = FI_ETIMEDOUT;
	}
	if (peer->trying != link)
		return 0; /* it is up, or was */
	peer->trying = NULL;
	if (!error && link->state == VX_DOWN && !peer->crossed)
		error = FI_ECONNREFUSED;
	pthread_mutex_unlock(&ep->nic->lock);
	close_link(link);
	pthread_mutex_lock(&ep->nic->lock);
	return error;
}

/* Operations wait for a link, or it is the first that the thread makes: fi_inject asks for one, and does not wait. */
static int is_wanted(const struct vx_peer *peer)
{
	return !peer->tx.link && (!peer->reached || peer->tx.waiting.first);
}

static void *connect_thread(void *arg)
{
	enum { CROSSED = 50 }; /* ms: the time between attempts, for the peer's request */
	struct vx_peer *peer = arg;
	struct vx_rdm *rdm = peer->tx.ep->rdm;
	struct vx_nic *nic = rdm->ep->nic;
	int64_t end = vx_now() + (int64_t)vx_connect_timeout * 1000000;
	int error = 0;

	pthread_mutex_lock(&nic->lock);
	while (is_wanted(peer) && !rdm->ep->closing && !error) {
		int64_t next;

		error = attempt(peer, end);
		next = vx_now() + CROSSED * 1000000;
		while (!error && is_wanted(peer) && !rdm->ep->closing && vx_now() < next)
			wait_change(rdm, CROSSED);
		if (!error && is_wanted(peer) && vx_now() > end)
			error = FI_ETIMEDOUT;
	}
	if (error && is_wanted(peer)) {
		VX_INFO(FI_LOG_EP_CTRL, "no connection: %s\n", fi_strerror(error));
		if (!peer->tx.waiting.first)
			peer->error = error;
		vx_tx_flush(&peer->tx, error);
	}
	peer->connecting = 0;
	vx_rdm_collect(rdm, peer);
	rdm->connecting--;
	pthread_cond_broadcast(&rdm->changed);
	pthread_mutex_unlock(&nic->lock);
	return NULL;
}

static int connect_peer(struct vx_peer *peer)
{
	struct vx_rdm *rdm = peer->tx.ep->rdm;
	pthread_t thread;
	int error = peer->error;

	peer->error = 0;
	if (error)
		return -error; /* of the last one, which nothing has reported */
	if (peer->connecting)
		return 0;
	error = vx_cm_spawn(&thread, connect_thread, peer);
	if (error)
		return error;
	pthread_detach(thread);
	peer->reached = 0;
	peer->connecting = 1;
	rdm->connecting++;
	return 0;
}

static struct vx_peer *of_addr(struct vx_rdm *rdm, fi_addr_t to)
{
	const union vx_addr *name = vx_av_name(rdm->av, to);
	struct vx_peer *peer = name ? find_or_make(rdm, name) : NULL;

	return peer && !index_peer(rdm, peer, to) ? peer : NULL;
}

struct vx_tx *vx_rdm_to(struct vx_ep *ep, fi_addr_t to, ssize_t *error)
{
	struct vx_rdm *rdm = ep->rdm;
	struct vx_peer *peer = to < rdm->by_addr_size ? rdm->by_addr[to] : NULL;

	*error = -FI_EOPBADSTATE;
	if (!ep->enabled)
		return NULL;
	*error = -FI_EADDRNOTAVAIL;
	if (!peer && !(peer = of_addr(rdm, to)))
		return NULL;
	*error = peer->tx.link ? 0 : connect_peer(peer);
	return *error ? NULL : &peer->tx;
}

ssize_t vx_rdm_cancel(struct vx_ep *ep, void *context)
{
	struct vx_rdm *rdm = ep->rdm;
	ssize_t result = vx_match_cancel(rdm, context);
	struct vx_peer *peer;
	size_t i;

	for (i = 0; i < sizeof rdm->peers / sizeof *rdm->peers; i++)
		for (peer = rdm->peers[i]; peer && result; peer = peer->next)
			result = vx_tx_cancel(&peer->tx, context);
	return result;
}

int vx_rdm_bind(struct vx_ep *ep, struct fid *fid)
{
	struct vx_av *av = VX_OUTER(fid, struct vx_av, fid.fid);

	if (!ep->rdm || ep->rdm->av || av->domain->nic != ep->nic)
		return -FI_EINVAL;
	ep->rdm->av = av;
	ep->rdm->next = av->endpoints;
	av->endpoints = ep->rdm;
	av->refs++;
	return 0;
}

int vx_rdm_enable(struct vx_ep *ep)
{
	struct vx_rdm *rdm = ep->rdm;
	int error = rdm->av ? vx_ep_enable(ep) : -FI_ENOAV;

	if (error)
		return error;
	/* The listener opens the interface once more, which has it already: so it needs the lock. */
	pthread_mutex_unlock(&ep->nic->lock);
	error = vx_pep_listen(&rdm->pep, ep->nic->name);
	pthread_mutex_lock(&ep->nic->lock);
	if (error)
		ep->enabled = 0;
	return error;
}

int vx_rdm_open(struct vx_ep *ep)
{
	struct vx_rdm *rdm = calloc(1, sizeof *rdm);
	pthread_condattr_t monotonic;
	int error;

	if (!rdm)
		return -FI_ENOMEM;
	ep->rdm = rdm;
	rdm->ep = ep;
	vx_pep_init(&rdm->pep);
	rdm->pep.rdm = rdm;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&rdm->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	rdm->pep.name = ep->name;
	error = vx_match_open(ep);
	if (!error && getrandom(&rdm->instance, sizeof rdm->instance, 0) != sizeof rdm->instance)
		error = -errno;
	return error;
}

/* The end. After it no operation is left, and no thread looks at the endpoint. */
void vx_rdm_close(struct vx_ep *ep)
{
	struct vx_rdm *rdm = ep->rdm;
	struct vx_peer *peer;
	size_t i;

	pthread_mutex_lock(&ep->nic->lock);
	ep->closing = 1;
	pthread_cond_broadcast(&rdm->changed);
	while (rdm->connecting)
		pthread_cond_wait(&rdm->changed, &ep->nic->lock);
	pthread_mutex_unlock(&ep->nic->lock);
	vx_pep_stop(&rdm->pep);
	pthread_mutex_lock(&ep->nic->lock);
	for (i = 0; i < sizeof rdm->peers / sizeof *rdm->peers; i++)
		for (peer = rdm->peers[i]; peer; peer = peer->next) {
			struct vx_link *link = peer->tx.link;

			peer->tx.link = NULL;
			if (link)
				retire(rdm, link);
			vx_tx_flush(&peer->tx, FI_ECANCELED);
			peer->addr = 0; /* it stays until it is freed below */
		}
	for (i = 0; i < sizeof ep->nic->links / sizeof *ep->nic->links; i++) {
		struct vx_link *link;

		for (link = ep->nic->links[i]; link; link = link->next)
			if (link->ep == ep && link->state != VX_DOWN)
				retire(rdm, link); /* the end of the endpoint's link with itself */
	}
	pthread_mutex_unlock(&ep->nic->lock);
	vx_rdm_reap(rdm);
	pthread_mutex_lock(&ep->nic->lock);
	if (rdm->av) {
		struct vx_rdm **at = &rdm->av->endpoints;

		while (*at != rdm)
			at = &(*at)->next;
		*at = rdm->next;
		rdm->av->refs--;
	}
	pthread_mutex_unlock(&ep->nic->lock);
}

void vx_rdm_free(struct vx_ep *ep)
{
	struct vx_rdm *rdm = ep->rdm;
	size_t i;

	if (!rdm)
		return;
	for (i = 0; i < sizeof rdm->peers / sizeof *rdm->peers; i++)
		while (rdm->peers[i]) {
			struct vx_peer *peer = rdm->peers[i];

			rdm->peers[i] = peer->next;
			free(peer);
		}
	vx_match_close(rdm);
	free(rdm->by_addr);
	pthread_cond_destroy(&rdm->changed);
	free(rdm);
}

static int rdm_getname(fid_t fid, void *addr, size_t *length)
{
	struct vx_pep *pep = &VX_OUTER(fid, struct vx_ep, fid.fid)->rdm->pep;
	int error = vx_pep_reserve(pep);

	return error ? error : vx_addr_copy(&pep->name, addr, length);
}

static int rdm_setname(fid_t fid, void *addr, size_t length)
{
	struct vx_pep *pep = &VX_OUTER(fid, struct vx_ep, fid.fid)->rdm->pep;
	union vx_addr a;

	if (vx_addr_get(&a, addr, length))
		return -FI_EINVAL;
	if (a.sa.sa_family != pep->name.sa.sa_family || (!vx_addr_any(&a) && !vx_addr_same_host(&a, &pep->name)))
		return -FI_EADDRNOTAVAIL;
	if (pep->port >= 0)
		return -FI_EOPBADSTATE;
	vx_addr_set_port(&pep->name, vx_addr_port(&a));
	return 0;
}

static int no_getpeer(struct fid_ep *ep, void *addr, size_t *length)
{
	(void)ep, (void)addr, (void)length;
	return -FI_ENOSYS;
}

static int no_connect(struct fid_ep *ep, const void *addr, const void *param, size_t length)
{
	(void)ep, (void)addr, (void)param, (void)length;
	return -FI_ENOSYS;
}

static int no_listen(struct fid_pep *pep)
{
	(void)pep;
	return -FI_ENOSYS;
}

static int no_accept(struct fid_ep *ep, const void *param, size_t length)
{
	(void)ep, (void)param, (void)length;
	return -FI_ENOSYS;
}

static int no_reject(struct fid_pep *pep, fid_t handle, const void *param, size_t length)
{
	(void)pep, (void)handle, (void)param, (void)length;
	return -FI_ENOSYS;
}

static int no_shutdown(struct fid_ep *ep, uint64_t flags)
{
	(void)ep, (void)flags;
	return -FI_ENOSYS;
}

struct fi_ops_cm vx_rdm_cm_ops = {
	.size = sizeof vx_rdm_cm_ops,
	.setname = rdm_setname,
	.getname = rdm_getname,
	.getpeer = no_getpeer,
	.connect = no_connect,
	.listen = no_listen,
	.accept = no_accept,
	.reject = no_reject,
	.shutdown = no_shutdown,
	.join = vx_no_join,
};
