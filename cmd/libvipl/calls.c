/*
 * The other functions: arguments that are wrong by themselves are refused here,
 * and everything else is Go's. Handles are looked up twice, here because it is
 * cheap, and in Go because another thread may free one meanwhile.
 */
#include <pthread.h>
#include <signal.h>

#include "_cgo_export.h"
#include "abi.h"
#include "enter.h"
#include "find.h"

/* A call into Go, for the result of the function. */
#define CALL(call) (via_enter() ? via_leave(call) : VIP_ERROR_RESOURCE)

/* Gives up, unless the handle and all pointers are good. */
#define REQUIRE(that)                         \
	do {                                  \
		if (!(that))                  \
			return VIP_INVALID_PARAMETER; \
	} while (0)

#define H(handle) ((uintptr_t)(handle))

static int optional_cq(VIP_CQ_HANDLE cq)
{
	return !cq || via_find(cq, VIA_CQ);
}

VIP_RETURN VipOpenNic(const VIP_CHAR *device, VIP_NIC_HANDLE *nic)
{
	uintptr_t h = 0;
	VIP_RETURN code;
	sigset_t mask;

	REQUIRE(device && nic);
	*nic = NULL;
	if (!via_start_and_enter())
		return VIP_ERROR_RESOURCE;
	pthread_sigmask(SIG_BLOCK, NULL, &mask);
	code = via_leave(viago_open((char *)device, &h));
	pthread_sigmask(SIG_SETMASK, &mask, NULL); /* loading a BPF program unblocks SIGPROF */
	*nic = (void *)h;
	return code;
}

VIP_RETURN VipCloseNic(VIP_NIC_HANDLE nic)
{
	REQUIRE(via_find(nic, VIA_NIC));
	return CALL(viago_close(H(nic)));
}

VIP_RETURN VipQueryNic(VIP_NIC_HANDLE nic, VIP_NIC_ATTRIBUTES *attributes)
{
	REQUIRE(via_find(nic, VIA_NIC) && attributes);
	return CALL(viago_query_nic(H(nic), attributes));
}

VIP_RETURN VipErrorCallback(VIP_NIC_HANDLE nic, VIP_PVOID context, VIP_ERROR_HANDLER handler)
{
	REQUIRE(via_find(nic, VIA_NIC));
	return CALL(viago_error_callback(H(nic), H(context), (uintptr_t)handler));
}

VIP_RETURN VipQuerySystemManagementInfo(VIP_NIC_HANDLE nic, VIP_ULONG type, VIP_PVOID info)
{
	REQUIRE(via_find(nic, VIA_NIC) && info);
	if (type != VIP_SMI_AUTODISCOVERY)
		return VIP_ERROR_NOT_SUPPORTED;
	return CALL(viago_discover(H(nic), (VIP_AUTODISCOVERY_LIST *)info));
}

VIP_RETURN VipCreatePtag(VIP_NIC_HANDLE nic, VIP_PROTECTION_HANDLE *ptag)
{
	REQUIRE(via_find(nic, VIA_NIC) && ptag);
	return CALL(viago_create_ptag(H(nic), (uintptr_t *)ptag));
}

VIP_RETURN VipDestroyPtag(VIP_NIC_HANDLE nic, VIP_PROTECTION_HANDLE ptag)
{
	REQUIRE(via_find(nic, VIA_NIC));
	if (!via_find(ptag, VIA_PTAG))
		return VIP_INVALID_PARAMETER;
	return CALL(viago_destroy_ptag(H(nic), H(ptag)));
}

VIP_RETURN VipRegisterMem(VIP_NIC_HANDLE nic, VIP_PVOID address, VIP_ULONG length,
	VIP_MEM_ATTRIBUTES *attributes, VIP_MEM_HANDLE *handle)
{
	REQUIRE(via_find(nic, VIA_NIC) && address && length && handle);
	return CALL(viago_register(H(nic), H(address), length, attributes, handle));
}

