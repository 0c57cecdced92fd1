/* Address vectors: socket addresses by number. */
#include <stdio.h>
#include <stdlib.h>
#include <arpa/inet.h>

#include "match.h"

static struct vx_av *vector(struct fid_av *fid)
{
	return VX_OUTER(fid, struct vx_av, fid);
}

const union vx_addr *vx_av_name(const struct vx_av *av, fi_addr_t addr)
{
	return addr < av->count && av->entries[addr].uses ? &av->entries[addr].name : NULL;
}

fi_addr_t vx_av_find(const struct vx_av *av, const union vx_addr *name)
{
	size_t i;

	for (i = 0; i < av->count; i++)
		if (av->entries[i].uses && vx_addr_compare(&av->entries[i].name, name) == 0)
			return i;
	return FI_ADDR_NOTAVAIL;
}

static int grow(struct vx_av *av)
{
	size_t size = av->size ? 2 * av->size : 64;
	struct vx_av_entry *entries = realloc(av->entries, size * sizeof *entries);

	if (!entries)
		return -FI_ENOMEM;
	av->entries = entries;
	av->size = size;
	return 0;
}

/* An address that is there already keeps its number. */
static int insert(struct vx_av *av, const union vx_addr *name, fi_addr_t *out)
{
	fi_addr_t addr = vx_av_find(av, name);
	struct vx_rdm *rdm;

	if (addr != FI_ADDR_NOTAVAIL) {
		av->entries[addr].uses++;
		*out = addr;
		return 0;
	}
	for (addr = 0; addr < av->count && av->entries[addr].uses; addr++)
		;
	if (addr == av->size && grow(av))
		return -FI_ENOMEM;
	if (addr == av->count)
		av->count++;
	av->entries[addr] = (struct vx_av_entry){.name = *name, .uses = 1};
	for (rdm = av->endpoints; rdm; rdm = rdm->next)
		vx_rdm_inserted(rdm, addr, name);
	*out = addr;
	return 0;
}

static int av_insert(struct fid_av *fid, const void *addr, size_t count, fi_addr_t *out, uint64_t flags, void *context)
{
	struct vx_av *av = vector(fid);
	const char *p = addr;
	size_t i;
	int inserted = 0;

	if (flags & ~(FI_MORE | FI_SYNC_ERR))
		return -FI_EBADFLAGS;
	if ((count && !addr) || (flags & FI_SYNC_ERR && !context))
		return -FI_EINVAL;
	pthread_mutex_lock(&av->domain->nic->lock);
	for (i = 0; i < count; i++) {
		union vx_addr name;
		fi_addr_t number = FI_ADDR_NOTAVAIL;
		size_t length = vx_addr_len((const union vx_addr *)p);
		int error = length ? vx_addr_get(&name, p, length) : -FI_EINVAL;

		p += length ? length : av->domain->format == FI_SOCKADDR_IN6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
		if (!error)
			error = insert(av, &name, &number);
		inserted += !error;
		if (out)
			out[i] = number;
		if (flags & FI_SYNC_ERR)
			((int *)context)[i] = -error;
	}
	pthread_mutex_unlock(&av->domain->nic->lock);
	return inserted;
}

static int av_insertsvc(struct fid_av *fid, const char *node, const char *service, fi_addr_t *out, uint64_t flags, void *context)
{
	union vx_addr name;

	if (!node || !service || vx_addr_resolve(node, service, 0, vector(fid)->domain->format, &name))
		return -FI_EINVAL;
	return av_insert(fid, &name, 1, out, flags, context);
}

static int av_insertsym(struct fid_av *fid, const char *node, size_t nodes, const char *service, size_t services, fi_addr_t *out,
	uint64_t flags, void *context)
{
	(void)fid, (void)node, (void)nodes, (void)service, (void)services, (void)out, (void)flags, (void)context;
	return -FI_ENOSYS;
}

