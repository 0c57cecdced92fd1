/*
 * viaxdp.h - what the files of the provider share.
 *
 * The parts, from below: a vx_nic is an open interface; a vx_link a VI with its buffers, its
 * credits and the messages of link.h on it; a vx_ep an endpoint, which has operations and, once it
 * connects, a link. fi_fabric and fi_domain have little to do. Everything of an interface
 * is under the lock of its vx_nic, except event queues, which have a lock of their own that is
 * taken after it.
 */
#ifndef VIAXDP_H
#define VIAXDP_H

#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>

#include <vipl.h>

#define VX_OUTER(pointer, type, member) ((type *)((char *)(pointer) - offsetof(type, member)))

/* What fi_getinfo reports and what calls check. */
enum {
	VX_TX_SIZE = 1024,    /* transmit operations of an endpoint */
	VX_RX_SIZE = 1024,    /* receives of an endpoint */
	VX_RDM_SIZE = 16384,  /* the same of FI_EP_RDM, each */
	VX_IOV = 4,           /* buffers of an operation */
	VX_RMA_IOV = 4,       /* remote buffers of an operation */
	VX_INJECT = 4096,     /* bytes of fi_inject */
	VX_CM_DATA = 256,     /* bytes of a program's data in connect, accept and reject */
	VX_MULTI_RECV = 4096, /* FI_OPT_MIN_MULTI_RECV, until the program sets it */
	VX_CQ_SIZE = 256,     /* entries that a CQ has room for at first; it grows */
};

#define VX_MAX_MESSAGE ((size_t)1 << 40)
#define VX_PROTOCOL (1U << 31 | 0x5658) /* a provider's own */
#define VX_RDM_PROTOCOL (1U << 31 | 0x5659)

/* What libfabric 2 calls deprecated, and programs of version 1 ask for: mr_mode and comp_order. */
enum { VX_MR_UNSPEC = 0, VX_MR_BASIC = 1, VX_MR_SCALABLE = 2 };
#define VX_ORDER_NONE 0
#define VX_ORDER_STRICT 0x1ff

#define VX_TX_CAPS (FI_MSG | FI_RMA | FI_SEND | FI_READ | FI_WRITE)
#define VX_RX_CAPS (FI_MSG | FI_RMA | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_MULTI_RECV)
#define VX_DOMAIN_CAPS (FI_LOCAL_COMM | FI_REMOTE_COMM)
#define VX_CAPS (VX_TX_CAPS | VX_RX_CAPS | FI_FENCE | VX_DOMAIN_CAPS)
#define VX_LEVELS (FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE)
#define VX_TX_FLAGS (VX_LEVELS | FI_COMPLETION | FI_INJECT | FI_FENCE | FI_MORE | FI_REMOTE_CQ_DATA)
#define VX_RX_FLAGS (FI_COMPLETION | FI_MULTI_RECV | FI_MORE | FI_TRANSMIT_COMPLETE) /* the last is as usual */
#define VX_ORDER (FI_ORDER_SAS | FI_ORDER_SAW | FI_ORDER_WAW | FI_ORDER_WAS | FI_ORDER_RMA_WAW)
#define VX_RDM_TX_CAPS (VX_TX_CAPS | FI_TAGGED)
#define VX_RDM_RX_CAPS (VX_RX_CAPS | FI_TAGGED | FI_DIRECTED_RECV | FI_SOURCE)
#define VX_RDM_CAPS (VX_CAPS | VX_RDM_TX_CAPS | VX_RDM_RX_CAPS)
/* Without FI_ORDER_WAS: the peer reads a long message after it has matched, so a later write may be earlier. */
#define VX_RDM_ORDER (VX_ORDER & ~FI_ORDER_WAS)
#define VX_MR_MODE (FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY)

extern struct fi_provider vx_provider;

#define VX_WARN(subsystem, ...) FI_WARN(&vx_provider, subsystem, __VA_ARGS__)
#define VX_INFO(subsystem, ...) FI_INFO(&vx_provider, subsystem, __VA_ARGS__)