VIP_RETURN VipxAllocMem(VIP_NIC_HANDLE nic, VIP_ULONG length, VIP_MEM_ATTRIBUTES *attributes,
	VIP_PVOID *address, VIP_MEM_HANDLE *handle)
{
	REQUIRE(via_find(nic, VIA_NIC) && address && length && handle);
	return CALL(viago_alloc(H(nic), length, attributes, (uintptr_t *)address, handle));
}

VIP_RETURN VipDeregisterMem(VIP_NIC_HANDLE nic, VIP_PVOID address, VIP_MEM_HANDLE handle)
{
	REQUIRE(via_find(nic, VIA_NIC) && address && handle);
	return CALL(viago_deregister(H(nic), H(address), handle));
}

VIP_RETURN VipQueryMem(VIP_NIC_HANDLE nic, VIP_PVOID address, VIP_MEM_HANDLE handle,
	VIP_MEM_ATTRIBUTES *attributes)
{
	REQUIRE(via_find(nic, VIA_NIC) && address && handle && attributes);
	return CALL(viago_query_mem(H(nic), H(address), handle, attributes));
}

VIP_RETURN VipSetMemAttributes(VIP_NIC_HANDLE nic, VIP_PVOID address, VIP_MEM_HANDLE handle,
	VIP_MEM_ATTRIBUTES *attributes)
{
	REQUIRE(via_find(nic, VIA_NIC) && address && handle && attributes);
	return CALL(viago_set_mem(H(nic), H(address), handle, attributes));
}

VIP_RETURN VipCreateVi(VIP_NIC_HANDLE nic, VIP_VI_ATTRIBUTES *attributes, VIP_CQ_HANDLE send,
	VIP_CQ_HANDLE recv, VIP_VI_HANDLE *vi)
{
	REQUIRE(via_find(nic, VIA_NIC) && attributes && optional_cq(send) && optional_cq(recv) && vi);
	return CALL(viago_create_vi(H(nic), attributes, H(send), H(recv), (uintptr_t *)vi));
}

VIP_RETURN VipDestroyVi(VIP_VI_HANDLE vi)
{
	REQUIRE(via_find(vi, VIA_VI));
	return CALL(viago_destroy_vi(H(vi)));
}

VIP_RETURN VipQueryVi(VIP_VI_HANDLE vi, VIP_VI_STATE *state, VIP_VI_ATTRIBUTES *attributes,
	VIP_BOOLEAN *send_empty, VIP_BOOLEAN *recv_empty)
{
	REQUIRE(via_find(vi, VIA_VI) && (state || attributes || send_empty || recv_empty));
	return CALL(viago_query_vi(H(vi), (int *)state, attributes, send_empty, recv_empty));
}

VIP_RETURN VipxQueryCause(VIP_VI_HANDLE vi, VIP_CHAR *text, VIP_ULONG *length)
{
	REQUIRE(via_find(vi, VIA_VI) && text && length);
	return CALL(viago_query_cause(H(vi), text, length));
}

VIP_RETURN VipSetViAttributes(VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attributes)
{
	REQUIRE(via_find(vi, VIA_VI) && attributes);
	return CALL(viago_set_vi(H(vi), attributes));
}

VIP_RETURN VipConnectWait(VIP_NIC_HANDLE nic, VIP_NET_ADDRESS *local, VIP_ULONG timeout,
	VIP_NET_ADDRESS *remote, VIP_VI_ATTRIBUTES *attributes, VIP_CONN_HANDLE *conn)
{
	REQUIRE(via_find(nic, VIA_NIC) && local && conn);
	return CALL(viago_connect_wait(H(nic), local, timeout, remote, attributes, (uintptr_t *)conn));
}

VIP_RETURN VipxListen(VIP_NIC_HANDLE nic, VIP_NET_ADDRESS *local)
{
	REQUIRE(via_find(nic, VIA_NIC) && local);
	return CALL(viago_listen(H(nic), local));
}

VIP_RETURN VipxUnlisten(VIP_NIC_HANDLE nic, VIP_NET_ADDRESS *local)
{
	REQUIRE(via_find(nic, VIA_NIC) && local);
	return CALL(viago_unlisten(H(nic), local));
}