static int av_remove(struct fid_av *fid, fi_addr_t *addr, size_t count, uint64_t flags)
{
	struct vx_av *av = vector(fid);
	struct vx_rdm *rdm;
	int error = 0;
	size_t i;

	if (flags)
		return -FI_EBADFLAGS;
	pthread_mutex_lock(&av->domain->nic->lock);
	for (i = 0; i < count; i++) {
		if (!vx_av_name(av, addr[i])) {
			error = -FI_EINVAL;
			continue;
		}
		if (--av->entries[addr[i]].uses)
			continue;
		for (rdm = av->endpoints; rdm; rdm = rdm->next)
			vx_rdm_removed(rdm, addr[i]);
	}
	pthread_mutex_unlock(&av->domain->nic->lock);
	return error;
}

static int av_lookup(struct fid_av *fid, fi_addr_t addr, void *out, size_t *length)
{
	struct vx_av *av = vector(fid);
	const union vx_addr *name;

	pthread_mutex_lock(&av->domain->nic->lock);
	name = vx_av_name(av, addr);
	if (name)
		vx_addr_copy(name, out, length); /* it sets the length that is needed */
	pthread_mutex_unlock(&av->domain->nic->lock);
	return name ? 0 : -FI_EINVAL;
}

static const char *av_straddr(struct fid_av *fid, const void *addr, char *buf, size_t *length)
{
	char host[INET6_ADDRSTRLEN] = "", text[INET6_ADDRSTRLEN + 40];
	union vx_addr a;
	int six, n;

	(void)fid;
	if (!addr || vx_addr_get(&a, addr, vx_addr_len(addr)))
		return NULL;
	six = a.sa.sa_family == AF_INET6;
	inet_ntop(a.sa.sa_family, six ? (void *)&a.in6.sin6_addr : (void *)&a.in.sin_addr, host, sizeof host);
	n = snprintf(text, sizeof text, six ? "fi_sockaddr_in6://[%s]:%u" : "fi_sockaddr_in://%s:%u", host, vx_addr_port(&a));
	if (buf && *length)
		snprintf(buf, *length, "%s", text);
	*length = (size_t)n + 1;
	return buf;
}

static int no_set(struct fid_av *fid, struct fi_av_set_attr *attr, struct fid_av_set **set, void *context)
{
	(void)fid, (void)attr, (void)set, (void)context;
	return -FI_ENOSYS;
}

static int av_close(struct fid *fid)
{
	struct vx_av *av = VX_OUTER(fid, struct vx_av, fid.fid);
	int busy;

	pthread_mutex_lock(&av->domain->nic->lock);
	busy = av->refs != 0;
	if (!busy)
		av->domain->refs--;
	pthread_mutex_unlock(&av->domain->nic->lock);
	if (busy)
		return -FI_EBUSY;
	free(av->entries);
	free(av);
	return 0;
}

static struct fi_ops fid_ops = {
	.size = sizeof fid_ops,
	.close = av_close,
	.bind = vx_no_bind,
	.control = vx_no_control,
	.ops_open = vx_no_ops_open,
};

static struct fi_ops_av av_ops = {
	.size = sizeof av_ops,
	.insert = av_insert,
	.insertsvc = av_insertsvc,
	.insertsym = av_insertsym,
	.remove = av_remove,
	.lookup = av_lookup,
	.straddr = av_straddr,
	.av_set = no_set,
};

int vx_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **out, void *context)
{
	struct vx_av *av;

	if (attr && (attr->name || attr->flags || attr->rx_ctx_bits))
		return -FI_ENOSYS; /* shared ones, events, and named receive contexts */
	av = calloc(1, sizeof *av);
	if (!av)
		return -FI_ENOMEM;
	if (attr && attr->type == FI_AV_UNSPEC)
		attr->type = FI_AV_TABLE;
	av->domain = VX_OUTER(domain, struct vx_domain, fid);
	av->fid.fid.fclass = FI_CLASS_AV;
	av->fid.fid.context = context;
	av->fid.fid.ops = &fid_ops;
	av->fid.ops = &av_ops;
	pthread_mutex_lock(&av->domain->nic->lock);
	av->domain->refs++;
	pthread_mutex_unlock(&av->domain->nic->lock);
	*out = &av->fid;
	return 0;
}
