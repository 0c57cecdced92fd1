/*
 * Receives of FI_EP_RDM. A message goes to the first posted receive that matches, straight from the receive
 * slots of its pieces. If there is none, it is copied, and a later receive finds it, in the order of arrival, once all
 * of it is there. A long message is its request only: a VX_PULL reads it into the receive's memory.
 *
 * Tagged messages and others never match each other: each kind has its lists.
 */
#include <stdlib.h>

#include "match.h"

enum { ALIGN = 16 }; /* of the messages of a multi-receive */

int vx_match_open(struct vx_ep *ep)
{
	struct vx_rdm *rdm = ep->rdm;
	int i;

	for (i = 0; i < 2; i++) {
		rdm->posted[i].last = &rdm->posted[i].first;
		rdm->arrived[i].last = &rdm->arrived[i].first;
	}
	rdm->claimed.last = &rdm->claimed.first;
	rdm->posts = calloc(ep->rx_size, sizeof *rdm->posts);
	rdm->left = ep->rx_size;
	return rdm->posts ? 0 : -FI_ENOMEM;
}

static void free_messages(struct vx_messages *q)
{
	struct vx_message *m;

	while ((m = q->first)) {
		q->first = m->next;
		free(m);
	}
	q->last = &q->first;
}

void vx_match_close(struct vx_rdm *rdm)
{
	free_messages(&rdm->arrived[0]);
	free_messages(&rdm->arrived[1]);
	free_messages(&rdm->claimed);
	free(rdm->posts);
}

ssize_t vx_match_left(const struct vx_ep *ep)
{
	return (ssize_t)ep->rdm->left;
}

static struct vx_post *get_post(struct vx_rdm *rdm)
{
	struct vx_post *p = rdm->free;

	if (p)
		rdm->free = p->next;
	else if (rdm->used < rdm->ep->rx_size)
		p = &rdm->posts[rdm->used++];
	if (p)
		rdm->left--;
	return p;
}

static void put_post(struct vx_rdm *rdm, struct vx_post *p)
{
	p->next = rdm->free;
	rdm->free = p;
	rdm->left++;
}

static void unlink_post(struct vx_posts *q, struct vx_post **at)
{
	struct vx_post *p = *at;

	*at = p->next;
	if (!*at)
		q->last = at;
}

static void append_message(struct vx_messages *q, struct vx_message *m)
{
	m->next = NULL;
	*q->last = m;
	q->last = &m->next;
}

static void unlink_message(struct vx_messages *q, struct vx_message **at)
{
	*at = (*at)->next;
	if (!*at)
		q->last = at;
}

static int is_tagged(const struct vx_message *m)
{
	return (m->flags & VX_TAGGED) != 0;
}

static int matches(fi_addr_t from, uint64_t tag, uint64_t ignore, const struct vx_message *m)
{
	return ((tag ^ m->tag) & ~ignore) == 0 && (from == FI_ADDR_UNSPEC || from == m->peer->addr);
}

static void report(struct vx_ep *ep, uint64_t wanted, const struct fi_cq_err_entry *entry, const struct vx_peer *peer)
{
	if (ep->rx_cq && !ep->closing && (wanted || entry->err))
		vx_cq_push_from(ep->rx_cq, entry, peer ? peer->addr : FI_ADDR_NOTAVAIL);
}

static uint64_t kind(int tagged)
{
	return FI_RECV | (tagged ? FI_TAGGED : FI_MSG);
}

/* The buffer of a multi-receive is the program's again if no message fits any more, and none is being read. */
static int is_released(const struct vx_post *p)
{
	return !(p->flags & FI_MULTI_RECV) || (p->spent && !p->pulls);
}

/* A message has got into a receive, or has failed. */
static void received(struct vx_ep *ep, struct vx_post *p, const struct vx_message *m, void *buf, size_t got, int error)
{
	struct fi_cq_err_entry entry = {
		.op_context = p->context, .flags = kind(p->tagged), .len = got, .buf = buf, .tag = m->tag,
		.err = error ? error : m->total > got ? FI_ETRUNC : 0, .olen = error ? 0 : m->total - got,
	};
	int released = is_released(p);

	if (m->flags & VX_HAS_DATA) {
		entry.flags |= FI_REMOTE_CQ_DATA;
		entry.data = m->data;
	}
	if (p->flags & FI_MULTI_RECV && released)
		entry.flags |= FI_MULTI_RECV;
	report(ep, (p->flags & FI_COMPLETION) | (entry.flags & FI_MULTI_RECV), &entry, m->peer);
	vx_cntr_add(ep->recv, entry.err);
	if (released)
		put_post(ep->rdm, p);
}