VIP_RETURN VipConnectAccept(VIP_CONN_HANDLE conn, VIP_VI_HANDLE vi)
{
	REQUIRE(via_find(conn, VIA_CONN) && via_find(vi, VIA_VI));
	return CALL(viago_connect_accept(H(conn), H(vi)));
}

VIP_RETURN VipConnectReject(VIP_CONN_HANDLE conn)
{
	REQUIRE(via_find(conn, VIA_CONN));
	return CALL(viago_connect_reject(H(conn)));
}

VIP_RETURN VipConnectRequest(VIP_VI_HANDLE vi, VIP_NET_ADDRESS *local, VIP_NET_ADDRESS *remote,
	VIP_ULONG timeout, VIP_VI_ATTRIBUTES *attributes)
{
	REQUIRE(via_find(vi, VIA_VI) && local && remote);
	return CALL(viago_connect_request(H(vi), local, remote, timeout, attributes));
}

VIP_RETURN VipDisconnect(VIP_VI_HANDLE vi)
{
	REQUIRE(via_find(vi, VIA_VI));
	return CALL(viago_disconnect(H(vi)));
}

VIP_RETURN VipConnectPeerRequest(VIP_VI_HANDLE vi, VIP_NET_ADDRESS *local, VIP_NET_ADDRESS *remote,
	VIP_ULONG timeout)
{
	REQUIRE(via_find(vi, VIA_VI) && local && remote);
	return CALL(viago_peer_request(H(vi), local, remote, timeout));
}

VIP_RETURN VipConnectPeerDone(VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attributes)
{
	REQUIRE(via_find(vi, VIA_VI));
	return CALL(viago_peer_outcome(H(vi), 0, attributes));
}

VIP_RETURN VipConnectPeerWait(VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attributes)
{
	REQUIRE(via_find(vi, VIA_VI));
	return CALL(viago_peer_outcome(H(vi), 1, attributes));
}

VIP_RETURN VipPostSend(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor, VIP_MEM_HANDLE handle)
{
	REQUIRE(via_find(vi, VIA_VI));
	return CALL(viago_post(H(vi), 0, H(descriptor), handle));
}

VIP_RETURN VipPostRecv(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor, VIP_MEM_HANDLE handle)
{
	REQUIRE(via_find(vi, VIA_VI));
	return CALL(viago_post(H(vi), 1, H(descriptor), handle));
}

VIP_RETURN VipxPostSendLater(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor, VIP_MEM_HANDLE handle)
{
	REQUIRE(via_find(vi, VIA_VI));
	return CALL(viago_post_later(H(vi), H(descriptor), handle));
}

/* Whatever it returns, *count is the number of descriptors that were posted: a program goes on with the next one. */
static VIP_RETURN post_list(VIP_VI_HANDLE vi, int recv, VIP_DESCRIPTOR **descriptors, VIP_ULONG *count, VIP_MEM_HANDLE handle)
{
	VIP_ULONG wanted;

	REQUIRE(count);
	wanted = *count;
	*count = 0;
	REQUIRE(via_find(vi, VIA_VI) && descriptors);
	return CALL(viago_post_list(H(vi), recv, (uintptr_t *)descriptors, wanted, count, handle));
}

VIP_RETURN VipxPostSends(VIP_VI_HANDLE vi, VIP_DESCRIPTOR **descriptors, VIP_ULONG *count, VIP_MEM_HANDLE handle)
{
	return post_list(vi, 0, descriptors, count, handle);
}

VIP_RETURN VipxPostRecvs(VIP_VI_HANDLE vi, VIP_DESCRIPTOR **descriptors, VIP_ULONG *count, VIP_MEM_HANDLE handle)
{
	return post_list(vi, 1, descriptors, count, handle);
}

/*
 * The descriptor is NULL whenever there is none: programs take them off until it is.
 */
