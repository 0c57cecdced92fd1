/* Connections, between endpoints and listeners. */
#ifndef CM_H
#define CM_H

#include "link.h"

/* The address of a service in VIPL's form: the discriminator is "ofi" and the port. */
union net_address {
	VIP_NET_ADDRESS a;
	unsigned char room[sizeof(VIP_NET_ADDRESS) + 16 + 64];
};

void vx_cm_address(union net_address *out, const union vx_addr *from, int service);
int vx_cm_spawn(pthread_t *thread, void *(*run)(void *), void *arg);

struct vx_pep {
	struct fid_pep fid;
	struct vx_pep *next; /* of the program's */
	struct vx_fabric *fabric;
	struct fi_info *info;
	struct vx_nic *nic;
	struct vx_eq *eq;
	union vx_addr name;
	int port; /* a socket that has the port of the kernel, so that no other has it; -1: none */
	union net_address local; /* the same for VIPL */
	pthread_t thread;
	int listening, closing; /* closing: under the lock of nic */
	struct vx_link *requests; /* that no endpoint has yet */
	int waiting, backlog;     /* how many they are, and may be */
	struct vx_rdm *rdm;       /* whose listener it is; NULL: the program's */
};

/* pep.c */
void vx_pep_forget(struct vx_link *link); /* it has an endpoint, or is closed; under the lock */
int vx_pep_address(const struct fid *handle, union vx_addr *out); /* 0: it is no listener of the program */
void vx_pep_init(struct vx_pep *pep);
int vx_pep_reserve(struct vx_pep *pep);   /* the port */
int vx_pep_listen(struct vx_pep *pep, const char *interface);
int vx_pep_honest(const struct vx_link *link); /* its request comes from the host that its hello names */
void vx_pep_stop(struct vx_pep *pep);     /* all that is above */

/* For both kinds of endpoints. */
int vx_cm_getname(fid_t fid, void *addr, size_t *length);
int vx_cm_setname(fid_t fid, void *addr, size_t length);
int vx_no_join(struct fid_ep *ep, const void *addr, uint64_t flags, struct fid_mc **mc, void *context);

#endif