/* Takes room for a message in a receive. */
static void *reserve(struct vx_ep *ep, struct vx_post *p, size_t total, size_t *got)
{
	size_t room = p->length - p->used;
	char *buf = p->count ? (char *)p->iov[0].iov_base + p->used : NULL;

	*got = total < room ? total : room;
	if (p->flags & FI_MULTI_RECV) {
		p->used += (*got + ALIGN - 1) & ~(size_t)(ALIGN - 1);
		p->spent = p->used >= p->length || p->length - p->used < ep->multi_recv_min;
	}
	return buf;
}

/* Cuts the buffers to the bytes that are read: all of their memory is registered, which brings it in. */
static void shorten(struct vx_op *op)
{
	size_t left = op->length;
	unsigned i;

	for (i = 0; i < op->count; i++) {
		if (op->iov[i].iov_len > left)
			op->iov[i].iov_len = left;
		left -= op->iov[i].iov_len;
	}
}

/* Begins to read a long message; p: where to, or NULL to discard it. 0: there is no memory. */
static int pull(const struct vx_message *m, struct vx_post *p, void *buf, size_t got)
{
	const struct vx_request *r = m->bytes;
	struct vx_op *op = calloc(1, sizeof *op);
	uint32_t i;

	if (!op) {
		vx_tx_unread(&m->peer->tx, r->id, p != NULL);
		return 0;
	}
	op->kind = VX_PULL;
	op->tx = &m->peer->tx;
	op->id = r->id;
	op->total = m->total;
	op->flags = m->flags;
	op->tag = m->tag;
	op->data = m->data;
	op->post = p;
	if (p) {
		op->length = got;
		op->count = p->count;
		memcpy(op->iov, p->iov, sizeof op->iov);
		if (p->flags & FI_MULTI_RECV) {
			op->iov[0].iov_base = buf;
			p->pulls++;
		}
		shorten(op);
		op->remote_count = r->count;
		for (i = 0; i < r->count; i++) {
			op->remote[i].addr = r->parts[i].address;
			op->remote[i].len = r->parts[i].length;
			op->remote[i].key = r->parts[i].key;
		}
	}
	vx_tx_pull(op);
	return 1;
}

void vx_match_pulled(struct vx_ep *ep, struct vx_op *op, int error)
{
	const struct vx_message m = {
		.peer = VX_OUTER(op->tx, struct vx_peer, tx), .tag = op->tag, .data = op->data, .flags = (unsigned)op->flags,
		.total = error ? 0 : op->total,
	};
	struct vx_post *p = op->post;

	if (!p)
		return;
	if (p->flags & FI_MULTI_RECV)
		p->pulls--;
	received(ep, p, &m, op->count ? op->iov[0].iov_base : NULL, error ? 0 : op->length, error);
}

static int is_valid(const struct vx_message *m)
{
	const struct vx_request *r = m->bytes;
	size_t i, sum = 0;

	if (!m->is_request)
		return m->total == m->length || (m->length < m->total && m->total <= VX_EAGER_MAX);
	if (m->length != sizeof *r || r->count > VX_IOV)
		return 0;
	for (i = 0; i < r->count; i++) {
		if (r->parts[i].length > VX_MAX_MESSAGE)
			return 0;
		sum += r->parts[i].length;
	}
	return sum == m->total && sum <= VX_MAX_MESSAGE;
}

/* The memory of a message that waits. */
static size_t footprint(const struct vx_message *m)
{
	return sizeof *m + (m->is_request ? m->length : m->total);
}

static void count_kept(struct vx_message *m)
{
	m->peer->unexpected++;
	m->peer->unexpected_bytes += footprint(m);
}

