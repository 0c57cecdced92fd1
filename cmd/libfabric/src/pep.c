/*
 * Passive endpoints. Each has a thread, because VipConnectWait blocks.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "match.h"

enum {
	SLICE = 100,        /* ms: how often the thread looks for connections that are over */
	GREETING_TIME = 10, /* s: for a hello */
	BACKLOG = 1024,     /* requests that no endpoint has; others are refused */
};

/* The program's listeners: a handle of fi_info may be of one that is closed. */
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;
static struct vx_pep *peps;

int vx_pep_address(const struct fid *handle, union vx_addr *out)
{
	struct vx_pep *pep;

	pthread_mutex_lock(&table);
	for (pep = peps; pep && &pep->fid.fid != handle; pep = pep->next)
		;
	if (pep)
		*out = pep->name;
	pthread_mutex_unlock(&table);
	return pep != NULL;
}

void vx_pep_forget(struct vx_link *link)
{
	struct vx_link **at;

	for (at = &link->pep->requests; *at; at = &(*at)->sibling)
		if (*at == link) {
			*at = link->sibling;
			link->pep->waiting--;
			break;
		}
	link->pep = NULL;
}

/*
 * The hello names the host that the request came from. Otherwise any host could take the place of another: programs trust
 * the address of FI_CONNREQ, and an FI_EP_RDM endpoint would drop its connection to the other host, and send the messages for
 * that one to this one.
 */
int vx_pep_honest(const struct vx_link *link)
{
	union net_address name;

	vx_cm_address(&name, &link->peer, 0);
	return name.a.HostAddressLen == link->host_length && memcmp(name.a.HostAddress, link->host, link->host_length) == 0;
}

static void take_request(struct vx_pep *pep, VIP_CONN_HANDLE request, const VIP_NET_ADDRESS *from)
{
	struct vx_link *link = NULL;
	int error;

	pthread_mutex_lock(&pep->nic->lock);
	error = pep->waiting < pep->backlog ? vx_link_open(pep->nic, &link) : -FI_EAGAIN;
	if (!error) {
		link->rdm = pep->rdm != NULL;
		if (from->HostAddressLen <= sizeof link->host) {
			link->host_length = from->HostAddressLen;
			memcpy(link->host, from->HostAddress, link->host_length);
		}
		vx_link_set(link, VX_REQUESTING);
	}
	pthread_mutex_unlock(&pep->nic->lock);
	if (error) {
		VX_WARN(FI_LOG_EP_CTRL, "no resources for a connection, or too many requests wait\n");
		VipConnectReject(request);
		return;
	}
	if (VipConnectAccept(request, link->vi) != VIP_SUCCESS) {
		VipConnectReject(request);
		vx_link_close(link);
		return;
	}
	pthread_mutex_lock(&pep->nic->lock);
	link->pep = pep;
	link->sibling = pep->requests;
	link->since = vx_now();
	pep->requests = link;
	pep->waiting++;
	vx_link_set(link, VX_GREETING);
	vx_link_receive(link);
	pthread_mutex_unlock(&pep->nic->lock);
}

void vx_pep_init(struct vx_pep *pep)
{
	pep->port = -1;
	pep->backlog = BACKLOG;
}

/* A connection that said no hello, of which the program does not know; NULL: there is none. */
static struct vx_link *stale(struct vx_pep *pep, int all)
{
	struct vx_link *link;

	pthread_mutex_lock(&pep->nic->lock);
	for (link = pep->requests; link; link = link->sibling)
		if (all || (!link->unanswered && (link->state == VX_DOWN || (link->state == VX_GREETING &&
			vx_now() - link->since > (int64_t)GREETING_TIME * 1000000000))))
			break;
	if (link)
		vx_pep_forget(link);
	pthread_mutex_unlock(&pep->nic->lock);
	return link;
}

