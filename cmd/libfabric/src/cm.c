/*
 * Endpoints connect, accept, and end their connections. The listener accepts every VI connection, and
 * the requester says hello on it, with the program's data. That becomes FI_CONNREQ; the answer, of
 * fi_accept or fi_reject, is a message with data, too. pep.c has the listener.
 *
 * VipConnectRequest blocks. So a thread does it, one for each endpoint, until it returns.
 */
#include <signal.h>

#include "cm.h"

void vx_cm_address(union net_address *out, const union vx_addr *from, int service)
{
	unsigned char *p = out->a.HostAddress;
	uint16_t port = vx_addr_port(from);

	memset(out, 0, sizeof *out);
	if (from->sa.sa_family == AF_INET6) {
		out->a.HostAddressLen = 16;
		memcpy(p, &from->in6.sin6_addr, 16);
	} else {
		out->a.HostAddressLen = 4;
		memcpy(p, &from->in.sin_addr, 4);
	}
	if (!service)
		return;
	p += out->a.HostAddressLen;
	out->a.DiscriminatorLen = 5;
	memcpy(p, "ofi", 3);
	p[3] = (unsigned char)(port >> 8);
	p[4] = (unsigned char)port;
}

/* A thread that takes none of the program's signals. */
int vx_cm_spawn(pthread_t *thread, void *(*run)(void *), void *arg)
{
	sigset_t all, before;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	error = pthread_create(thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -error;
}

static void *connect_thread(void *arg)
{
	struct vx_ep *ep = arg;
	struct vx_link *link = ep->tx.link;
	union net_address local, remote;
	VIP_RETURN code;

	vx_cm_address(&local, &ep->name, 0);
	vx_cm_address(&remote, &ep->peer, 1);
	code = VipConnectRequest(link->vi, &local.a, &remote.a, (VIP_ULONG)vx_connect_timeout, NULL);
	pthread_mutex_lock(&ep->nic->lock);
	if (!ep->closing) {
		int error = vx_errno(code);

		if (!error) {
			vx_link_set(link, VX_GREETED);
			error = -vx_link_greet(link, VX_HELLO, &ep->name, ep->param, ep->param_length);
		}
		if (error) {
			vx_link_set(link, VX_DOWN);
			vx_eq_error(ep->eq, &ep->fid.fid, error, (int)code, NULL, 0);
			vx_rx_flush(ep);
		} else {
			vx_link_receive(link);
		}
	}
	pthread_mutex_unlock(&ep->nic->lock);
	return NULL;
}

static int cm_connect(struct fid_ep *fid, const void *addr, const void *param, size_t length)
{
	struct vx_ep *ep = VX_OUTER(fid, struct vx_ep, fid);
	struct vx_link *vain = NULL;
	union vx_addr to;
	int error;

	if (length > VX_CM_DATA)
		length = VX_CM_DATA;
	if (!addr || vx_addr_get(&to, addr, vx_addr_len(addr)) || (length && !param))
		return -FI_EINVAL;
	pthread_mutex_lock(&ep->nic->lock);
	error = ep->tx.link ? -FI_EISCONN : vx_ep_enable(ep);
	if (!error)
		error = vx_link_open(ep->nic, &ep->tx.link);
	if (!error) {
		ep->peer = to;
		ep->param_length = length;
		if (length)
			memcpy(ep->param, param, length);
		ep->tx.link->ep = ep;
		ep->tx.link->tx = &ep->tx;
		vx_link_set(ep->tx.link, VX_REQUESTING);
		error = vx_cm_spawn(&ep->connecting, connect_thread, ep);
		ep->connects = !error;
		if (error) {
			vain = ep->tx.link;
			ep->tx.link = NULL;
		}
	}
	pthread_mutex_unlock(&ep->nic->lock);
	if (vain)
		vx_link_close(vain);
	return error;
}

void vx_cm_answer(struct vx_link *link, int accepted, const void *data, size_t length)
{
	struct vx_ep *ep = link->ep;

	vx_link_set(link, accepted ? VX_UP : VX_DOWN);
	if (accepted) {
		vx_eq_cm(ep->eq, FI_CONNECTED, &ep->fid.fid, NULL, data, length);
		return;
	}
	vx_eq_error(ep->eq, &ep->fid.fid, FI_ECONNREFUSED, 0, data, length);
	vx_rx_flush(ep);
}

void vx_cm_lost(struct vx_link *link, int was)
{
	struct vx_ep *ep = link->ep;

	if (!ep)
		return; /* fi_accept will fail */
	vx_tx_flush(&ep->tx, FI_ECONNRESET);
	if (vx_link_ended(link))
		vx_rx_flush(ep);
	if (was == VX_GREETED)
		vx_eq_error(ep->eq, &ep->fid.fid, FI_ECONNREFUSED, 0, NULL, 0);
	else if (was == VX_UP)
		vx_eq_cm(ep->eq, FI_SHUTDOWN, &ep->fid.fid, NULL, NULL, 0);
}

int vx_cm_adopt(struct vx_ep *ep, struct fid *handle)
{
	struct vx_link *link;

	if (vx_pep_address(handle, &ep->name))
		return 0;
	pthread_mutex_lock(&ep->nic->lock);
	link = vx_link_request(ep->nic, handle);
	if (link) {
		vx_pep_forget(link);
		link->ep = ep;
		link->tx = &ep->tx;
		ep->tx.link = link;
		ep->peer = link->peer;
	}
	pthread_mutex_unlock(&ep->nic->lock);
	return link ? 0 : -FI_EINVAL;
}

static int cm_accept(struct fid_ep *fid, const void *param, size_t length)
{
	struct vx_ep *ep = VX_OUTER(fid, struct vx_ep, fid);
	int error;

	if (length && !param)
		return -FI_EINVAL;
	pthread_mutex_lock(&ep->nic->lock);
	error = !ep->tx.link ? -FI_EOPBADSTATE : ep->tx.link->state == VX_DOWN ? -FI_ECONNABORTED :
		ep->tx.link->state != VX_ASKED ? -FI_EISCONN : vx_ep_enable(ep);
	if (!error)
		error = vx_link_greet(ep->tx.link, VX_ACCEPT, &ep->name, param, length);
	if (!error) {
		vx_link_set(ep->tx.link, VX_UP);
		ep->tx.link->unanswered = 0;
		vx_eq_cm(ep->eq, FI_CONNECTED, &ep->fid.fid, NULL, NULL, 0);
	} else if (error == -FI_ECONNABORTED) {
		ep->tx.link->unanswered = 0;
		vx_rx_flush(ep);
	}
	pthread_mutex_unlock(&ep->nic->lock);
	return error;
}

/*
 * The end. After it no operation is left, and no thread looks at the endpoint.
 */
static void disconnect(struct vx_ep *ep)
{
	struct vx_link *link = ep->tx.link;

	link->shut = 1;
	link->unanswered = 0;
	vx_link_set(link, VX_DOWN);
	pthread_mutex_unlock(&ep->nic->lock);
	VipDisconnect(link->vi);
	pthread_mutex_lock(&ep->nic->lock);
	vx_link_reap(link);
	vx_tx_flush(&ep->tx, FI_ECANCELED);
	vx_rx_flush(ep);
	link->held_head = link->held_tail;
}

static int cm_shutdown(struct fid_ep *fid, uint64_t flags)
{
	struct vx_ep *ep = VX_OUTER(fid, struct vx_ep, fid);
	int error = 0;

	if (flags)
		return -FI_EBADFLAGS;
	pthread_mutex_lock(&ep->nic->lock);
	if (!ep->tx.link || ep->tx.link->state == VX_REQUESTING)
		error = -FI_ENOTCONN;
	else if (ep->tx.link->state != VX_DOWN)
		disconnect(ep);
	pthread_mutex_unlock(&ep->nic->lock);
	return error;
}

void vx_cm_close(struct vx_ep *ep)
{
	pthread_mutex_lock(&ep->nic->lock);
	ep->closing = 1;
	pthread_mutex_unlock(&ep->nic->lock);
	if (ep->connects)
		pthread_join(ep->connecting, NULL);
	pthread_mutex_lock(&ep->nic->lock);
	if (ep->tx.link)
		disconnect(ep);
	else
		vx_rx_flush(ep);
	pthread_mutex_unlock(&ep->nic->lock);
	if (ep->tx.link)
		vx_link_close(ep->tx.link);
	ep->tx.link = NULL;
}

static int cm_getpeer(struct fid_ep *fid, void *addr, size_t *length)
{
	struct vx_ep *ep = VX_OUTER(fid, struct vx_ep, fid);
	int error = -FI_ENOTCONN;

	pthread_mutex_lock(&ep->nic->lock);
	if (ep->tx.link && ep->tx.link->state >= VX_UP)
		error = vx_addr_copy(&ep->peer, addr, length);
	pthread_mutex_unlock(&ep->nic->lock);
	return error;
}

int vx_no_join(struct fid_ep *ep, const void *addr, uint64_t flags, struct fid_mc **mc, void *context)
{
	(void)ep, (void)addr, (void)flags, (void)mc, (void)context;
	return -FI_ENOSYS;
}

static int no_listen(struct fid_pep *pep)
{
	(void)pep;
	return -FI_ENOSYS;
}

static int no_reject(struct fid_pep *pep, fid_t handle, const void *param, size_t length)
{
	(void)pep, (void)handle, (void)param, (void)length;
	return -FI_ENOSYS;
}

struct fi_ops_cm vx_cm_ops = {
	.size = sizeof vx_cm_ops,
	.setname = vx_cm_setname,
	.getname = vx_cm_getname,
	.getpeer = cm_getpeer,
	.connect = cm_connect,
	.listen = no_listen,
	.accept = cm_accept,
	.reject = no_reject,
	.shutdown = cm_shutdown,
	.join = vx_no_join,
};