static void free_kept(struct vx_message *m)
{
	struct vx_peer *peer = m->peer;

	peer->unexpected--;
	peer->unexpected_bytes -= footprint(m);
	free(m);
	vx_rdm_collect(peer->tx.ep->rdm, peer);
}

/* The next bytes of a message that arrives in pieces. */
static void fill(struct vx_partial *part, const void *data, size_t length)
{
	struct vx_post *p = part->post;
	size_t room = part->got > part->done ? part->got - part->done : 0;

	if (p)
		vx_iov_copy(p->iov, p->count, part->used + part->done, (void *)(uintptr_t)data, length < room ? length : room, VX_TO_LIST);
	else
		memcpy((char *)(part + 1) + part->done, data, length);
	part->done += length;
}

/* The first piece of several, for got bytes of receive p, or for memory of its own if p is NULL. 0: there is none. */
static int begin(const struct vx_message *m, struct vx_post *p, void *buf, size_t used, size_t got)
{
	struct vx_partial *part = malloc(sizeof *part + (p ? 0 : m->total));

	if (!part)
		return 0;
	*part = (struct vx_partial){.message = *m, .post = p, .buf = buf, .used = used, .got = got};
	part->message.bytes = part + 1;
	if (p)
		p->pulls++;
	else
		count_kept(&part->message);
	fill(part, m->bytes, m->length);
	m->link->partial = part;
	return 1;
}

/* Gives a message to the receive *at of a list. 0: a multi-receive that has no room for it, and has left the list. */
static int deliver(struct vx_ep *ep, struct vx_posts *q, struct vx_post **at, const struct vx_message *m)
{
	struct vx_post *p = *at;
	size_t got, used = p->used;
	void *buf;

	if (used && m->total > p->length - used) {
		struct fi_cq_err_entry entry = {.op_context = p->context, .flags = FI_MULTI_RECV};

		unlink_post(q, at);
		p->spent = 1;
		if (is_released(p)) { /* otherwise the entry of a message that is being read says it */
			report(ep, 1, &entry, NULL);
			put_post(ep->rdm, p);
		}
		return 0;
	}
	buf = reserve(ep, p, m->total, &got);
	if (!(p->flags & FI_MULTI_RECV) || p->spent)
		unlink_post(q, at);
	if (!m->is_request && m->length == m->total) {
		vx_iov_copy(p->iov, p->count, used, (void *)(uintptr_t)m->bytes, got, VX_TO_LIST);
		received(ep, p, m, buf, got, 0);
	} else if (m->is_request ? !pull(m, p, buf, got) : !begin(m, p, buf, used, got)) {
		received(ep, p, m, buf, 0, FI_ENOMEM);
	}
	return 1;
}

/* Gives a message to the first receive that matches. 0: there is none. */
static int match(struct vx_ep *ep, const struct vx_message *m)
{
	struct vx_posts *q = &ep->rdm->posted[is_tagged(m)];
	struct vx_post **at = &q->first;

	while (*at)
		if (!matches((*at)->from, (*at)->tag, (*at)->ignore, m))
			at = &(*at)->next;
		else if (deliver(ep, q, at, m))
			return 1;
	return 0;
}

/* 0: there is no memory, or the peer does not heed VX_FULL. */
static int keep(const struct vx_message *m, struct vx_messages *q)
{
	struct vx_message *kept;

	if (m->peer->unexpected_bytes + footprint(m) > VX_UNEXPECTED_MOST)
		return 0;
	if (!m->is_request && m->length < m->total)
		return begin(m, NULL, NULL, 0, 0);
	kept = malloc(footprint(m));
	if (!kept)
		return 0;
	*kept = *m;
	kept->bytes = memcpy(kept + 1, m->bytes, m->length);
	count_kept(kept);
	append_message(q, kept);
	return 1;
}