/* FI_VIAXDP_* of the environment, see prov.c. */
extern char *vx_interface;       /* the only one to report; NULL: all */
extern int vx_connect_timeout;   /* milliseconds */

union vx_addr {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

/* address.c */
size_t vx_addr_len(const union vx_addr *a);           /* 0: neither IPv4 nor IPv6 */
int vx_addr_get(union vx_addr *out, const void *sockaddr, size_t length);
uint16_t vx_addr_port(const union vx_addr *a);        /* in host byte order */
void vx_addr_set_port(union vx_addr *a, uint16_t port);
int vx_addr_same_host(const union vx_addr *a, const union vx_addr *b);
int vx_addr_any(const union vx_addr *a);
int vx_addr_compare(const union vx_addr *a, const union vx_addr *b); /* as memcmp: address and port */
int vx_addr_resolve(const char *node, const char *service, uint64_t flags, uint32_t format, union vx_addr *out); /* as fi_getinfo */
int vx_addr_copy(const union vx_addr *a, void *out, size_t *length); /* as fi_getname */

/* iov.c: from byte at of the list on */
enum vx_direction { VX_FROM_LIST, VX_TO_LIST };

void vx_iov_copy(const struct iovec *iov, unsigned count, size_t at, void *flat, size_t length, enum vx_direction way);

/* wait.c: the descriptor on which programs and blocking reads wait, see there. */
struct vx_wait {
	enum fi_wait_obj object;
	int fd;           /* -1: FI_WAIT_NONE */
	unsigned waiters; /* threads that block */
	int polled;       /* fi_trywait has been called: the program may poll fd */
	int armed;        /* progress is watched, from fi_trywait until a read finds fd signaled */
	int signaled;     /* fd is readable */
	int interrupted;  /* fi_cq_signal, while no thread blocks */
};

int vx_wait_open(struct vx_wait *w, enum fi_wait_obj object);
void vx_wait_close(struct vx_wait *w);
void vx_wait_signal(struct vx_wait *w);  /* something is there to read */
void vx_wait_clear(struct vx_wait *w);
int vx_wait_control(struct vx_wait *w, int command, void *arg);
int vx_wait_block(struct vx_wait *w, pthread_mutex_t *lock, int64_t end); /* 0: the time is over; -1: a signal */
int vx_wait_arm(struct vx_wait *w);    /* fi_trywait; 1: the caller has to watch progress from here on */
int vx_wait_disarm(struct vx_wait *w); /* a read; 1: the caller no longer has to */

/* For what is under the lock of a NIC. */
struct vx_nic;
void vx_wait_enter(struct vx_wait *w, struct vx_nic *nic); /* this thread blocks */
void vx_wait_leave(struct vx_wait *w, struct vx_nic *nic);
int64_t vx_now(void);                    /* nanoseconds */
int64_t vx_deadline(int timeout);        /* milliseconds from now on; negative: never */

/* nic.c */
struct vx_link;

struct vx_nic {
	struct vx_nic *next;
	char name[IFNAMSIZ];
	unsigned refs;
	pthread_mutex_t lock; /* guards what follows, and all objects on the interface */
	VIP_NIC_HANDLE handle;
	VIP_CQ_HANDLE received, sent; /* sends that complete can wait: only RDMA operations are reported then */
	size_t frame;      /* bytes of a message in a frame over IPv4 */
	unsigned watchers; /* wait for progress that a thread of libvipl has to make */
	int received_armed, sent_armed; /* such a thread will be called for the next completion */
	unsigned rdma;     /* descriptors of RDMA operations that have not completed */
	unsigned polls;
	struct vx_link *links[256];
	struct vx_link *spent; /* those with receives to post again */
	int idle;              /* polls without a completion */
};

int vx_nic_open(const char *name, struct vx_nic **out);
void vx_nic_close(struct vx_nic *nic);
struct vx_cq;
void vx_nic_progress(struct vx_nic *nic);         /* under the lock */
void vx_nic_poll(struct vx_nic *nic, const struct vx_cq *cq); /* the same, until cq has an entry */
void vx_nic_watch(struct vx_nic *nic, int change); /* under the lock */
void vx_nic_spent(struct vx_link *link);          /* under the lock: it has receives to post again */
void vx_nic_reposted(struct vx_link *link);       /* under the lock: it has none any more */
void vx_progress_all(void);                       /* of all interfaces */
void vx_watch_all(int change);                    /* the same for those that are opened later */
int vx_errno(VIP_RETURN code);                    /* a positive fabric errno */

/* fabric.c */
struct vx_fabric {
	struct fid_fabric fid;
	struct vx_fabric *next; /* that is open */
	unsigned refs;
	char *name;
};

int vx_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
	const struct fi_info *hints, struct fi_info **info);