static int is_closing(struct vx_pep *pep)
{
	int closing;

	pthread_mutex_lock(&pep->nic->lock);
	closing = pep->closing;
	pthread_mutex_unlock(&pep->nic->lock);
	return closing;
}

static void *listen_thread(void *arg)
{
	struct vx_pep *pep = arg;
	struct vx_link *link;
	union net_address from;

	while (!is_closing(pep)) {
		VIP_CONN_HANDLE request;
		VIP_RETURN code = VipConnectWait(pep->nic->handle, &pep->local.a, SLICE, &from.a, NULL, &request);

		if (code == VIP_SUCCESS)
			take_request(pep, request, &from.a);
		else if (code != VIP_TIMEOUT && !is_closing(pep))
			usleep(SLICE * 1000); /* the interface is gone, or another user's program listens */
		while ((link = stale(pep, 0)))
			vx_link_close(link);
		if (pep->rdm)
			vx_rdm_reap(pep->rdm);
	}
	return NULL;
}

/* The host of an endpoint that has none of its own. */
static void complete_name(struct vx_link *link)
{
	union vx_addr *a = &link->peer;

	if (a->sa.sa_family == AF_INET && link->host_length == sizeof a->in.sin_addr)
		memcpy(&a->in.sin_addr, link->host, link->host_length);
	else if (a->sa.sa_family == AF_INET6 && link->host_length == sizeof a->in6.sin6_addr)
		memcpy(&a->in6.sin6_addr, link->host, link->host_length);
}

void vx_cm_hello(struct vx_link *link, const void *data, size_t length)
{
	struct vx_pep *pep = link->pep;
	struct fi_info *info;

	if (vx_addr_any(&link->peer))
		complete_name(link);
	if (!vx_pep_honest(link)) {
		vx_link_set(link, VX_DOWN); /* the listener closes it */
		return;
	}
	if (!pep || !(info = fi_dupinfo(pep->info)))
		return; /* the listener is being closed, or has no memory */
	free(info->src_addr);
	free(info->dest_addr);
	info->handle = &link->fid;
	info->src_addrlen = vx_addr_len(&pep->name);
	info->dest_addrlen = vx_addr_len(&link->peer);
	info->src_addr = malloc(sizeof pep->name);
	info->dest_addr = malloc(sizeof link->peer);
	if (!info->src_addr || !info->dest_addr) {
		fi_freeinfo(info);
		return;
	}
	memcpy(info->src_addr, &pep->name, sizeof pep->name);
	memcpy(info->dest_addr, &link->peer, sizeof link->peer);
	link->unanswered = 1;
	vx_eq_cm(pep->eq, FI_CONNREQ, &pep->fid.fid, info, data, length);
}

/*
 * Reserves the port: two listeners of a host never have the same, and a port of 0 stands for one
 * that is free, as with sockets.
 */
