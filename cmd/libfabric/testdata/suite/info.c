/* fi_getinfo(3). */
#include "suite.h"

#include <netinet/in.h>

static int ask(struct fi_info *h, const char *node, const char *service, uint64_t flags, struct fi_info **info)
{
	*info = NULL;
	return fi_getinfo(FI_VERSION(1, 17), node, service, flags, h, info);
}

/* The hints want orders that the provider does not keep, except one. */
static void orders(struct fi_info *h)
{
	const enum fi_ep_type types[] = {FI_EP_MSG, FI_EP_RDM};
	const uint64_t strict = 0x1ff; /* FI_ORDER_STRICT of libfabric 1 */
	struct fi_info *info, *own;
	int i, j;

	h->caps = FI_MSG | FI_RMA;
	for (i = 0; i < 2; i++)
		for (j = 0; j < 4; j++) {
			h->ep_attr->type = types[i];
			h->tx_attr->comp_order = j == 0 ? strict : 0;
			h->rx_attr->comp_order = j == 1 ? strict : 0;
			h->ep_attr->max_order_raw_size = j == 2;
			h->ep_attr->max_order_war_size = j == 3;
			ask(h, address, "4711", 0, &info);
			for (own = info; own && strcmp(own->fabric_attr->prov_name, provider) != 0; own = own->next)
				; /* ofi_rxm promises more */
			CHECK(!own == (types[i] == FI_EP_RDM || j != 1), "fi_getinfo(3): endpoint type %d, order %d: %s",
				types[i], j, own ? fi_tostr(own, FI_TYPE_INFO) : "none");
			fi_freeinfo(info);
		}
	h->caps = FI_MSG;
	h->ep_attr->type = FI_EP_MSG;
	h->ep_attr->max_order_war_size = 0;
}

/* The hints want more of a domain than the provider has. */
static void limits(struct fi_info *h)
{
	struct fi_domain_attr *d = h->domain_attr;
	size_t *const members[] = {&d->max_ep_tx_ctx, &d->max_ep_rx_ctx, &d->mr_iov_limit, &d->max_err_data};
	const size_t most[] = {1, 1, 1, 256};
	struct fi_info *info;
	size_t i;
	int got;

	for (i = 0; i < sizeof most / sizeof *most; i++) {
		*members[i] = most[i];
		OK(ask(h, address, "4711", 0, &info));
		fi_freeinfo(info);
		*members[i] = most[i] + 1;
		CHECK((got = ask(h, address, "4711", 0, &info)) == -FI_ENODATA, "fi_getinfo(3): hints are minima: limit %zu: %d", i, got);
		*members[i] = 0;
	}
}

/* Node and service stand in for an address of the hints, whatever is there. */
static void overridden(struct fi_info *h)
{
	struct fi_info *info;

	h->dest_addr = strdup("?");
	h->dest_addrlen = 2;
	OK(ask(h, address, "4711", 0, &info));
	fi_freeinfo(info);
	h->src_addr = h->dest_addr;
	h->src_addrlen = 2;
	h->dest_addr = NULL;
	OK(ask(h, address, "4711", FI_SOURCE, &info) && server);
	fi_freeinfo(info);
	free(h->src_addr);
	h->src_addr = NULL;
}