int vx_info_source(const struct fi_info *info, char *interface, union vx_addr *out); /* or one of the interface */
int vx_fabric_name(const struct fid_fabric *fabric, char *name, size_t room); /* 0: it is not open, or another provider's */
int vx_fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);

/* domain.c, mr.c */
struct vx_domain {
	struct fid_domain fid;
	struct vx_domain *next; /* that is open */
	struct vx_fabric *fabric;
	struct vx_nic *nic;
	unsigned refs; /* under the lock of nic */
	int automatic;   /* FI_PROGRESS_AUTO */
	uint32_t format; /* of the addresses that names stand for */
};

struct vx_mr {
	struct fid_mr fid;
	struct vx_domain *domain;
	VIP_MEM_HANDLE handle;
	void *base;
	size_t length;
};

const char *vx_domain_interface(const struct fid_domain *domain); /* NULL: it is not open, or another provider's */
int vx_domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context);
extern struct fi_ops_mr vx_mr_ops;

/* eq.c */
struct vx_event;

struct vx_eq {
	struct fid_eq fid;
	struct vx_fabric *fabric;
	unsigned refs;
	int writable;
	pthread_mutex_t lock;
	struct vx_wait wait;
	struct vx_event *first, **last;
	void *err_data; /* of the error that was read last */
};

int vx_eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq, void *context);
void vx_eq_cm(struct vx_eq *eq, uint32_t event, fid_t fid, struct fi_info *info, const void *data, size_t length);
void vx_eq_error(struct vx_eq *eq, fid_t fid, int error, int code, const void *data, size_t length);
void vx_eq_forget(struct vx_eq *eq, fid_t fid); /* drops the events of a fid that is closed */
void vx_eq_bind(struct vx_eq *eq, int change);
int vx_eq_trywait(struct vx_eq *eq);

/* cq.c */
struct vx_cq {
	struct fid_cq fid;
	struct vx_domain *domain;
	unsigned refs;
	enum fi_cq_format format;
	struct vx_wait wait;
	unsigned signals; /* fi_cq_signal, for all threads that block */
	struct vx_entry *ring; /* size entries, a power of two */
	uint64_t size, head, tail;
};

struct vx_entry {
	struct fi_cq_err_entry entry;
	fi_addr_t from; /* for fi_cq_readfrom */
};

int vx_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context);
void vx_cq_push(struct vx_cq *cq, const struct fi_cq_err_entry *entry);
void vx_cq_push_from(struct vx_cq *cq, const struct fi_cq_err_entry *entry, fi_addr_t from);
int vx_cq_trywait(struct vx_cq *cq);

/* cntr.c */
struct vx_cntr {
	struct fid_cntr fid;
	struct vx_domain *domain;
	unsigned refs;
	struct vx_wait wait;
	uint64_t value, errors;
	uint64_t read_value, read_errors; /* when the program looked last */
};

int vx_cntr_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **cntr, void *context);
void vx_cntr_add(struct vx_cntr *cntr, int failed); /* NULL: nothing */
int vx_cntr_trywait(struct vx_cntr *cntr);

