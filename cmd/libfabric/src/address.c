/* Socket addresses, IPv4 and IPv6. */
#include <netdb.h>
#include <sys/socket.h>

#include "viaxdp.h"

size_t vx_addr_len(const union vx_addr *a)
{
	switch (a->sa.sa_family) {
	case AF_INET:
		return sizeof a->in;
	case AF_INET6:
		return sizeof a->in6;
	}
	return 0;
}

int vx_addr_get(union vx_addr *out, const void *sockaddr, size_t length)
{
	memset(out, 0, sizeof *out);
	if (!sockaddr || length < sizeof out->sa.sa_family)
		return -FI_EINVAL;
	memcpy(out, sockaddr, length < sizeof *out ? length : sizeof *out);
	if (vx_addr_len(out) && length >= vx_addr_len(out))
		return 0;
	memset(out, 0, sizeof *out);
	return -FI_EINVAL;
}

uint16_t vx_addr_port(const union vx_addr *a)
{
	return ntohs(a->sa.sa_family == AF_INET6 ? a->in6.sin6_port : a->in.sin_port);
}

void vx_addr_set_port(union vx_addr *a, uint16_t port)
{
	if (a->sa.sa_family == AF_INET6)
		a->in6.sin6_port = htons(port);
	else
		a->in.sin_port = htons(port);
}

int vx_addr_same_host(const union vx_addr *a, const union vx_addr *b)
{
	if (a->sa.sa_family != b->sa.sa_family)
		return 0;
	if (a->sa.sa_family == AF_INET6)
		return memcmp(&a->in6.sin6_addr, &b->in6.sin6_addr, sizeof a->in6.sin6_addr) == 0;
	return a->in.sin_addr.s_addr == b->in.sin_addr.s_addr;
}

int vx_addr_any(const union vx_addr *a)
{
	if (a->sa.sa_family == AF_INET6)
		return IN6_IS_ADDR_UNSPECIFIED(&a->in6.sin6_addr);
	return a->in.sin_addr.s_addr == INADDR_ANY;
}

int vx_addr_compare(const union vx_addr *a, const union vx_addr *b)
{
	int result = (int)a->sa.sa_family - (int)b->sa.sa_family;

	if (!result)
		result = a->sa.sa_family == AF_INET6 ? memcmp(&a->in6.sin6_addr, &b->in6.sin6_addr, sizeof a->in6.sin6_addr) :
			memcmp(&a->in.sin_addr, &b->in.sin_addr, sizeof a->in.sin_addr);
	return result ? result : (int)vx_addr_port(a) - (int)vx_addr_port(b);
}

int vx_addr_copy(const union vx_addr *a, void *out, size_t *length)
{
	size_t room = *length, need = vx_addr_len(a);

	*length = need;
	if (room && out)
		memcpy(out, a, room < need ? room : need);
	return room < need ? -FI_ETOOSMALL : 0;
}

int vx_addr_resolve(const char *node, const char *service, uint64_t flags, uint32_t format, union vx_addr *out)
{
	struct addrinfo want = {
		.ai_socktype = SOCK_STREAM,
		.ai_family = format == FI_SOCKADDR_IN ? AF_INET : format == FI_SOCKADDR_IN6 ? AF_INET6 : AF_UNSPEC,
	}, *found;
	int error;

	if (flags & FI_NUMERICHOST)
		want.ai_flags |= AI_NUMERICHOST;
	if (!node)
		want.ai_flags |= AI_PASSIVE;
	if (!node)
		want.ai_family = AF_INET;
	if (getaddrinfo(node, service, &want, &found) != 0)
		return -FI_ENODATA;
	error = vx_addr_get(out, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	return error ? -FI_ENODATA : 0;
}
