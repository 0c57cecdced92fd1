/*
 * vipl.h - the VI Provider Library of the VI Architecture 1.0, in C.
 *
 * Compile with -I<prefix>/include (or pkg-config --cflags vipl) and link with
 * -lvipl. The header is C89 and C++; its types have VIPL's layout on LP64.
 *
 * Every function returns a VIP_RETURN, may be called from any thread at any
 * time, and has a manual page: man 3 VipPostSend. Timeouts are milliseconds.
 *
 * Apache-2.0.
 */
#ifndef VIPL_H
#define VIPL_H

#ifdef __cplusplus
extern "C" {
#endif

/* IN: the caller fills in the argument; OUT: the function does. */
#ifndef IN
#define IN
#endif
#ifndef OUT
#define OUT
#endif

/* Anonymous members are younger than C89, and programs cast what they like to what they like. */
#if defined(__GNUC__)
#define VIP_ANONYMOUS_ __extension__
#define VIP_ALIAS_ __attribute__((__may_alias__))
#else
#define VIP_ANONYMOUS_
#define VIP_ALIAS_
#endif

/*
 * Basic types.
 */
typedef void *VIP_PVOID;
typedef int VIP_BOOLEAN;
typedef char VIP_CHAR;
typedef unsigned char VIP_UCHAR;
typedef short VIP_SHORT;
typedef unsigned short VIP_USHORT;
typedef long VIP_LONG;
typedef unsigned long VIP_ULONG;
typedef unsigned char VIP_UINT8;
typedef unsigned short VIP_UINT16;
typedef unsigned int VIP_UINT32;
typedef unsigned long VIP_UINT64;

#define VIP_FALSE 0
#define VIP_TRUE 1

/* A timeout that never ends; so is any whose low 32 bits are all ones. */
#define VIP_INFINITE 0xFFFFFFFFUL

/* Handles. NULL is never a valid one, nor is 0 of a memory handle. */
typedef VIP_PVOID VIP_QOS; /* undefined by VIA: NULL */
typedef VIP_PVOID VIP_NIC_HANDLE;
typedef VIP_PVOID VIP_VI_HANDLE;
typedef VIP_PVOID VIP_CQ_HANDLE;
typedef VIP_PVOID VIP_PROTECTION_HANDLE;
typedef VIP_PVOID VIP_CONN_HANDLE;
typedef VIP_UINT32 VIP_MEM_HANDLE;

/*
 * Return codes.
 */
typedef enum _VIP_RETURN {
	VIP_SUCCESS = 0,
	VIP_NOT_DONE = 1,
	VIP_INVALID_PARAMETER = 2,
	VIP_ERROR_RESOURCE = 3,
	VIP_TIMEOUT = 4,
	VIP_REJECT = 5,
	VIP_INVALID_RELIABILITY_LEVEL = 6,
	VIP_INVALID_MTU = 7,
	VIP_INVALID_QOS = 8,
	VIP_INVALID_PTAG = 9,
	VIP_INVALID_RDMAREAD = 10,
	VIP_DESCRIPTOR_ERROR = 11,
	VIP_INVALID_STATE = 12,
	VIP_ERROR_NAMESERVICE = 13,
	VIP_NO_MATCH = 14,
	VIP_NOT_REACHABLE = 15,
	VIP_ERROR_NOT_SUPPORTED = 16,
	VIP_ERROR = 17 /* never returned */
} VIP_RETURN;

/* Codes that not every provider had: programs ask the preprocessor for them. */
#define VIP_NOT_REACHABLE VIP_NOT_REACHABLE
#define VIP_ERROR_NOT_SUPPORTED VIP_ERROR_NOT_SUPPORTED
#define VIP_ERROR VIP_ERROR

/*
 * Descriptors. One lies in registered memory at a multiple of 64 bytes; it has
 * room for two segments, and further ones follow it in memory. While it is
 * posted it belongs to the provider, which writes Status last. What the
 * provider writes is volatile, so that a program may poll Status.
 */
#define VIP_DESCRIPTOR_ALIGNMENT 64

struct VIP_ALIAS_ _VIP_DESCRIPTOR;

typedef union VIP_ALIAS_ _VIP_PVOID64 {
	VIP_UINT64 AddressBits;
	VIP_PVOID Address;
	struct _VIP_DESCRIPTOR *Descriptor;
} VIP_PVOID64;

typedef struct VIP_ALIAS_ _VIP_CONTROL_SEGMENT {
	VIP_PVOID64 Next;          /* the program's own while not posted */
	VIP_MEM_HANDLE NextHandle; /* the same */
	VIP_UINT16 SegCount;       /* segments, the address segment of RDMA included */
	VIP_UINT16 Control;        /* VIP_CONTROL_ bits */
	VIP_UINT32 Reserved;       /* 0 */
	volatile VIP_UINT32 ImmediateData;
	volatile VIP_UINT32 Length; /* send: sum of the segments; receive: bytes that came */
	volatile VIP_UINT32 Status; /* VIP_STATUS_ bits */
} VIP_CONTROL_SEGMENT;

/* Memory of the peer, first in the descriptor of an RDMA operation. */
typedef struct VIP_ALIAS_ _VIP_ADDRESS_SEGMENT {
	VIP_PVOID64 Data;      /* address in the peer */
	VIP_MEM_HANDLE Handle; /* its memory handle there */
	VIP_UINT32 Reserved;   /* 0 */
} VIP_ADDRESS_SEGMENT;

typedef struct VIP_ALIAS_ _VIP_DATA_SEGMENT {
	VIP_PVOID64 Data;
	VIP_MEM_HANDLE Handle;
	VIP_UINT32 Length; /* bytes, may be 0 */
} VIP_DATA_SEGMENT;

typedef union VIP_ALIAS_ _VIP_DESCRIPTOR_SEGMENT {
	VIP_ADDRESS_SEGMENT Remote;
	VIP_DATA_SEGMENT Local;
} VIP_DESCRIPTOR_SEGMENT;

/*
 * Two spellings are in use: CS and DS[i].Local, Control and Data[i]. In the second one
 * the address segment of RDMA is a Data[0] whose length is reserved and must be 0.
 */
VIP_ANONYMOUS_ typedef struct VIP_ALIAS_ _VIP_DESCRIPTOR {
	VIP_ANONYMOUS_ union {
		VIP_CONTROL_SEGMENT CS;
		VIP_CONTROL_SEGMENT Control;
	};
	VIP_ANONYMOUS_ union {
		VIP_DESCRIPTOR_SEGMENT DS[2];
		VIP_DATA_SEGMENT Data[2];
	};
} VIP_DESCRIPTOR;

/* Control. */
#define VIP_CONTROL_OP_SENDRECV 0x0000
#define VIP_CONTROL_OP_RDMAWRITE 0x0001
#define VIP_CONTROL_OP_RDMAREAD 0x0002
#define VIP_CONTROL_OP_RESERVED 0x0003
#define VIP_CONTROL_OP_MASK 0x0003
#define VIP_CONTROL_IMMEDIATE 0x0004
#define VIP_CONTROL_QFENCE 0x0008
#define VIP_CONTROL_RESERVED 0xFFF0

/* Status. */
#define VIP_STATUS_DONE 0x00000001
#define VIP_STATUS_FORMAT_ERROR 0x00000002
#define VIP_STATUS_PROTECTION_ERROR 0x00000004
#define VIP_STATUS_LENGTH_ERROR 0x00000008
#define VIP_STATUS_PARTIAL_ERROR 0x00000010
#define VIP_STATUS_DESC_FLUSHED_ERROR 0x00000020
#define VIP_STATUS_TRANSPORT_ERROR 0x00000040
#define VIP_STATUS_RDMA_PROT_ERROR 0x00000080
#define VIP_STATUS_REMOTE_DESC_ERROR 0x00000100
#define VIP_STATUS_ERROR_MASK 0x000001FE
#define VIP_STATUS_OP_SEND 0x00000000
#define VIP_STATUS_OP_RECEIVE 0x00010000
#define VIP_STATUS_OP_RDMA_WRITE 0x00020000
#define VIP_STATUS_OP_REMOTE_RDMA_WRITE 0x00030000
#define VIP_STATUS_OP_RDMA_READ 0x00040000
#define VIP_STATUS_OP_MASK 0x00070000
#define VIP_STATUS_IMMEDIATE 0x00080000
#define VIP_STATUS_RESERVED 0xFFF0FE00

/*
 * Addresses. HostAddress has HostAddressLen bytes, 4 or 16 of IP, or 6 with
 * VIA_ADDRESS_LEN=6 (4 of IPv4, and zeros), and DiscriminatorLen bytes of
 * discriminator behind them.
 */
typedef struct VIP_ALIAS_ _VIP_NET_ADDRESS {
	VIP_UINT16 HostAddressLen;
	VIP_UINT16 DiscriminatorLen;
	VIP_UINT8 HostAddress[1];
} VIP_NET_ADDRESS;

/*
 * NICs.
 */
typedef VIP_USHORT VIP_RELIABILITY_LEVEL;

#define VIP_SERVICE_UNRELIABLE 0x01
#define VIP_SERVICE_RELIABLE_DELIVERY 0x02
#define VIP_SERVICE_RELIABLE_RECEPTION 0x04

typedef struct _VIP_NIC_ATTRIBUTES {
	VIP_CHAR Name[64];
	VIP_ULONG HardwareVersion;
	VIP_ULONG ProviderVersion;
	VIP_UINT16 NicAddressLen;
	const VIP_UINT8 *LocalNicAddress; /* valid until VipCloseNic */
	VIP_BOOLEAN ThreadSafe;
	VIP_UINT16 MaxDiscriminatorLen;
	VIP_ULONG MaxRegisterBytes;
	VIP_ULONG MaxRegisterRegions;
	VIP_ULONG MaxRegisterBlockBytes;
	VIP_ULONG MaxVI;
	VIP_ULONG MaxDescriptorsPerQueue;
	VIP_ULONG MaxSegmentsPerDesc;
	VIP_ULONG MaxCQ;
	VIP_ULONG MaxCQEntries;
	VIP_ULONG MaxTransferSize;
	VIP_ULONG NativeMTU;
	VIP_ULONG MaxPtags;
	VIP_RELIABILITY_LEVEL ReliabilityLevelSupport;
	VIP_RELIABILITY_LEVEL RDMAReadSupport;
} VIP_NIC_ATTRIBUTES;

/*
 * Memory and VIs.
 */
typedef struct _VIP_MEM_ATTRIBUTES {
	VIP_PROTECTION_HANDLE Ptag; /* NULL: every VI of the NIC handle may use it */
	VIP_BOOLEAN EnableRdmaWrite;
	VIP_BOOLEAN EnableRdmaRead;
} VIP_MEM_ATTRIBUTES;

typedef enum _VIP_VI_STATE {
	VIP_STATE_IDLE = 0,
	VIP_STATE_CONNECTED = 1,
	VIP_STATE_CONNECT_PENDING = 2,
	VIP_STATE_ERROR = 3
} VIP_VI_STATE;

typedef struct _VIP_VI_ATTRIBUTES {
	VIP_RELIABILITY_LEVEL ReliabilityLevel;
	VIP_ULONG MaxTransferSize;
	VIP_QOS QoS;
	VIP_PROTECTION_HANDLE Ptag; /* NULL: any of the NIC handle */
	VIP_BOOLEAN EnableRdmaWrite;
	VIP_BOOLEAN EnableRdmaRead;
} VIP_VI_ATTRIBUTES;

/*
 * Asynchronous errors.
 */
typedef enum _VIP_RESOURCE_CODE {
	VIP_RESOURCE_NIC = 0,
	VIP_RESOURCE_VI = 1,
	VIP_RESOURCE_CQ = 2,
	VIP_RESOURCE_DESCRIPTOR = 3
} VIP_RESOURCE_CODE;

typedef enum _VIP_ERROR_CODE {
	VIP_ERROR_POST_DESC = 0,
	VIP_ERROR_CONN_LOST = 1,
	VIP_ERROR_RECVQ_EMPTY = 2,
	VIP_ERROR_VI_OVERRUN = 3,
	VIP_ERROR_RDMAW_PROT = 4,
	VIP_ERROR_RDMAW_DATA = 5,
	VIP_ERROR_RDMAW_ABORT = 6,
	VIP_ERROR_RDMAR_PROT = 7,
	VIP_ERROR_COMP_PROT = 8,
	VIP_ERROR_RDMA_TRANSPORT = 9,
	VIP_ERROR_CATASTROPHIC = 10
} VIP_ERROR_CODE;

typedef struct _VIP_ERROR_DESCRIPTOR {
	VIP_NIC_HANDLE NicHandle;
	VIP_VI_HANDLE ViHandle;
	VIP_CQ_HANDLE CQHandle;
	VIP_DESCRIPTOR *DescriptorPtr;
	VIP_ULONG OpCode; /* a VIP_STATUS_OP_ value */
	VIP_RESOURCE_CODE ResourceCode;
	VIP_ERROR_CODE ErrorCode;
} VIP_ERROR_DESCRIPTOR;

/* Handlers. They run on a thread of the library and may call all of it. */
typedef void (*VIP_ERROR_HANDLER)(VIP_PVOID Context, VIP_ERROR_DESCRIPTOR *ErrorDesc);
typedef void (*VIP_VI_CALLBACK)(VIP_PVOID Context, VIP_NIC_HANDLE NicHandle,
	VIP_VI_HANDLE ViHandle, VIP_DESCRIPTOR *DescriptorPtr);
typedef void (*VIP_CQ_CALLBACK)(VIP_PVOID Context, VIP_NIC_HANDLE NicHandle,
	VIP_VI_HANDLE ViHandle, VIP_BOOLEAN RecvQueue);

/* System management. */
#define VIP_SMI_AUTODISCOVERY ((VIP_ULONG) 1)

typedef struct _VIP_AUTODISCOVERY_LIST {
	VIP_ULONG NumberOfHops;        /* in: the farthest to list; out: of the farthest listed */
	VIP_NET_ADDRESS **ADAddrArray; /* addresses to fill in, with room for 16 bytes of host each */
	VIP_ULONG NumAdAddrs;          /* in: their number; out: how many hosts there are */
} VIP_AUTODISCOVERY_LIST;

/*
 * NICs.
 */
VIP_RETURN VipOpenNic(IN const VIP_CHAR *DeviceName, OUT VIP_NIC_HANDLE *NicHandle);
VIP_RETURN VipCloseNic(IN VIP_NIC_HANDLE NicHandle);
VIP_RETURN VipQueryNic(IN VIP_NIC_HANDLE NicHandle, OUT VIP_NIC_ATTRIBUTES *NicAttribs);
VIP_RETURN VipErrorCallback(IN VIP_NIC_HANDLE NicHandle, IN VIP_PVOID Context,
	IN VIP_ERROR_HANDLER Handler);
VIP_RETURN VipQuerySystemManagementInfo(IN VIP_NIC_HANDLE NicHandle, IN VIP_ULONG InfoType,
	OUT VIP_PVOID SysManInfo);

/*
 * Memory. Without attributes, NULL, it has no tag and no peer may reach it.
 */
VIP_RETURN VipCreatePtag(IN VIP_NIC_HANDLE NicHandle, OUT VIP_PROTECTION_HANDLE *Ptag);
VIP_RETURN VipDestroyPtag(IN VIP_NIC_HANDLE NicHandle, IN VIP_PROTECTION_HANDLE Ptag);
VIP_RETURN VipRegisterMem(IN VIP_NIC_HANDLE NicHandle, IN VIP_PVOID VirtualAddress,
	IN VIP_ULONG Length, IN VIP_MEM_ATTRIBUTES *MemAttribs, OUT VIP_MEM_HANDLE *MemoryHandle);
VIP_RETURN VipDeregisterMem(IN VIP_NIC_HANDLE NicHandle, IN VIP_PVOID VirtualAddress,
	IN VIP_MEM_HANDLE MemoryHandle);
VIP_RETURN VipQueryMem(IN VIP_NIC_HANDLE NicHandle, IN VIP_PVOID VirtualAddress,
	IN VIP_MEM_HANDLE MemoryHandle, OUT VIP_MEM_ATTRIBUTES *MemAttribs);
VIP_RETURN VipSetMemAttributes(IN VIP_NIC_HANDLE NicHandle, IN VIP_PVOID VirtualAddress,
	IN VIP_MEM_HANDLE MemoryHandle, IN VIP_MEM_ATTRIBUTES *MemAttribs);

/*
 * VIs.
 */
VIP_RETURN VipCreateVi(IN VIP_NIC_HANDLE NicHandle, IN VIP_VI_ATTRIBUTES *ViAttribs,
	IN VIP_CQ_HANDLE SendCQHandle, IN VIP_CQ_HANDLE RecvCQHandle, OUT VIP_VI_HANDLE *ViHandle);
VIP_RETURN VipDestroyVi(IN VIP_VI_HANDLE ViHandle);
VIP_RETURN VipQueryVi(IN VIP_VI_HANDLE ViHandle, OUT VIP_VI_STATE *State,
	OUT VIP_VI_ATTRIBUTES *ViAttribs, OUT VIP_BOOLEAN *ViSendQEmpty,
	OUT VIP_BOOLEAN *ViRecvQEmpty);
VIP_RETURN VipSetViAttributes(IN VIP_VI_HANDLE ViHandle, IN VIP_VI_ATTRIBUTES *ViAttribs);

/*
 * Connections.
 */
VIP_RETURN VipConnectWait(IN VIP_NIC_HANDLE NicHandle, IN VIP_NET_ADDRESS *LocalAddr,
	IN VIP_ULONG Timeout, OUT VIP_NET_ADDRESS *RemoteAddr,
	OUT VIP_VI_ATTRIBUTES *RemoteViAttribs, OUT VIP_CONN_HANDLE *ConnHandle);
VIP_RETURN VipConnectAccept(IN VIP_CONN_HANDLE ConnHandle, IN VIP_VI_HANDLE ViHandle);
VIP_RETURN VipConnectReject(IN VIP_CONN_HANDLE ConnHandle);
VIP_RETURN VipConnectRequest(IN VIP_VI_HANDLE ViHandle, IN VIP_NET_ADDRESS *LocalAddr,
	IN VIP_NET_ADDRESS *RemoteAddr, IN VIP_ULONG Timeout,
	OUT VIP_VI_ATTRIBUTES *RemoteViAttribs);
VIP_RETURN VipDisconnect(IN VIP_VI_HANDLE ViHandle);
VIP_RETURN VipConnectPeerRequest(IN VIP_VI_HANDLE ViHandle, IN VIP_NET_ADDRESS *LocalAddr,
	IN VIP_NET_ADDRESS *RemoteAddr, IN VIP_ULONG Timeout);
VIP_RETURN VipConnectPeerDone(IN VIP_VI_HANDLE ViHandle, OUT VIP_VI_ATTRIBUTES *RemoteViAttribs);
VIP_RETURN VipConnectPeerWait(IN VIP_VI_HANDLE ViHandle, OUT VIP_VI_ATTRIBUTES *RemoteViAttribs);

/*
 * Work queues.
 */
VIP_RETURN VipPostSend(IN VIP_VI_HANDLE ViHandle, IN VIP_DESCRIPTOR *DescriptorPtr,
	IN VIP_MEM_HANDLE MemoryHandle);
VIP_RETURN VipSendDone(IN VIP_VI_HANDLE ViHandle, OUT VIP_DESCRIPTOR **DescriptorPtr);
VIP_RETURN VipSendWait(IN VIP_VI_HANDLE ViHandle, IN VIP_ULONG Timeout,
	OUT VIP_DESCRIPTOR **DescriptorPtr);
VIP_RETURN VipSendNotify(IN VIP_VI_HANDLE ViHandle, IN VIP_PVOID Context,
	IN VIP_VI_CALLBACK Handler);
VIP_RETURN VipPostRecv(IN VIP_VI_HANDLE ViHandle, IN VIP_DESCRIPTOR *DescriptorPtr,
	IN VIP_MEM_HANDLE MemoryHandle);
VIP_RETURN VipRecvDone(IN VIP_VI_HANDLE ViHandle, OUT VIP_DESCRIPTOR **DescriptorPtr);
VIP_RETURN VipRecvWait(IN VIP_VI_HANDLE ViHandle, IN VIP_ULONG Timeout,
	OUT VIP_DESCRIPTOR **DescriptorPtr);
VIP_RETURN VipRecvNotify(IN VIP_VI_HANDLE ViHandle, IN VIP_PVOID Context,
	IN VIP_VI_CALLBACK Handler);

/*
 * Completion queues.
 */
VIP_RETURN VipCreateCQ(IN VIP_NIC_HANDLE NicHandle, IN VIP_ULONG EntryCount,
	OUT VIP_CQ_HANDLE *CQHandle);
VIP_RETURN VipResizeCQ(IN VIP_CQ_HANDLE CQHandle, IN VIP_ULONG EntryCount);
VIP_RETURN VipDestroyCQ(IN VIP_CQ_HANDLE CQHandle);
VIP_RETURN VipCQDone(IN VIP_CQ_HANDLE CQHandle, OUT VIP_VI_HANDLE *ViHandle,
	OUT VIP_BOOLEAN *RecvQueue);
VIP_RETURN VipCQWait(IN VIP_CQ_HANDLE CQHandle, IN VIP_ULONG Timeout,
	OUT VIP_VI_HANDLE *ViHandle, OUT VIP_BOOLEAN *RecvQueue);
VIP_RETURN VipCQNotify(IN VIP_CQ_HANDLE CQHandle, IN VIP_PVOID Context,
	IN VIP_CQ_CALLBACK Handler);

/*
 * The name service.
 */
VIP_RETURN VipNSInit(IN VIP_NIC_HANDLE NicHandle, IN VIP_PVOID NSInitInfo);
VIP_RETURN VipNSShutdown(IN VIP_NIC_HANDLE NicHandle);
VIP_RETURN VipNSGetHostByName(IN VIP_NIC_HANDLE NicHandle, IN VIP_CHAR *Name,
	OUT VIP_NET_ADDRESS *Address, IN VIP_ULONG NameIndex);
VIP_RETURN VipNSGetHostByAddr(IN VIP_NIC_HANDLE NicHandle, IN VIP_NET_ADDRESS *Address,
	OUT VIP_CHAR *Name, IN OUT VIP_ULONG *NameLen);

/*
 * Beyond VIPL. VipxAllocMem registers memory that it takes from the NIC's arena,
 * which long frames are sent from without a copy; VipDeregisterMem frees it.
 * VipxPoll makes progress, for programs that look at memory instead of a queue.
 * VipxQueryCause tells in words why the VI's last connection broke. Between VipxListen
 * and VipxUnlisten requests wait for VipConnectWait, and are not refused.
 * VipxPostSendLater posts a send without the doorbell, which the next VipPostSend rings.
 * VipxPostSends and VipxPostRecvs post several sends, with one doorbell, or receives, and
 * set Count to how many they have posted.
 */
VIP_RETURN VipxAllocMem(IN VIP_NIC_HANDLE NicHandle, IN VIP_ULONG Length,
	IN VIP_MEM_ATTRIBUTES *MemAttribs, OUT VIP_PVOID *VirtualAddress,
	OUT VIP_MEM_HANDLE *MemoryHandle);
VIP_RETURN VipxPoll(IN VIP_NIC_HANDLE NicHandle);
VIP_RETURN VipxPostSendLater(IN VIP_VI_HANDLE ViHandle, IN VIP_DESCRIPTOR *Descriptor,
	IN VIP_MEM_HANDLE MemoryHandle);
VIP_RETURN VipxPostSends(IN VIP_VI_HANDLE ViHandle, IN VIP_DESCRIPTOR **Descriptors,
	IN OUT VIP_ULONG *Count, IN VIP_MEM_HANDLE MemoryHandle);
VIP_RETURN VipxPostRecvs(IN VIP_VI_HANDLE ViHandle, IN VIP_DESCRIPTOR **Descriptors,
	IN OUT VIP_ULONG *Count, IN VIP_MEM_HANDLE MemoryHandle);
VIP_RETURN VipxQueryCause(IN VIP_VI_HANDLE ViHandle, OUT VIP_CHAR *Text,
	IN OUT VIP_ULONG *TextLen);
VIP_RETURN VipxListen(IN VIP_NIC_HANDLE NicHandle, IN VIP_NET_ADDRESS *LocalAddr);
VIP_RETURN VipxUnlisten(IN VIP_NIC_HANDLE NicHandle, IN VIP_NET_ADDRESS *LocalAddr);

/*
 * The layout that programs were compiled against.
 */
#define VIP_ASSERT_(name, that) typedef char vip_assert_##name[(that) ? 1 : -1]
#define VIP_SIZE_(name, type, size) VIP_ASSERT_(size_##name, sizeof(type) == (size))
#define VIP_OFFSET_(type, member, offset) \
	VIP_ASSERT_(type##_##member, __builtin_offsetof(type, member) == (offset))

VIP_SIZE_(pointer, void *, 8);
VIP_SIZE_(ulong, VIP_ULONG, 8);
VIP_SIZE_(uint32, VIP_UINT32, 4);
VIP_SIZE_(mem_handle, VIP_MEM_HANDLE, 4);
VIP_SIZE_(level, VIP_RELIABILITY_LEVEL, 2);
VIP_SIZE_(return_code, VIP_RETURN, 4);
VIP_SIZE_(state, VIP_VI_STATE, 4);
VIP_SIZE_(resource_code, VIP_RESOURCE_CODE, 4);
VIP_SIZE_(error_code, VIP_ERROR_CODE, 4);
VIP_SIZE_(pvoid64, VIP_PVOID64, 8);
VIP_SIZE_(control_segment, VIP_CONTROL_SEGMENT, 32);
VIP_OFFSET_(VIP_CONTROL_SEGMENT, Next, 0);
VIP_OFFSET_(VIP_CONTROL_SEGMENT, NextHandle, 8);
VIP_OFFSET_(VIP_CONTROL_SEGMENT, SegCount, 12);
VIP_OFFSET_(VIP_CONTROL_SEGMENT, Control, 14);
VIP_OFFSET_(VIP_CONTROL_SEGMENT, Reserved, 16);
VIP_OFFSET_(VIP_CONTROL_SEGMENT, ImmediateData, 20);
VIP_OFFSET_(VIP_CONTROL_SEGMENT, Length, 24);
VIP_OFFSET_(VIP_CONTROL_SEGMENT, Status, 28);
VIP_SIZE_(address_segment, VIP_ADDRESS_SEGMENT, 16);
VIP_OFFSET_(VIP_ADDRESS_SEGMENT, Data, 0);
VIP_OFFSET_(VIP_ADDRESS_SEGMENT, Handle, 8);
VIP_OFFSET_(VIP_ADDRESS_SEGMENT, Reserved, 12);
VIP_SIZE_(data_segment, VIP_DATA_SEGMENT, 16);
VIP_OFFSET_(VIP_DATA_SEGMENT, Data, 0);
VIP_OFFSET_(VIP_DATA_SEGMENT, Handle, 8);
VIP_OFFSET_(VIP_DATA_SEGMENT, Length, 12);
VIP_SIZE_(descriptor_segment, VIP_DESCRIPTOR_SEGMENT, 16);
VIP_SIZE_(descriptor, VIP_DESCRIPTOR, 64);
VIP_OFFSET_(VIP_DESCRIPTOR, CS, 0);
VIP_OFFSET_(VIP_DESCRIPTOR, Control, 0);
VIP_OFFSET_(VIP_DESCRIPTOR, DS, 32);
VIP_OFFSET_(VIP_DESCRIPTOR, Data, 32);
VIP_SIZE_(net_address, VIP_NET_ADDRESS, 6);
VIP_OFFSET_(VIP_NET_ADDRESS, HostAddressLen, 0);
VIP_OFFSET_(VIP_NET_ADDRESS, DiscriminatorLen, 2);
VIP_OFFSET_(VIP_NET_ADDRESS, HostAddress, 4);
VIP_SIZE_(nic_attributes, VIP_NIC_ATTRIBUTES, 200);
VIP_OFFSET_(VIP_NIC_ATTRIBUTES, Name, 0);
VIP_OFFSET_(VIP_NIC_ATTRIBUTES, HardwareVersion, 64);
VIP_OFFSET_(VIP_NIC_ATTRIBUTES, ProviderVersion, 72);
VIP_OFFSET_(VIP_NIC_ATTRIBUTES, NicAddressLen, 80);
VIP_OFFSET_(VIP_NIC_ATTRIBUTES, LocalNicAddress, 88);
VIP_OFFSET_(VIP_NIC_ATTRIBUTES, ThreadSafe, 96);
VIP_OFFSET_(VIP_NIC_ATTRIBUTES, MaxDiscriminatorLen, 100);
VIP_OFFSET_(VIP_NIC_ATTRIBUTES, MaxRegisterBytes, 104);
VIP_OFFSET_(VIP_NIC_ATTRIBUTES, MaxRegisterRegions, 112);
VIP_OFFSET_(VIP_NIC_ATTRIBUTES, MaxRegisterBlockBytes, 120);
VIP_OFFSET_(VIP_NIC_ATTRIBUTES, MaxVI, 128);
VIP_OFFSET_(VIP_NIC_ATTRIBUTES, MaxDescriptorsPerQueue, 136);
VIP_OFFSET_(VIP_NIC_ATTRIBUTES, MaxSegmentsPerDesc, 144);
VIP_OFFSET_(VIP_NIC_ATTRIBUTES, MaxCQ, 152);
VIP_OFFSET_(VIP_NIC_ATTRIBUTES, MaxCQEntries, 160);
VIP_OFFSET_(VIP_NIC_ATTRIBUTES, MaxTransferSize, 168);
VIP_OFFSET_(VIP_NIC_ATTRIBUTES, NativeMTU, 176);
VIP_OFFSET_(VIP_NIC_ATTRIBUTES, MaxPtags, 184);
VIP_OFFSET_(VIP_NIC_ATTRIBUTES, ReliabilityLevelSupport, 192);
VIP_OFFSET_(VIP_NIC_ATTRIBUTES, RDMAReadSupport, 194);
VIP_SIZE_(vi_attributes, VIP_VI_ATTRIBUTES, 40);
VIP_OFFSET_(VIP_VI_ATTRIBUTES, ReliabilityLevel, 0);
VIP_OFFSET_(VIP_VI_ATTRIBUTES, MaxTransferSize, 8);
VIP_OFFSET_(VIP_VI_ATTRIBUTES, QoS, 16);
VIP_OFFSET_(VIP_VI_ATTRIBUTES, Ptag, 24);
VIP_OFFSET_(VIP_VI_ATTRIBUTES, EnableRdmaWrite, 32);
VIP_OFFSET_(VIP_VI_ATTRIBUTES, EnableRdmaRead, 36);
VIP_SIZE_(mem_attributes, VIP_MEM_ATTRIBUTES, 16);
VIP_OFFSET_(VIP_MEM_ATTRIBUTES, Ptag, 0);
VIP_OFFSET_(VIP_MEM_ATTRIBUTES, EnableRdmaWrite, 8);
VIP_OFFSET_(VIP_MEM_ATTRIBUTES, EnableRdmaRead, 12);
VIP_SIZE_(error_descriptor, VIP_ERROR_DESCRIPTOR, 48);
VIP_OFFSET_(VIP_ERROR_DESCRIPTOR, NicHandle, 0);
VIP_OFFSET_(VIP_ERROR_DESCRIPTOR, ViHandle, 8);
VIP_OFFSET_(VIP_ERROR_DESCRIPTOR, CQHandle, 16);
VIP_OFFSET_(VIP_ERROR_DESCRIPTOR, DescriptorPtr, 24);
VIP_OFFSET_(VIP_ERROR_DESCRIPTOR, OpCode, 32);
VIP_OFFSET_(VIP_ERROR_DESCRIPTOR, ResourceCode, 40);
VIP_OFFSET_(VIP_ERROR_DESCRIPTOR, ErrorCode, 44);

#ifdef __cplusplus
}
#endif

#endif