/*
 * ep.c: an endpoint. tx.c has its transmits. Its receives are in rx.c, those of FI_EP_RDM in match.c. What only
 * FI_EP_RDM has is in rdm.h.
 */
enum vx_kind {
	VX_SEND,
	VX_READ,
	VX_WRITE,
	VX_PULL,   /* FI_EP_RDM: reads a long message for a receive */
	VX_FINISH, /* then it tells the sender */
};

struct vx_tx;
struct vx_post;

struct vx_op { /* a transmit */
	struct vx_op *next;
	struct vx_tx *tx;
	enum vx_kind kind;
	int tagged;
	uint64_t tag;
	struct vx_post *post; /* VX_PULL: the receive, or NULL to discard the message */
	size_t total;         /* VX_PULL: bytes of the message */
	uint64_t id;          /* VX_PULL, VX_FINISH: the sender's number of the message */
	struct vx_link *link; /* the same: on which it was announced */
	int injected;         /* by fi_inject or its like */
	int later;            /* FI_EP_RDM: a long message, which the peer reads */
	int unfinished;       /* it has not done so yet */
	uint64_t flags; /* VX_TX_FLAGS; FI_COMPLETION: the program gets an entry for success */
	void *context;
	void *copy; /* of injected data that has to wait; to free */
	struct iovec iov[VX_IOV];
	VIP_MEM_HANDLE handles[VX_IOV]; /* RMA: of the memory of iov */
	int registered;                 /* how many of them are to deregister */
	unsigned count;
	struct fi_rma_iov remote[VX_RMA_IOV];
	unsigned remote_count;
	size_t length, done; /* bytes, and how many are handed to the VI */
	uint64_t data;
	int started;
	int handed;      /* everything is at the VI */
	int acknowledged; /* or need not be */
	unsigned posted; /* RDMA descriptors that are not complete */
	int error;       /* of one of them */
};

struct vx_call { /* what a program wants */
	enum vx_kind kind;
	const struct iovec *iov;
	size_t count;
	void *context;
	uint64_t data, flags;
	int injected; /* by fi_inject or its like: no entry for success */
	fi_addr_t to; /* FI_EP_RDM; of a receive: from */
	int tagged;
	uint64_t tag, ignore;
};

struct vx_ops { /* a queue of transmits */
	struct vx_op *first, **last;
};

struct vx_tx { /* the transmits to one peer */
	struct vx_ep *ep;
	struct vx_link *link; /* NULL until it connects; FI_EP_RDM: NULL while it is not up */
	struct vx_ops waiting, unacknowledged;
	struct vx_ops unfinished; /* long messages of FI_EP_RDM that the peer has not read */
	struct vx_ops pulls;      /* VX_PULL and VX_FINISH: they pass those that wait, as the peer may wait for them */
	unsigned inflight; /* operations that have begun and are not complete */
	int full;          /* the peer wants long messages only */
};

struct vx_recv {
	uint64_t flags;
	void *context;
	struct iovec iov[VX_IOV];
	unsigned count;
	size_t length, used; /* used: by earlier messages of a multi-receive */
};

struct vx_pep;
struct vx_rdm;

struct vx_ep {
	struct fid_ep fid;
	struct vx_domain *domain;
	struct vx_nic *nic;
	struct fi_info *info;
	struct vx_eq *eq;
	struct vx_cq *tx_cq, *rx_cq;
	int tx_selective, rx_selective;
	struct vx_cntr *send, *recv, *read, *write;
	struct vx_tx tx;     /* not of FI_EP_RDM, which has one for each peer */
	struct vx_rdm *rdm;  /* FI_EP_RDM; NULL: FI_EP_MSG */
	int enabled;
	union vx_addr name, peer;

	pthread_t connecting; /* the thread that connects, see cm.c */
	int connects;         /* it was started and not joined */
	int closing;
	unsigned char param[VX_CM_DATA]; /* for the hello */
	size_t param_length;