static VIP_RETURN wait_for(VIP_VI_HANDLE vi, int recv, VIP_ULONG timeout, VIP_DESCRIPTOR **descriptor)
{
	REQUIRE(descriptor);
	*descriptor = NULL;
	REQUIRE(via_find(vi, VIA_VI));
	return CALL(viago_wait(H(vi), recv, timeout, (uintptr_t *)descriptor));
}

VIP_RETURN VipSendWait(VIP_VI_HANDLE vi, VIP_ULONG timeout, VIP_DESCRIPTOR **descriptor)
{
	return wait_for(vi, 0, timeout, descriptor);
}

VIP_RETURN VipRecvWait(VIP_VI_HANDLE vi, VIP_ULONG timeout, VIP_DESCRIPTOR **descriptor)
{
	return wait_for(vi, 1, timeout, descriptor);
}

VIP_RETURN VipSendNotify(VIP_VI_HANDLE vi, VIP_PVOID context, VIP_VI_CALLBACK handler)
{
	REQUIRE(via_find(vi, VIA_VI) && handler);
	return CALL(viago_notify(H(vi), 0, H(context), (uintptr_t)handler));
}

VIP_RETURN VipRecvNotify(VIP_VI_HANDLE vi, VIP_PVOID context, VIP_VI_CALLBACK handler)
{
	REQUIRE(via_find(vi, VIA_VI) && handler);
	return CALL(viago_notify(H(vi), 1, H(context), (uintptr_t)handler));
}

VIP_RETURN VipCreateCQ(VIP_NIC_HANDLE nic, VIP_ULONG entries, VIP_CQ_HANDLE *cq)
{
	REQUIRE(via_find(nic, VIA_NIC) && cq);
	return CALL(viago_create_cq(H(nic), entries, (uintptr_t *)cq));
}

VIP_RETURN VipResizeCQ(VIP_CQ_HANDLE cq, VIP_ULONG entries)
{
	REQUIRE(via_find(cq, VIA_CQ));
	return CALL(viago_resize_cq(H(cq), entries));
}

VIP_RETURN VipDestroyCQ(VIP_CQ_HANDLE cq)
{
	REQUIRE(via_find(cq, VIA_CQ));
	return CALL(viago_destroy_cq(H(cq)));
}

VIP_RETURN VipCQWait(VIP_CQ_HANDLE cq, VIP_ULONG timeout, VIP_VI_HANDLE *vi, VIP_BOOLEAN *recv)
{
	REQUIRE(via_find(cq, VIA_CQ) && vi && recv);
	return CALL(viago_cq_wait(H(cq), timeout, (uintptr_t *)vi, recv));
}

VIP_RETURN VipCQNotify(VIP_CQ_HANDLE cq, VIP_PVOID context, VIP_CQ_CALLBACK handler)
{
	REQUIRE(via_find(cq, VIA_CQ) && handler);
	return CALL(viago_cq_notify(H(cq), H(context), (uintptr_t)handler));
}

VIP_RETURN VipNSInit(VIP_NIC_HANDLE nic, VIP_PVOID info)
{
	(void)info; /* undefined by VIA; VIA_NAMES and the like configure it */
	REQUIRE(via_find(nic, VIA_NIC));
	return CALL(viago_ns_init(H(nic)));
}

VIP_RETURN VipNSShutdown(VIP_NIC_HANDLE nic)
{
	REQUIRE(via_find(nic, VIA_NIC));
	return CALL(viago_ns_shutdown(H(nic)));
}

VIP_RETURN VipNSGetHostByName(VIP_NIC_HANDLE nic, VIP_CHAR *name, VIP_NET_ADDRESS *address,
	VIP_ULONG index)
{
	REQUIRE(via_find(nic, VIA_NIC) && name && address);
	return CALL(viago_ns_by_name(H(nic), name, address, index));
}

VIP_RETURN VipNSGetHostByAddr(VIP_NIC_HANDLE nic, VIP_NET_ADDRESS *address, VIP_CHAR *name,
	VIP_ULONG *length)
{
	REQUIRE(via_find(nic, VIA_NIC) && address && name && length);
	return CALL(viago_ns_by_address(H(nic), address, name, length));
}
