/* The life of a link, and its pieces; link.h describes them. */
#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "match.h"

static struct vx_link **bucket(struct vx_nic *nic, VIP_VI_HANDLE vi)
{
	uintptr_t h = (uintptr_t)vi;

	return &nic->links[(h ^ h >> 16) % (sizeof nic->links / sizeof *nic->links)];
}

struct vx_link *vx_link_find(struct vx_nic *nic, VIP_VI_HANDLE vi)
{
	struct vx_link *link;

	for (link = *bucket(nic, vi); link && link->vi != vi; link = link->next)
		;
	return link;
}

/* The handle may be of a link that is freed, so it is only compared. */
struct vx_link *vx_link_request(struct vx_nic *nic, const struct fid *handle)
{
	struct vx_link *link;
	size_t i;

	for (i = 0; i < sizeof nic->links / sizeof *nic->links; i++)
		for (link = nic->links[i]; link; link = link->next)
			if (&link->fid == handle)
				return link->unanswered && link->pep ? link : NULL;
	return NULL;
}

static void unhash(struct vx_link *link)
{
	struct vx_link **at;

	for (at = bucket(link->nic, link->vi); *at; at = &(*at)->next)
		if (*at == link) {
			*at = link->next;
			return;
		}
}

void vx_link_set(struct vx_link *link, enum vx_state state)
{
	int watched = state == VX_GREETED || state == VX_GREETING;

	link->state = state;
	if (watched != link->watched) {
		link->watched = watched;
		vx_nic_watch(link->nic, watched ? 1 : -1);
	}
}

void vx_link_attributes(VIP_VI_ATTRIBUTES *a)
{
	memset(a, 0, sizeof *a);
	a->ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
	a->EnableRdmaWrite = a->EnableRdmaRead = VIP_TRUE;
}

static VIP_DESCRIPTOR *prepare(struct vx_link *link, struct vx_rx_slot *slot)
{
	VIP_DESCRIPTOR *d = &slot->d;

	memset(d, 0, sizeof *d);
	d->CS.Control = VIP_CONTROL_OP_SENDRECV;
	d->CS.SegCount = 1;
	d->DS[0].Local.Data.Address = &slot->header;
	d->DS[0].Local.Handle = link->handle;
	d->DS[0].Local.Length = sizeof slot->header + VX_PIECE;
	return d;
}

static VIP_RETURN post_receive(struct vx_link *link, struct vx_rx_slot *slot)
{
	return VipPostRecv(link->vi, prepare(link, slot), link->handle);
}

