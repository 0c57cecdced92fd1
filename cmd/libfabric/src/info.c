/*
 * fi_getinfo: one fi_info for each address of an interface that can be opened, as far as the
 * program's hints, node and service allow.
 */
#include <ifaddrs.h>
#include <linux/capability.h>
#include <linux/if_packet.h>
#include <stdio.h>
#include <stdlib.h>
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "cm.h"

/* What the program asks for, beside its hints. */
struct question {
	uint32_t version;
	const struct fi_info *hints; /* or NULL */
	const char *interface;       /* of the hints' domain; NULL: there is none */
	char fabric[64];             /* the name of the hints' fabric; empty: there is none */
	union vx_addr from, to;      /* family 0: none */
	int any_from;                /* from has only a family and a port */
};

static int has_privilege(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];
	const uint64_t need = 1ULL << CAP_NET_ADMIN | 1ULL << CAP_NET_RAW, bpf = 1ULL << CAP_SYS_ADMIN | 1ULL << 39;
	uint64_t has;

	if (syscall(SYS_capget, &head, data) != 0)
		return 0;
	has = data[0].effective | (uint64_t)data[1].effective << 32;
	return (has & need) == need && has & bpf;
}

/* An agent serves, which opens interfaces for programs without privilege. */
static int has_agent(void)
{
	const char *path = getenv("VIA_AGENT");
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd, serves;

	if (!path || !*path || strcmp(path, "auto") == 0) /* programs without privilege start none */
		path = "/run/via-xdp/agent.sock";
	if (strcmp(path, "none") == 0 || strlen(path) >= sizeof a.sun_path)
		return 0;
	strcpy(a.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	serves = fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0;
	if (fd >= 0)
		close(fd);
	return serves;
}

static int is_ethernet(const struct ifaddrs *all, const char *name)
{
	const struct ifaddrs *i;

	for (i = all; i; i = i->ifa_next)
		if (i->ifa_addr && i->ifa_addr->sa_family == AF_PACKET && strcmp(i->ifa_name, name) == 0)
			return ((struct sockaddr_ll *)i->ifa_addr)->sll_halen == 6 && !(i->ifa_flags & IFF_LOOPBACK);
	return 0;
}

/* The address from which this host's packets to another one come; 0: there is no route. */
static int source(const union vx_addr *to, union vx_addr *from)
{
	int fd = socket(to->sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0), ok;
	union vx_addr there = *to;
	socklen_t length = sizeof *from;

	if (fd < 0)
		return 0;
	if (!vx_addr_port(&there))
		vx_addr_set_port(&there, 1);
	memset(from, 0, sizeof *from);
	ok = connect(fd, &there.sa, (socklen_t)vx_addr_len(&there)) == 0 && getsockname(fd, &from->sa, &length) == 0;
	close(fd);
	vx_addr_set_port(from, 0);
	return ok;
}

static int ask(struct question *q, const char *node, const char *service, uint64_t flags)
{
	const struct fi_info *h = q->hints;
	uint32_t format = h ? h->addr_format : FI_FORMAT_UNSPEC;
	int error = 0;

	/* The addresses that node and service stand in for may be anything. */
	if (h && h->src_addr && !(flags & FI_SOURCE && (node || service)) && vx_addr_get(&q->from, h->src_addr, h->src_addrlen))
		return -FI_ENODATA;
	if (h && h->dest_addr && (flags & FI_SOURCE || !node) && vx_addr_get(&q->to, h->dest_addr, h->dest_addrlen))
		return -FI_ENODATA;
	if (node || service) {
		if (flags & FI_SOURCE)
			error = vx_addr_resolve(node, service, flags, format, &q->from);
		else if (node)
			error = vx_addr_resolve(node, service, flags, format, &q->to);
		else if (q->to.sa.sa_family) /* the service of hints' address */
			vx_addr_set_port(&q->to, (uint16_t)atoi(service));
	}
	if (error)
		return error;
	q->any_from = !q->from.sa.sa_family || vx_addr_any(&q->from);
	if (q->to.sa.sa_family && q->any_from) {
		uint16_t port = q->from.sa.sa_family ? vx_addr_port(&q->from) : 0;

		if (!source(&q->to, &q->from))
			return -FI_ENODATA;
		vx_addr_set_port(&q->from, port);
		q->any_from = 0;
	}
	return 0;
}

/* What depends on the endpoint type. */
static const struct kind {
	enum fi_ep_type type;
	uint64_t caps, tx_caps, rx_caps, primary, order, rx_comp_order;
	size_t tx_size, rx_size;
	uint32_t protocol;
} msg = {FI_EP_MSG, VX_CAPS, VX_TX_CAPS, VX_RX_CAPS, FI_MSG | FI_RMA, VX_ORDER, VX_ORDER_STRICT, VX_TX_SIZE, VX_RX_SIZE,
	VX_PROTOCOL},
  rdm = {FI_EP_RDM, VX_RDM_CAPS, VX_RDM_TX_CAPS, VX_RDM_RX_CAPS, FI_MSG | FI_RMA | FI_TAGGED, VX_RDM_ORDER, VX_ORDER_NONE,
	VX_RDM_SIZE, VX_RDM_SIZE, VX_RDM_PROTOCOL};

/*
 * Hints: each function is 1 if we have what they want.
 */
static int has_rma(const struct fi_info *h)
{
	return !h || !h->caps || h->caps & FI_RMA;
}

static int tx_fits(const struct kind *k, const struct fi_tx_attr *a)
{
	return !a || (!(a->caps & ~k->caps) && !(a->op_flags & ~VX_TX_FLAGS) && !(a->msg_order & ~k->order) &&
		!(a->comp_order & ~(uint64_t)VX_ORDER_NONE) && a->inject_size <= VX_INJECT && a->size <= k->tx_size &&
		a->iov_limit <= VX_IOV && a->rma_iov_limit <= VX_RMA_IOV);
}

static int rx_fits(const struct kind *k, const struct fi_rx_attr *a)
{
	return !a || (!(a->caps & ~k->caps) && !(a->op_flags & ~VX_RX_FLAGS) && !(a->msg_order & ~k->order) &&
		!(a->comp_order & ~k->rx_comp_order) && a->size <= k->rx_size && a->iov_limit <= VX_IOV && !a->total_buffered_recv);
}

static int ep_fits(const struct kind *k, const struct fi_ep_attr *a)
{
	return !a || ((a->type == FI_EP_UNSPEC || a->type == k->type) &&
		(a->protocol == FI_PROTO_UNSPEC || a->protocol == k->protocol) &&
		a->max_msg_size <= VX_MAX_MESSAGE && !a->max_order_raw_size && !a->max_order_war_size &&
		a->max_order_waw_size <= VX_MAX_MESSAGE && a->tx_ctx_cnt <= 1 && a->rx_ctx_cnt <= 1 && !a->auth_key_size);
}

static int mr_fits(const struct question *q, int mode)
{
	if (!has_rma(q->hints) || mode == VX_MR_BASIC)
		return 1;
	if (mode == VX_MR_UNSPEC)
		return q->version < FI_VERSION(1, 5);
	return mode != VX_MR_SCALABLE && (mode & VX_MR_MODE) == VX_MR_MODE;
}

static int domain_fits(const struct question *q, const struct fi_domain_attr *a)
{
	if (a && a->domain && !q->interface)
		return 0;
	return !a || (mr_fits(q, a->mr_mode) && a->cq_data_size <= sizeof(uint64_t) && a->mr_key_size <= sizeof(uint64_t) &&
		!(a->caps & ~(uint64_t)VX_DOMAIN_CAPS) && !a->auth_key_size && a->max_ep_srx_ctx == 0 && a->max_ep_stx_ctx == 0 &&
		a->max_ep_tx_ctx <= 1 && a->max_ep_rx_ctx <= 1 && a->mr_iov_limit <= 1 && a->max_err_data <= VX_CM_DATA);
}

static int fits(const struct question *q, const struct kind *k)
{
	const struct fi_info *h = q->hints;

	if (!h)
		return 1;
	if (h->fabric_attr && h->fabric_attr->fabric && !*q->fabric)
		return 0;
	if (h->caps & ~k->caps || (h->addr_format != FI_FORMAT_UNSPEC && h->addr_format != FI_SOCKADDR &&
		h->addr_format != FI_SOCKADDR_IN && h->addr_format != FI_SOCKADDR_IN6))
		return 0;
	return tx_fits(k, h->tx_attr) && rx_fits(k, h->rx_attr) && ep_fits(k, h->ep_attr) && domain_fits(q, h->domain_attr);
}

/* The capabilities that hints ask for, with the modifiers that follow, and what comes at no cost. */
static uint64_t capabilities(const struct kind *k, const struct fi_info *h)
{
	const uint64_t message = FI_SEND | FI_RECV, wanted = FI_DIRECTED_RECV | FI_SOURCE;
	const uint64_t remote = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	uint64_t caps;

	if (!h || !h->caps)
		return k->caps;
	caps = h->caps & (k->primary | message | remote | wanted);
	if (caps & (FI_MSG | FI_TAGGED) && !(caps & message))
		caps |= message;
	if (caps & FI_RMA && !(caps & remote))
		caps |= remote;
	return caps | FI_MULTI_RECV | FI_FENCE | VX_DOMAIN_CAPS;
}

#define HINT(attr, member, otherwise) (h && h->attr && h->attr->member ? h->attr->member : (otherwise))

static void describe(const struct question *q, const struct kind *k, struct fi_info *info)
{
	const struct fi_info *h = q->hints;
	uint64_t caps = capabilities(k, h);
	struct fi_domain_attr *d = info->domain_attr;

	info->caps = caps;
	info->mode = 0;
	info->tx_attr->caps = caps & (k->tx_caps | FI_FENCE);
	info->tx_attr->op_flags = HINT(tx_attr, op_flags, 0);
	info->tx_attr->msg_order = k->order;
	info->tx_attr->comp_order = VX_ORDER_NONE;
	info->tx_attr->inject_size = VX_INJECT;
	info->tx_attr->size = HINT(tx_attr, size, k->tx_size);
	info->tx_attr->iov_limit = VX_IOV;
	info->tx_attr->rma_iov_limit = VX_RMA_IOV;
	info->rx_attr->caps = caps & k->rx_caps;
	info->rx_attr->op_flags = HINT(rx_attr, op_flags, 0);
	info->rx_attr->msg_order = k->order;
	info->rx_attr->comp_order = k->rx_comp_order;
	info->rx_attr->size = HINT(rx_attr, size, k->rx_size);
	info->rx_attr->iov_limit = VX_IOV;
	info->ep_attr->type = k->type;
	info->ep_attr->protocol = k->protocol;
	info->ep_attr->protocol_version = 1;
	info->ep_attr->max_msg_size = VX_MAX_MESSAGE;
	info->ep_attr->max_order_waw_size = VX_MAX_MESSAGE;
	info->ep_attr->mem_tag_format = caps & FI_TAGGED ? HINT(ep_attr, mem_tag_format, UINT64_MAX) : 0;
	info->ep_attr->tx_ctx_cnt = info->ep_attr->rx_ctx_cnt = 1;
	d->threading = HINT(domain_attr, threading, FI_THREAD_SAFE);
	d->control_progress = HINT(domain_attr, control_progress, FI_PROGRESS_MANUAL);
	d->data_progress = HINT(domain_attr, data_progress, FI_PROGRESS_MANUAL);
	d->resource_mgmt = FI_RM_ENABLED;
	d->av_type = HINT(domain_attr, av_type, k == &msg ? FI_AV_UNSPEC : FI_AV_TABLE);
	d->mr_mode = h && h->domain_attr && (h->domain_attr->mr_mode == VX_MR_BASIC || h->domain_attr->mr_mode == VX_MR_UNSPEC) &&
		q->version < FI_VERSION(1, 5) ? VX_MR_BASIC : VX_MR_MODE;
	if (h && h->domain_attr && h->domain_attr->mr_mode == VX_MR_BASIC)
		d->mr_mode = VX_MR_BASIC;
	if (!has_rma(h))
		d->mr_mode = 0;
	d->mr_key_size = sizeof(VIP_MEM_HANDLE);
	d->cq_data_size = sizeof(uint64_t);
	d->cq_cnt = d->cntr_cnt = 65536;
	d->ep_cnt = d->tx_ctx_cnt = d->rx_ctx_cnt = 16384;
	d->max_ep_tx_ctx = d->max_ep_rx_ctx = 1;
	d->mr_iov_limit = 1;
	d->mr_cnt = 32768;
	d->caps = VX_DOMAIN_CAPS;
	d->max_err_data = VX_CM_DATA;
}

static int set_address(const union vx_addr *a, void **out, size_t *length)
{
	*length = vx_addr_len(a);
	if (!*length)
		return 0;
	*out = malloc(*length);
	if (!*out)
		return -FI_ENOMEM;
	memcpy(*out, a, *length);
	return 0;
}

/* The network of an address, as "10.1.2.0/24": interfaces in one network are one fabric. */
static char *network(const struct ifaddrs *i)
{
	int six = i->ifa_addr->sa_family == AF_INET6;
	size_t n, size = six ? 16 : 4;
	const void *mask = NULL, *address = six ? (void *)&((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr :
		(void *)&((struct sockaddr_in *)i->ifa_addr)->sin_addr;
	unsigned char bytes[16], m[16];
	char text[INET6_ADDRSTRLEN + 8];
	int bits = 0;

	if (!i->ifa_netmask)
		return strdup("viaxdp");
	mask = six ? (void *)&((struct sockaddr_in6 *)i->ifa_netmask)->sin6_addr :
		(void *)&((struct sockaddr_in *)i->ifa_netmask)->sin_addr;
	memcpy(bytes, address, size);
	memcpy(m, mask, size);
	for (n = 0; n < size; n++) {
		bytes[n] &= m[n];
		bits += __builtin_popcount(m[n]);
	}
	inet_ntop(six ? AF_INET6 : AF_INET, bytes, text, INET6_ADDRSTRLEN);
	sprintf(text + strlen(text), "/%d", bits);
	return strdup(text);
}

/* A listener's handle is copied. Others may be of what is closed. */
static fid_t handle(const struct fi_info *h)
{
	union vx_addr name;

	return h && h->handle && vx_pep_address(h->handle, &name) ? h->handle : NULL;
}

static struct fi_info *make(const struct question *q, const struct kind *k, const struct ifaddrs *i, const union vx_addr *address)
{
	struct fi_info *info = fi_allocinfo();
	union vx_addr from = *address;

	if (!info)
		return NULL;
	describe(q, k, info);
	info->handle = handle(q->hints);
	if (q->from.sa.sa_family)
		vx_addr_set_port(&from, vx_addr_port(&q->from));
	info->addr_format = q->hints && q->hints->addr_format == FI_SOCKADDR ? FI_SOCKADDR :
		from.sa.sa_family == AF_INET6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
	info->domain_attr->name = strdup(i->ifa_name);
	info->fabric_attr->name = network(i);
	if (!info->domain_attr->name || !info->fabric_attr->name || set_address(&from, &info->src_addr, &info->src_addrlen) ||
		set_address(&q->to, &info->dest_addr, &info->dest_addrlen)) {
		fi_freeinfo(info);
		return NULL;
	}
	return info;
}

static int wanted(const struct question *q, const struct ifaddrs *all, const struct ifaddrs *i, union vx_addr *address)
{
	const struct fi_info *h = q->hints;
	uint32_t format = h ? h->addr_format : FI_FORMAT_UNSPEC;
	size_t size;

	if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || (vx_interface && strcmp(vx_interface, i->ifa_name) != 0))
		return 0;
	size = i->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	if ((i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6) || vx_addr_get(address, i->ifa_addr, size))
		return 0;
	if (address->sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&address->in6.sin6_addr))
		return 0;
	if ((format == FI_SOCKADDR_IN && address->sa.sa_family != AF_INET) ||
		(format == FI_SOCKADDR_IN6 && address->sa.sa_family != AF_INET6))
		return 0;
	if (h && h->domain_attr && h->domain_attr->name && strcmp(h->domain_attr->name, i->ifa_name) != 0)
		return 0;
	if (q->interface && strcmp(q->interface, i->ifa_name) != 0)
		return 0;
	if (!q->any_from && !vx_addr_same_host(&q->from, address))
		return 0;
	return is_ethernet(all, i->ifa_name);
}

/* The name of an address with a label, as of an alias, is that: via0:1. No interface has a colon in its name. */
static void cut_labels(struct ifaddrs *i)
{
	for (; i; i = i->ifa_next)
		i->ifa_name[strcspn(i->ifa_name, ":")] = 0;
}

/* Appends what there is of an endpoint type, and returns where to go on. */
static struct fi_info **list(const struct question *q, const struct kind *k, const struct ifaddrs *all, struct fi_info **last, int *error)
{
	const char *fabric = q->hints && q->hints->fabric_attr ? q->hints->fabric_attr->name : NULL;
	const struct ifaddrs *i;
	union vx_addr address;

	for (i = all; i && !*error; i = i->ifa_next) {
		if (!wanted(q, all, i, &address))
			continue;
		*last = make(q, k, i, &address);
		if (!*last)
			*error = -FI_ENOMEM;
		else if ((fabric && strcmp(fabric, (*last)->fabric_attr->name) != 0) ||
			(*q->fabric && strcmp(q->fabric, (*last)->fabric_attr->name) != 0)) {
			fi_freeinfo(*last);
			*last = NULL;
		} else
			last = &(*last)->next;
	}
	return last;
}

int vx_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
	struct fi_info **info)
{
	const struct kind *kinds[] = {&msg, &rdm};
	struct question q = {.version = version, .hints = hints};
	struct fi_info **last = info;
	struct ifaddrs *all = NULL;
	int error, fitting = 0;
	size_t i;