int vx_pep_reserve(struct vx_pep *pep)
{
	socklen_t length = sizeof pep->name;
	int error = 0;

	if (pep->port >= 0)
		return 0;
	pep->port = socket(pep->name.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (pep->port < 0)
		return -errno;
	if (bind(pep->port, &pep->name.sa, (socklen_t)vx_addr_len(&pep->name)) ||
		getsockname(pep->port, &pep->name.sa, &length))
		error = -errno;
	if (error) {
		close(pep->port);
		pep->port = -1;
	}
	return error;
}

int vx_pep_listen(struct vx_pep *pep, const char *interface)
{
	VIP_RETURN code;
	int error;

	error = vx_pep_reserve(pep);
	if (!error && !pep->nic)
		error = vx_nic_open(interface, &pep->nic);
	if (error)
		return error;
	vx_cm_address(&pep->local, &pep->name, 1);
	code = VipxListen(pep->nic->handle, &pep->local.a);
	if (code != VIP_SUCCESS)
		return code == VIP_INVALID_STATE ? -FI_EADDRINUSE : -vx_errno(code);
	error = vx_cm_spawn(&pep->thread, listen_thread, pep);
	if (error)
		VipxUnlisten(pep->nic->handle, &pep->local.a);
	pep->listening = !error;
	return error;
}

static int cm_listen(struct fid_pep *fid)
{
	struct vx_pep *pep = VX_OUTER(fid, struct vx_pep, fid);

	if (!pep->eq)
		return -FI_ENOEQ;
	if (pep->listening)
		return -FI_EALREADY;
	return vx_pep_listen(pep, pep->info->domain_attr->name);
}

static int cm_reject(struct fid_pep *fid, fid_t handle, const void *param, size_t length)
{
	struct vx_pep *pep = VX_OUTER(fid, struct vx_pep, fid);
	struct vx_link *link;
	int error = 0;

	if ((length && !param) || !pep->nic)
		return -FI_EINVAL;
	pthread_mutex_lock(&pep->nic->lock);
	link = vx_link_request(pep->nic, handle);
	if (!link || link->pep != pep)
		error = -FI_EINVAL;
	else
		vx_pep_forget(link);
	if (!error && link->state == VX_ASKED)
		vx_link_greet(link, VX_REJECT, NULL, param, length);
	pthread_mutex_unlock(&pep->nic->lock);
	if (!error)
		vx_link_close(link);
	return error;
}

int vx_cm_getname(fid_t fid, void *addr, size_t *length)
{
	if (fid->fclass == FI_CLASS_PEP) {
		struct vx_pep *pep = VX_OUTER(fid, struct vx_pep, fid.fid);
		int error = vx_pep_reserve(pep);

		return error ? error : vx_addr_copy(&pep->name, addr, length);
	}
	return vx_addr_copy(&VX_OUTER(fid, struct vx_ep, fid.fid)->name, addr, length);
}

int vx_cm_setname(fid_t fid, void *addr, size_t length)
{
	union vx_addr a, *name = &VX_OUTER(fid, struct vx_ep, fid.fid)->name;
	struct vx_pep *pep = NULL;

	if (vx_addr_get(&a, addr, length))
		return -FI_EINVAL;
	if (fid->fclass == FI_CLASS_PEP) {
		pep = VX_OUTER(fid, struct vx_pep, fid.fid);
		name = &pep->name;
	}
	if (a.sa.sa_family != name->sa.sa_family || (!vx_addr_any(&a) && !vx_addr_same_host(&a, name)))
		return -FI_EADDRNOTAVAIL;
	if (pep && pep->port >= 0)
		return -FI_EOPBADSTATE;
	vx_addr_set_port(name, vx_addr_port(&a));
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

static int no_accept(struct fid_ep *ep, const void *param, size_t length)
{
	(void)ep, (void)param, (void)length;
	return -FI_ENOSYS;
}

static int no_shutdown(struct fid_ep *ep, uint64_t flags)
{
	(void)ep, (void)flags;
	return -FI_ENOSYS;
}

static struct fi_ops_cm pep_cm_ops = {
	.size = sizeof pep_cm_ops,
	.setname = vx_cm_setname,
	.getname = vx_cm_getname,
	.getpeer = no_getpeer,
	.connect = no_connect,
	.listen = cm_listen,
	.accept = no_accept,
	.reject = cm_reject,
	.shutdown = no_shutdown,
	.join = vx_no_join,
};

void vx_pep_stop(struct vx_pep *pep)
{
	struct vx_link *link;

	if (pep->listening) {
		pthread_mutex_lock(&pep->nic->lock);
		pep->closing = 1;
		pthread_mutex_unlock(&pep->nic->lock);
		VipxUnlisten(pep->nic->handle, &pep->local.a); /* wakes the thread */
		pthread_join(pep->thread, NULL);
	}
	if (pep->nic) {
		while ((link = stale(pep, 1)))
			vx_link_close(link);
		vx_nic_close(pep->nic);
	}
	if (pep->port >= 0)
		close(pep->port);
}

static int pep_close(struct fid *fid)
{
	struct vx_pep *pep = VX_OUTER(fid, struct vx_pep, fid.fid), **at = &peps;

	pthread_mutex_lock(&table);
	while (*at != pep)
		at = &(*at)->next;
	*at = pep->next;
	pthread_mutex_unlock(&table);
	vx_pep_stop(pep);
	if (pep->eq) {
		vx_eq_forget(pep->eq, &pep->fid.fid);
		vx_eq_bind(pep->eq, -1);
	}
	__atomic_sub_fetch(&pep->fabric->refs, 1, __ATOMIC_SEQ_CST);
	fi_freeinfo(pep->info);
	free(pep);
	return 0;
}

static int pep_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	struct vx_pep *pep = VX_OUTER(fid, struct vx_pep, fid.fid);

	if (!other || other->fclass != FI_CLASS_EQ || flags || pep->eq)
		return -FI_EINVAL;
	pep->eq = VX_OUTER(other, struct vx_eq, fid.fid);
	vx_eq_bind(pep->eq, 1);
	return 0;
}

static int pep_control(struct fid *fid, int command, void *arg)
{
	struct vx_pep *pep = VX_OUTER(fid, struct vx_pep, fid.fid);

	if (command != FI_BACKLOG)
		return -FI_ENOSYS;
	if (!arg || *(int *)arg < 1 || pep->listening)
		return -FI_EINVAL;
	pep->backlog = *(int *)arg;
	return 0;
}

static int pep_getopt(fid_t fid, int level, int name, void *value, size_t *length)
{
	size_t is = VX_CM_DATA, room;

	(void)fid;
	if (level != FI_OPT_ENDPOINT || name != FI_OPT_CM_DATA_SIZE)
		return -FI_ENOPROTOOPT;
	room = *length;
	*length = sizeof is;
	if (room < sizeof is)
		return -FI_ETOOSMALL;
	memcpy(value, &is, sizeof is);
	return 0;
}

static int pep_setopt(fid_t fid, int level, int name, const void *value, size_t length)
{
	(void)fid, (void)level, (void)name, (void)value, (void)length;
	return -FI_ENOPROTOOPT;
}

static struct fi_ops pep_fid_ops = {
	.size = sizeof pep_fid_ops,
	.close = pep_close,
	.bind = pep_bind,
	.control = pep_control,
	.ops_open = vx_no_ops_open,
};

static struct fi_ops_ep pep_ops = {
	.size = sizeof pep_ops,
	.getopt = pep_getopt,
	.setopt = pep_setopt,
};

int vx_pep_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_pep **out, void *context)
{
	struct vx_pep *pep;
	int error;

	if (!info || !info->domain_attr || !info->domain_attr->name || !info->ep_attr || info->ep_attr->type != FI_EP_MSG)
		return -FI_EINVAL;
	pep = calloc(1, sizeof *pep);
	if (!pep)
		return -FI_ENOMEM;
	vx_pep_init(pep);
	pep->info = fi_dupinfo(info);
	error = pep->info ? vx_info_source(info, info->domain_attr->name, &pep->name) : -FI_ENOMEM;
	if (error) {
		fi_freeinfo(pep->info);
		free(pep);
		return error;
	}
	pep->fabric = VX_OUTER(fabric, struct vx_fabric, fid);
	__atomic_add_fetch(&pep->fabric->refs, 1, __ATOMIC_SEQ_CST);
	pep->fid.fid.fclass = FI_CLASS_PEP;
	pep->fid.fid.context = context;
	pep->fid.fid.ops = &pep_fid_ops;
	pep->fid.ops = &pep_ops;
	pep->fid.cm = &pep_cm_ops;
	pthread_mutex_lock(&table);
	pep->next = peps;
	peps = pep;
	pthread_mutex_unlock(&table);
	*out = &pep->fid;
	return 0;
}