/* A VX_MORE: the next piece of the message that has begun. 0: there is none. */
static int more(struct vx_link *link, const void *data, size_t length)
{
	struct vx_partial *part = link->partial;
	struct vx_ep *ep = link->ep;
	struct vx_message *m;

	if (!part || length > part->message.total - part->done)
		return 0; /* there was no memory, or an error of the peer's provider */
	fill(part, data, length);
	m = &part->message;
	if (part->done < m->total)
		return 1;
	link->partial = NULL;
	m->length = m->total;
	if (part->post) {
		part->post->pulls--;
		received(ep, part->post, m, part->buf, part->got, 0);
		free(part);
	} else if (match(ep, m)) { /* a receive that was posted meanwhile */
		free_kept(m);
	} else {
		append_message(&ep->rdm->arrived[is_tagged(m)], m);
	}
	return 1;
}

void vx_match_cut(struct vx_link *link)
{
	struct vx_partial *part = link->partial;

	if (!part)
		return;
	link->partial = NULL;
	if (!part->post) {
		free_kept(&part->message);
		return;
	}
	part->post->pulls--;
	received(link->ep, part->post, &part->message, part->buf, 0, FI_ECONNRESET);
	free(part);
}

int vx_match_arrived(struct vx_link *link, const struct vx_header *h, const void *data, size_t length)
{
	int tagged = (h->flags & VX_TAGGED) != 0;
	struct vx_message m = {
		.peer = link->of, .link = link, .tag = tagged ? h->tag : 0, .data = h->data, .flags = h->flags,
		.is_request = h->type == VX_REQUEST, .total = h->total, .length = length, .bytes = data,
	};

	if (h->type == VX_FINISHED) {
		vx_tx_finished(&m.peer->tx, h->data, h->flags & VX_FAILED);
		return 1;
	}
	if (h->type == VX_MORE)
		return more(link, data, length);
	return is_valid(&m) && !link->partial && (match(link->ep, &m) || keep(&m, &link->ep->rdm->arrived[tagged]));
}

/* The first message of a list that matches; NULL: none. */
static struct vx_message **find(struct vx_messages *q, const struct vx_call *call)
{
	struct vx_message **at;

	for (at = &q->first; *at; at = &(*at)->next)
		if (matches(call->to, call->tag, call->ignore, *at))
			return at;
	return NULL;
}

static void forget(struct vx_messages *q, struct vx_message **at)
{
	struct vx_message *m = *at;

	unlink_message(q, at);
	free_kept(m);
}

static void discard(struct vx_messages *q, struct vx_message **at)
{
	if ((*at)->is_request && !(*at)->lost)
		pull(*at, NULL, NULL, 0);
	forget(q, at);
}

/* Without a receive: what FI_PEEK finds, or FI_DISCARD drops. */
static void note(struct vx_ep *ep, const struct vx_call *call, const struct vx_message *m, int error)
{
	struct fi_cq_err_entry entry = {
		.op_context = call->context, .flags = kind(call->tagged), .tag = call->tag, .err = error,
	};

	if (m) {
		entry.len = error || (call->flags & FI_DISCARD && !(call->flags & FI_PEEK)) ? 0 : m->total;
		entry.tag = m->tag;
		entry.data = m->data;
		entry.flags |= m->flags & VX_HAS_DATA ? FI_REMOTE_CQ_DATA : 0;
	}
	report(ep, !ep->rx_selective || (call->flags & FI_COMPLETION), &entry, m ? m->peer : NULL);
}

static void peek(struct vx_ep *ep, const struct vx_call *call)
{
	struct vx_rdm *rdm = ep->rdm;
	struct vx_messages *q = &rdm->arrived[call->tagged];
	struct vx_message **at, *m;

	vx_nic_progress(ep->nic); /* a program may do nothing else */
	at = find(q, call);
	note(ep, call, at ? *at : NULL, at ? 0 : FI_ENOMSG);
	if (!at)
		return;
	m = *at;
	if (call->flags & FI_DISCARD) {
		discard(q, at);
	} else if (call->flags & FI_CLAIM) {
		unlink_message(q, at);
		m->claimed = call->context;
		append_message(&rdm->claimed, m);
	}
}