static VIP_RETURN make(struct vx_link *link)
{
	VIP_VI_ATTRIBUTES attributes;
	VIP_RETURN code;
	int i;

	link->size = sizeof *link->memory;
	link->memory = mmap(NULL, link->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (link->memory == MAP_FAILED) {
		link->memory = NULL;
		return VIP_ERROR_RESOURCE;
	}
	code = VipRegisterMem(link->nic->handle, link->memory, link->size, NULL, &link->handle);
	if (code != VIP_SUCCESS)
		return code;
	vx_link_attributes(&attributes);
	code = VipCreateVi(link->nic->handle, &attributes, link->nic->sent, link->nic->received, &link->vi);
	for (i = 0; code == VIP_SUCCESS && i < VX_RECEIVES; i++)
		code = post_receive(link, &link->memory->rx[i]);
	return code;
}

/* Takes all that is left off the queues of a VI that is not connected, destroys it, and frees the link. */
static void destroy(struct vx_link *link)
{
	VIP_DESCRIPTOR *d;

	if (link->vi) {
		VipDisconnect(link->vi);
		while (VipSendDone(link->vi, &d), d)
			;
		while (VipRecvDone(link->vi, &d), d)
			;
		VipDestroyVi(link->vi);
	}
	if (link->handle)
		VipDeregisterMem(link->nic->handle, link->memory, link->handle);
	if (link->memory)
		munmap(link->memory, link->size);
	free(link);
}

int vx_link_open(struct vx_nic *nic, struct vx_link **out)
{
	struct vx_link *link = calloc(1, sizeof *link);
	VIP_RETURN code;

	if (!link)
		return -FI_ENOMEM;
	link->fid.fclass = FI_CLASS_CONNREQ;
	link->nic = nic;
	link->told = link->limit = VX_CREDITS;
	code = make(link);
	if (code != VIP_SUCCESS) {
		destroy(link);
		return -vx_errno(code);
	}
	link->next = *bucket(nic, link->vi);
	*bucket(nic, link->vi) = link;
	*out = link;
	return 0;
}

/*
 * The peer gets what was sent, and learns of the end. RDMA operations that are flushed belong
 * to the endpoint, which takes them back before it asks for this.
 */
void vx_link_close(struct vx_link *link)
{
	struct vx_nic *nic = link->nic;

	pthread_mutex_lock(&nic->lock);
	unhash(link);
	vx_link_set(link, VX_DOWN);
	if (link->spent_count)
		vx_nic_reposted(link);
	pthread_mutex_unlock(&nic->lock);
	destroy(link);
}

struct vx_tx_slot *vx_link_slot(struct vx_link *link)
{
	struct vx_tx_slot *slot;

	if (link->sends_tail - link->sends_head == VX_SENDS)
		vx_link_reap(link);
	if (link->sends_tail - link->sends_head == VX_SENDS)
		return NULL;
	slot = &link->memory->tx[link->sends_tail % VX_SENDS];
	memset(&slot->d, 0, sizeof slot->d);
	memset(&slot->header, 0, sizeof slot->header);
	slot->op = NULL;
	return slot;
}

static int post_list(struct vx_link *link)
{
	VIP_ULONG all = link->listed_count, n = all;
	VIP_RETURN code = VipxPostSends(link->vi, link->listed, &n, link->handle);

	link->listed_count = 0;
	link->sends_tail -= (unsigned)(all - n); /* the connection is being lost */
	return -vx_errno(code);
}

int vx_link_post(struct vx_link *link, struct vx_tx_slot *slot, enum vx_bell bell)
{
	VIP_RETURN code;

	if (bell == VX_LIST || link->listed_count) {
		link->listed[link->listed_count++] = &slot->d;
		link->sends_tail++;
		return bell == VX_LIST && link->listed_count < VX_LISTED ? 0 : post_list(link);
	}
	code = bell == VX_RING ? VipPostSend(link->vi, &slot->d, link->handle) : VipxPostSendLater(link->vi, &slot->d, link->handle);
	if (code == VIP_SUCCESS) {
		link->sends_tail++;
		link->nic->rdma += slot->op != NULL;
	}
	return -vx_errno(code);
}

static int has_credit(enum vx_type type)
{
	return type >= VX_DATA;
}

int vx_link_credit(struct vx_link *link)
{
	return (int32_t)(link->limit - link->sent) > 0;
}

int vx_link_send(struct vx_link *link, struct vx_tx_slot *slot, enum vx_type type, size_t length, enum vx_bell bell)
{
	struct vx_header *h = &slot->header;
	VIP_DESCRIPTOR *d = &slot->d;
	int error;

	h->type = (uint8_t)type;
	if (link->of && link->of->unexpected_bytes > VX_UNEXPECTED)
		h->flags |= VX_FULL;
	h->limit = link->reposted + VX_CREDITS;
	h->acked = link->acked;
	d->CS.Control = VIP_CONTROL_OP_SENDRECV;
	d->CS.SegCount = 1;
	d->CS.Length = (VIP_UINT32)(sizeof *h + length);
	d->DS[0].Local.Data.Address = h;
	d->DS[0].Local.Handle = link->handle;
	d->DS[0].Local.Length = d->CS.Length;
	error = vx_link_post(link, slot, bell);
	if (error)
		return error;
	link->told = h->limit;
	link->acks_owed = 0;
	link->sent += (uint32_t)has_credit(type);
	return 0;
}

int vx_link_greet(struct vx_link *link, enum vx_type type, const union vx_addr *from, const void *data, size_t length)
{
	struct vx_hello hello = {.magic = "viaxdp", .version = VX_VERSION, .piece = VX_PIECE, .rdm = (uint32_t)link->rdm};
	struct vx_tx_slot *slot = vx_link_slot(link);

	if (!slot)
		return -FI_EAGAIN;
	if (length > VX_CM_DATA)
		length = VX_CM_DATA;
	if (from)
		hello.from = *from;
	hello.length = (uint32_t)length;
	memcpy(slot->data, &hello, sizeof hello);
	if (length)
		memcpy(slot->data + sizeof hello, data, length);
	return vx_link_send(link, slot, type, sizeof hello + length, VX_RING);
}

/* Messages without a credit that are due. What finds no slot is sent after the next completion. */
static void control(struct vx_link *link)
{
	struct vx_tx_slot *slot;

	if (link->seen_owed && (slot = vx_link_slot(link)) && !vx_link_send(link, slot, VX_SEEN, 0, VX_RING))
		link->seen_owed = 0;
	if (link->acks_owed && !link->acking && (slot = vx_link_slot(link)))
		link->acking = !vx_link_send(link, slot, VX_ACK, 0, VX_RING);
	if (link->reposted + VX_CREDITS - link->told >= VX_CREDITS / 2 && (slot = vx_link_slot(link)))
		vx_link_send(link, slot, VX_CREDIT, 0, VX_RING);
}

void vx_link_pump(struct vx_link *link)
{
	switch (link->state) {
	case VX_UP:
		if (link->tx)
			vx_tx_pump(link->tx);
		control(link);
		break;
	case VX_GREETED:
	case VX_GREETING:
	case VX_ASKED:
		control(link);
		break;
	default:
		break;
	}
}

void vx_link_repost(struct vx_link *link)
{
	VIP_ULONG n = link->spent_count;

	link->spent_count = 0;
	vx_nic_reposted(link);
	if (link->state == VX_DOWN)
		return;
	VipxPostRecvs(link->vi, link->spent, &n, link->handle);
	link->reposted += (uint32_t)n;
}

/* The program has the data of a piece: its receive can be posted again, which is a credit. */
static void consume(struct vx_link *link, struct vx_rx_slot *slot)
{
	if (link->state == VX_DOWN)
		return;
	if (!link->spent_count)
		vx_nic_spent(link);
	link->spent[link->spent_count++] = prepare(link, slot);
	if (link->spent_count == VX_SPENT)
		vx_link_repost(link);
}

/* While the program has not answered a request, only fi_accept tells it that the requester has gone. */
int vx_link_ended(const struct vx_link *link)
{
	return link->state == VX_DOWN && !link->unanswered && link->held_head == link->held_tail;
}

static struct vx_rx_slot *held(struct vx_link *link, unsigned i)
{
	return &link->memory->rx[link->held[i % VX_RECEIVES]];
}

void vx_link_deliver(struct vx_link *link)
{
	struct vx_ep *ep = link->ep;

	while (ep && link->held_head != link->held_tail && vx_rx_wants(ep)) {
		struct vx_rx_slot *slot = held(link, link->held_head);
		size_t length = slot->d.CS.Length - sizeof slot->header;

		if (vx_rx_take(ep, &slot->header, slot->data, length)) {
			link->held_head++;
			consume(link, slot);
		}
	}
}

static void answered(struct vx_link *link, int accepted, const void *data, size_t length)
{
	if (link->rdm)
		vx_rdm_answer(link, accepted, data, length);
	else
		vx_cm_answer(link, accepted, data, length);
}

static void greeted(struct vx_link *link, struct vx_rx_slot *slot, size_t length)
{
	struct vx_hello hello;
	int type = slot->header.type;

	if (length < sizeof hello)
		return;
	memcpy(&hello, slot->data, sizeof hello);
	if (memcmp(hello.magic, "viaxdp", 7) != 0 || hello.version != VX_VERSION || hello.piece != VX_PIECE ||
		hello.length > VX_CM_DATA || hello.length > length - sizeof hello || (type != VX_REJECT && (int)hello.rdm != link->rdm)) {
		VX_WARN(FI_LOG_EP_CTRL, "the peer's provider has version %u of the messages, this one %u, "
			"or its endpoint another type: use one version, and one type\n", (unsigned)hello.version, (unsigned)VX_VERSION);
		if (link->state == VX_GREETED)
			answered(link, 0, NULL, 0);
		else if (link->state == VX_GREETING)
			vx_link_greet(link, VX_REJECT, NULL, NULL, 0);
		return;
	}
	if (type == VX_HELLO && link->state == VX_GREETING) {
		link->peer = hello.from;
		vx_link_set(link, VX_ASKED);
		if (link->rdm)
			vx_rdm_hello(link, slot->data + sizeof hello, hello.length);
		else
			vx_cm_hello(link, slot->data + sizeof hello, hello.length);
	} else if (type != VX_HELLO && link->state == VX_GREETED) {
		answered(link, type == VX_ACCEPT, slot->data + sizeof hello, hello.length);
	}
}

static void lost(struct vx_link *link)
{
	enum vx_state was = link->state;

	if (was == VX_DOWN)
		return;
	vx_link_deliver(link);
	while (link->held_tail != link->held_head && !(held(link, link->held_tail - 1)->header.flags & VX_LAST))
		link->held_tail--; /* the rest of this message does not come */
	vx_link_set(link, VX_DOWN);
	vx_link_reap(link);
	if (link->rdm)
		vx_rdm_lost(link);
	else
		vx_cm_lost(link, (int)was);
}

static void arrived(struct vx_link *link, struct vx_rx_slot *slot)
{
	struct vx_header *h = &slot->header;
	size_t length = slot->d.CS.Length;

	if (length < sizeof *h)
		return;
	length -= sizeof *h;
	if ((int32_t)(h->limit - link->limit) > 0)
		link->limit = h->limit;
	link->full = (h->flags & VX_FULL) != 0;
	if (link->of)
		link->tx->full = link->full;
	if (h->acked != link->peer_acked && link->tx) {
		vx_tx_acknowledged(link->tx, h->acked - link->peer_acked);
		link->peer_acked = h->acked;
	}
	switch (h->type) {
	case VX_HELLO:
	case VX_ACCEPT:
	case VX_REJECT:
		greeted(link, slot, length);
		break;
	case VX_ACK:
		link->seen_owed = 1;
		break;
	case VX_SEEN:
		link->acking = 0;
		break;
	case VX_EAGER:
	case VX_REQUEST:
	case VX_FINISHED:
	case VX_MORE:
		if (!link->of || link->state != VX_UP)
			break; /* not of FI_EP_RDM, or the peer has not accepted the connection */
		if (!vx_match_arrived(link, h, slot->data, length)) {
			VX_WARN(FI_LOG_EP_DATA, "a message is lost, for lack of memory or by an error of the peer's provider: the connection ends\n");
			lost(link); /* so that the sender does not take it for delivered */
			return;
		}
		if (h->flags & VX_WANT_ACK) {
			link->acked++;
			link->acks_owed = 1;
		}
		consume(link, slot);
		return;
	case VX_DATA:
	case VX_WROTE:
		if (h->flags & VX_WANT_ACK) {
			link->acked++;
			link->acks_owed = 1;
		}
		if (h->type == VX_DATA) {
			link->held[link->held_tail++ % VX_RECEIVES] = (uint16_t)(slot - link->memory->rx);
			return;
		}
		if (h->flags & VX_HAS_DATA && link->ep)
			vx_rx_remote(link->ep, link->of ? link->of->addr : FI_ADDR_NOTAVAIL, h->data);
		consume(link, slot);
		return;
	}
	post_receive(link, slot);
}

static void receive(struct vx_link *link, int most)
{
	VIP_DESCRIPTOR *d;
	VIP_RETURN code;
	int broken = 0;

	if (link->state == VX_REQUESTING)
		return; /* the thread that connects takes them when it is done */
	while (most-- > 0 && (code = VipRecvDone(link->vi, &d), d)) {
		if (code != VIP_SUCCESS)
			broken = 1;
		else if (link->state != VX_DOWN)
			arrived(link, VX_OUTER(d, struct vx_rx_slot, d));
	}
	if (link->held_head != link->held_tail)
		vx_link_deliver(link);
	if (broken)
		lost(link);
}

void vx_link_receive(struct vx_link *link)
{
	receive(link, INT_MAX);
}

void vx_link_receive_one(struct vx_link *link)
{
	receive(link, 1);
}

/* Of an RDMA descriptor: 0, or a positive errno. */
static int error_of(const struct vx_link *link, VIP_RETURN code, VIP_UINT32 status)
{
	if (code == VIP_SUCCESS)
		return 0;
	if (status & VIP_STATUS_RDMA_PROT_ERROR)
		return FI_EACCES;
	if (status & (VIP_STATUS_TRANSPORT_ERROR | VIP_STATUS_DESC_FLUSHED_ERROR))
		return link->shut ? FI_ECANCELED : FI_ECONNRESET;
	return FI_EIO;
}

/* Takes completed sends. A failed one means that the connection is gone, as flushed receives do, too. */
void vx_link_reap(struct vx_link *link)
{
	VIP_DESCRIPTOR *d;
	VIP_RETURN code;

	while ((code = VipSendDone(link->vi, &d), d)) {
		struct vx_tx_slot *slot = VX_OUTER(d, struct vx_tx_slot, d);

		link->sends_head++;
		link->nic->rdma -= slot->op != NULL;
		if (slot->op)
			vx_tx_reaped(slot->op, error_of(link, code, d->CS.Status));
	}
}
