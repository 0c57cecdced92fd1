/* What libfabric loads: fi_prov_ini, and the variables of the environment. */
#include "viaxdp.h"

char *vx_interface;
int vx_connect_timeout = 10000;

static void cleanup(void)
{
}

struct fi_provider vx_provider = {
	.version = FI_VERSION(1, 0),
	.fi_version = FI_VERSION(1, 17), /* or later, see below */
	.name = "viaxdp",
	.getinfo = vx_getinfo,
	.fabric = vx_fabric_open,
	.cleanup = cleanup,
};

FI_EXT_INI;

struct fi_provider *fi_prov_ini(void)
{
	int timeout;

	/* libfabric asks only providers of the version that the program names, and loads none of a later version than its own. */
	vx_provider.fi_version = fi_version() < FI_VERSION(2, 1) ? fi_version() : FI_VERSION(2, 1);
	fi_param_define(&vx_provider, "iface", FI_PARAM_STRING, "the only interface to report (default: all that can be opened)");
	fi_param_define(&vx_provider, "connect_timeout", FI_PARAM_INT,
		"milliseconds that a host has to answer a connection request (default: %d)", vx_connect_timeout);
	if (!fi_param_get_str(&vx_provider, "iface", &vx_interface) && !*vx_interface)
		vx_interface = NULL;
	if (!fi_param_get_int(&vx_provider, "connect_timeout", &timeout) && timeout > 0)
		vx_connect_timeout = timeout;
	return &vx_provider;
}