/* What a receive does at once: a message that is here already goes to it. */
static void post(struct vx_ep *ep, const struct vx_call *call, struct vx_post *p, struct vx_messages *q, struct vx_message **at)
{
	struct vx_posts mine;
	size_t i;

	p->flags = ep->rx_selective ? call->flags : call->flags | FI_COMPLETION;
	p->tag = call->tag;
	p->ignore = call->ignore;
	p->from = call->to;
	p->context = call->context;
	p->tagged = call->tagged;
	p->count = (unsigned)call->count;
	p->length = p->used = 0;
	p->pulls = 0;
	p->spent = 0;
	for (i = 0; i < call->count; i++) {
		p->iov[i] = call->iov[i];
		p->length += call->iov[i].iov_len;
	}
	p->next = NULL;
	mine.first = p;
	mine.last = &p->next;
	while (at && mine.first) {
		if (deliver(ep, &mine, &mine.first, *at))
			forget(q, at);
		at = mine.first ? find(q, call) : NULL;
	}
	if (mine.first) {
		struct vx_posts *posted = &ep->rdm->posted[call->tagged];

		*posted->last = p;
		posted->last = &p->next;
	}
}

static struct vx_message **claimed(struct vx_rdm *rdm, const void *context)
{
	struct vx_message **at;

	for (at = &rdm->claimed.first; *at; at = &(*at)->next)
		if ((*at)->claimed == context)
			return at;
	return NULL;
}

static ssize_t receive(struct vx_ep *ep, const struct vx_call *call)
{
	struct vx_rdm *rdm = ep->rdm;
	struct vx_messages *q = call->flags & FI_CLAIM ? &rdm->claimed : &rdm->arrived[call->tagged];
	struct vx_message **at;
	struct vx_post *p;

	if (!ep->enabled)
		return -FI_EOPBADSTATE;
	if (call->flags & FI_PEEK) {
		peek(ep, call);
		return 0;
	}
	at = call->flags & FI_CLAIM ? claimed(rdm, call->context) : find(q, call);
	if (call->flags & FI_CLAIM && !at)
		return -FI_EINVAL;
	if (call->flags & FI_DISCARD) {
		note(ep, call, *at, 0);
		discard(q, at);
		return 0;
	}
	if (at && (*at)->lost) {
		note(ep, call, *at, FI_ECONNRESET);
		vx_cntr_add(ep->recv, FI_ECONNRESET);
		forget(q, at);
		return 0;
	}
	p = get_post(rdm);
	if (!p)
		return -FI_EAGAIN;
	post(ep, call, p, q, at);
	return 0;
}

/* An address that is not known is any: so programs without FI_DIRECTED_RECV may leave it unset. */
ssize_t vx_match_receive(struct vx_ep *ep, const struct vx_call *call)
{
	struct vx_call c = *call;
	ssize_t result;

	if (!(ep->info->caps & FI_DIRECTED_RECV))
		c.to = FI_ADDR_UNSPEC;
	pthread_mutex_lock(&ep->nic->lock);
	result = receive(ep, &c);
	pthread_mutex_unlock(&ep->nic->lock);
	return result;
}

/* An endpoint's messages to itself come on the other end of the link that they are read by. */
static int is_lost(const struct vx_message *m, const struct vx_link *link)
{
	return m->is_request && (m->link == link || !m->peer->tx.link);
}

void vx_match_lost(struct vx_rdm *rdm, const struct vx_link *link)
{
	struct vx_message *m;
	int i;

	for (i = 0; i < 2; i++) {
		struct vx_message **at = &rdm->arrived[i].first;

		while (*at)
			if (is_lost(*at, link))
				forget(&rdm->arrived[i], at);
			else
				at = &(*at)->next;
	}
	for (m = rdm->claimed.first; m; m = m->next) /* the program will receive it */
		m->lost |= is_lost(m, link);
}

ssize_t vx_match_cancel(struct vx_rdm *rdm, void *context)
{
	int i;

	for (i = 0; i < 2; i++) {
		struct vx_posts *q = &rdm->posted[i];
		struct vx_post **at, *p;

		for (at = &q->first; (p = *at); at = &p->next)
			if (p->context == context) {
				struct vx_message none = {.tag = p->tag};

				unlink_post(q, at);
				p->spent = 1;
				if (p->pulls) { /* it ends with the last of them */
					p->length = p->used;
					return 0;
				}
				received(rdm->ep, p, &none, NULL, 0, FI_ECANCELED);
				return 0;
			}
	}
	return -FI_ENOENT;
}