	struct vx_op *ops; /* tx_size of them, the first ops_used of which were in use */
	size_t tx_size, ops_used;
	struct vx_op *free;

	struct vx_recv *recvs; /* rx_size of them, a ring; rx_size is a power of two */
	size_t rx_size, recv_head, recv_tail;
	size_t multi_recv_min;
	int receiving; /* a message has begun to arrive in the first of them */
	size_t filled; /* bytes of it that have arrived, also those that had no room */
};

int vx_ep_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context);
int vx_ep_enable(struct vx_ep *ep); /* under the lock */
extern struct fi_ops_msg vx_msg_ops;
extern struct fi_ops_rma vx_rma_ops;
extern struct fi_ops_tagged vx_tagged_ops;
extern struct fi_ops_cm vx_cm_ops, vx_rdm_cm_ops;

/* rma.c */
int vx_rma_keys(const struct vx_op *op); /* FI_EACCES: one is wrong whatever the peer has registered */

/* msg.c: for calls without flags */
uint64_t vx_tx_defaults(const struct vx_ep *ep, int injected);
ssize_t vx_send(struct fid_ep *ep, const struct vx_call *call);

/* tx.c; all under the lock */
void vx_tx_init(struct vx_tx *tx, struct vx_ep *ep);
struct vx_tx *vx_tx_to(struct vx_ep *ep, fi_addr_t to, ssize_t *error); /* NULL: error */
int vx_tx_eager(struct vx_tx *tx, const struct vx_call *call); /* 1: the message is handed over, and complete */
struct vx_op *vx_tx_new(struct vx_tx *tx, const struct vx_call *call, ssize_t *error); /* NULL: error */
ssize_t vx_tx_post(struct vx_op *op);
void vx_tx_pump(struct vx_tx *tx);                    /* begins what can begin */
void vx_tx_pull(struct vx_op *op);                    /* begins a VX_PULL, which is from calloc */
void vx_tx_unread(struct vx_tx *tx, uint64_t id, int failed); /* tells the peer that its long message is not read */
void vx_tx_reaped(struct vx_op *op, int error);       /* an RDMA descriptor; 0: well */
void vx_tx_acknowledged(struct vx_tx *tx, uint32_t count);
void vx_tx_finished(struct vx_tx *tx, uint64_t id, int failed); /* the peer has read a long message */
void vx_tx_flush(struct vx_tx *tx, int error);
int vx_tx_idle(const struct vx_tx *tx);
ssize_t vx_tx_cancel(struct vx_tx *tx, void *context);

/* rx.c; all under the lock */
struct vx_header;
int vx_rx_wants(struct vx_ep *ep);  /* there is a receive for a message */
/* Takes a part of a message. 0: the message has no room here, and goes to the next receive. */
int vx_rx_take(struct vx_ep *ep, const struct vx_header *h, const void *data, size_t length);
void vx_rx_remote(struct vx_ep *ep, fi_addr_t from, uint64_t data); /* a remote write with data has ended */
void vx_rx_flush(struct vx_ep *ep);
ssize_t vx_rx_cancel(struct vx_ep *ep, void *context);

/* cm.c */
int vx_pep_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_pep **pep, void *context);
void vx_cm_hello(struct vx_link *link, const void *data, size_t length); /* it has arrived */
void vx_cm_answer(struct vx_link *link, int accepted, const void *data, size_t length);
void vx_cm_lost(struct vx_link *link, int was); /* the connection is gone; was: its state */
int vx_cm_adopt(struct vx_ep *ep, struct fid *handle);      /* an endpoint for a request */
void vx_cm_close(struct vx_ep *ep);                         /* without the lock */

/* Not implemented: for tables of operations. */
int vx_no_bind(struct fid *fid, struct fid *other, uint64_t flags);
int vx_no_control(struct fid *fid, int command, void *arg);
int vx_no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context);

#endif