	*info = NULL;
	if (hints && hints->domain_attr && hints->domain_attr->domain)
		q.interface = vx_domain_interface(hints->domain_attr->domain);
	if (hints && hints->fabric_attr && hints->fabric_attr->fabric)
		vx_fabric_name(hints->fabric_attr->fabric, q.fabric, sizeof q.fabric);
	for (i = 0; i < sizeof kinds / sizeof *kinds; i++)
		fitting += fits(&q, kinds[i]);
	if (!fitting)
		return -FI_ENODATA;
	if (!(flags & FI_PROV_ATTR_ONLY) && !has_privilege() && !has_agent()) {
		VX_INFO(FI_LOG_FABRIC, "neither privilege to open an interface nor an agent\n");
		return -FI_ENODATA;
	}
	error = flags & FI_PROV_ATTR_ONLY ? 0 : ask(&q, node, service, flags);
	if (!error && !(flags & FI_PROV_ATTR_ONLY) && getifaddrs(&all) != 0)
		error = -FI_ENODATA;
	cut_labels(all);
	for (i = 0; i < sizeof kinds / sizeof *kinds && !error; i++) {
		if (!fits(&q, kinds[i]))
			continue;
		if (!(flags & FI_PROV_ATTR_ONLY)) {
			last = list(&q, kinds[i], all, last, &error);
		} else if ((*last = fi_allocinfo())) {
			describe(&q, kinds[i], *last);
			last = &(*last)->next;
		} else {
			error = -FI_ENOMEM;
		}
	}
	if (all)
		freeifaddrs(all);
	if (!error && !*info)
		error = -FI_ENODATA;
	if (error && *info) {
		fi_freeinfo(*info);
		*info = NULL;
	}
	return error;
}

int vx_info_source(const struct fi_info *info, char *interface, union vx_addr *out)
{
	struct fi_domain_attr domain = {.name = interface};
	const struct fi_info hints = {.caps = FI_MSG, .addr_format = info->addr_format, .domain_attr = &domain};
	struct fi_info *found;
	int error;

	if (info->src_addr)
		return vx_addr_get(out, info->src_addr, info->src_addrlen);
	error = vx_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, &hints, &found);
	if (error)
		return error;
	error = vx_addr_get(out, found->src_addr, found->src_addrlen);
	fi_freeinfo(found);
	return error;
}