void test_info(void)
{
	struct fi_info *h = hints_of(FI_MSG), *info, *copy;
	struct sockaddr_in *in; /* an IPv6 address has its port in the same place */
	int six = strchr(address, ':') != NULL;
	size_t size = six ? sizeof(struct sockaddr_in6) : sizeof *in;
	int got;

	OK(ask(h, address, "4711", FI_SOURCE, &info) && server);
	if (server) {
		in = info->src_addr;
		CHECK(info->src_addrlen == size && in->sin_family == (six ? AF_INET6 : AF_INET), "fi_getinfo(3): FI_SOURCE: node is the source address");
		CHECK(in->sin_port == htons(4711), "fi_getinfo(3): FI_SOURCE: service is the source's");
		CHECK(!info->dest_addr, "fi_getinfo(3): FI_SOURCE: there is no destination");
		CHECK(info->addr_format == h->addr_format, "fi_getinfo(3): addr_format is that of the hints");
	}
	fi_freeinfo(info);
	OK(ask(h, address, "4711", FI_NUMERICHOST, &info));
	in = info->dest_addr;
	CHECK(in && info->dest_addrlen == size && in->sin_port == htons(4711), "fi_getinfo(3): node and service name the destination");
	CHECK(info->src_addr, "fi_getinfo(3): the source address that reaches it is reported");
	CHECK((info->caps & FI_MSG) && info->caps & FI_SEND && info->caps & FI_RECV, "fi_getinfo(3): FI_MSG implies send and receive");
	CHECK(!(info->caps & (FI_RMA | FI_ATOMIC | FI_TAGGED)), "fi_getinfo(3): only primary capabilities that were asked for");
	CHECK(!info->mode, "fi_getinfo(3): no mode that the hints did not have");
	CHECK(info->ep_attr->type == FI_EP_MSG, "fi_getinfo(3): the endpoint type is that of the hints");
	CHECK(info->tx_attr->size && info->rx_attr->size && info->tx_attr->iov_limit && info->rx_attr->iov_limit, "fi_getinfo(3): sizes are reported");
	CHECK(!(info->tx_attr->caps & ~info->caps) && !(info->rx_attr->caps & ~info->caps), "fi_getinfo(3): transmit and receive capabilities are the endpoint's");
	CHECK(strcmp(info->fabric_attr->prov_name, provider) == 0, "fi_fabric(3): prov_name is the provider's");
	CHECK(info->domain_attr->name && info->fabric_attr->name, "fi_domain(3), fi_fabric(3): they have names");
	copy = fi_dupinfo(info);
	CHECK(copy && copy->dest_addrlen == info->dest_addrlen && copy->dest_addr != info->dest_addr, "fi_getinfo(3): fi_dupinfo copies");
	fi_freeinfo(copy);

	/* The attributes of a domain find it again. */
	free(h->domain_attr->name);
	h->domain_attr->name = strdup(info->domain_attr->name);
	OK(ask(h, address, "4711", 0, &copy));
	CHECK(strcmp(copy->domain_attr->name, info->domain_attr->name) == 0, "fi_getinfo(3): the domain of that name");
	fi_freeinfo(copy);
	h->domain_attr->name[0] = '?';
	got = ask(h, address, "4711", 0, &copy);
	CHECK(got == -FI_ENODATA || !ours, "fi_getinfo(3): -FI_ENODATA without such a domain, not %d", got);
	free(h->domain_attr->name);
	h->domain_attr->name = NULL;

	h->tx_attr->inject_size = info->tx_attr->inject_size;
	h->tx_attr->size = info->tx_attr->size;
	OK(ask(h, address, "4711", 0, &copy));
	CHECK(copy->tx_attr->inject_size >= h->tx_attr->inject_size && copy->tx_attr->size >= h->tx_attr->size, "fi_getinfo(3): hints are minima");
	fi_freeinfo(copy);
	fi_freeinfo(info);
	h->tx_attr->inject_size = (size_t)1 << 40;
	CHECK((got = ask(h, address, "4711", 0, &info)) == -FI_ENODATA, "fi_getinfo(3): -FI_ENODATA for what cannot be, not %d", got);
	h->tx_attr->inject_size = 0;
	h->ep_attr->type = FI_EP_DGRAM;
	CHECK((got = ask(h, address, "4711", 0, &info)) == -FI_ENODATA, "fi_getinfo(3): -FI_ENODATA for another type, not %d", got);
	h->ep_attr->type = FI_EP_MSG;
	h->caps = FI_MSG | FI_MULTICAST;
	CHECK((got = ask(h, address, "4711", 0, &info)) == -FI_ENODATA, "fi_getinfo(3): -FI_ENODATA for other capabilities, not %d", got);
	h->caps = FI_MSG;
	if (ours) {
		orders(h);
		limits(h);
	}
	overridden(h);
	CHECK(ask(h, "no.such.host.invalid", "4711", FI_NUMERICHOST, &info) < 0, "fi_getinfo(3): FI_NUMERICHOST: names are not looked up");
	fi_freeinfo(h);
}
