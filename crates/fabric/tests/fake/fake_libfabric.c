/* A libfabric with the attributes of EFA's `efa-direct`, between endpoints of one process, for tests.
 *
 * It is as hard on its caller as that provider may be: it delivers in a shuffled order and only while both sides poll, carries
 * 4 bytes of immediate (with rubbish above them), makes its own keys, addresses virtually, wants local memory registered and
 * described, scribbles over the 64 bytes that every operation lends it until the operation completes and looks whether
 * anybody else has touched them, is busy one time in three, reads what is written only when it delivers it, drops what comes
 * from whom the target does not know, injects nothing, has nothing to wait on, and refuses to close what is still used.
 *
 * What only a fault of the caller can bring about ends the process with a line.
 *
 * With -DRECEIVES an immediate uses up a posted receive, and is offered only to whoever says that it posts them. */
#include "fake_abi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AV_BASE 1000

static void wrong(const char *what) {
    fprintf(stderr, "fake libfabric: %s\n", what);
    abort();
}

static pthread_mutex_t all = PTHREAD_MUTEX_INITIALIZER;
static uint64_t state = 88172645463325252ULL;

/* xorshift */
static uint64_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

struct fid_fabric {
    struct fid fid;
    struct ops_fabric *ops;
    uint32_t api_version;
    int domains;
};
struct fid_domain {
    struct fid fid;
    struct ops_domain *ops;
    struct ops_mr *mr;
    struct fid_fabric *fabric;
    struct fid_mr *regions;
    int children;
    atomic_int inside;
};
struct fid_mr {
    struct fid fid;
    void *mem_desc;
    uint64_t key;
    struct fid_domain *domain;
    struct fid_mr *next;
    const char *base;
    size_t bytes;
    uint64_t access;
};
struct fid_av {
    struct fid fid;
    struct ops_av *ops;
    struct fid_domain *domain;
    int users, count;
    uint64_t known[4096];
};
struct operation {
    struct operation *next;
    struct fid_ep *from, *to;
    const char *base;
    size_t bytes;
    uint32_t data;
    uint64_t address, key;
    uint64_t *context;
    uint64_t seed;
    int error;
};
struct fid_cq {
    struct fid fid;
    struct ops_cq *ops;
    struct fid_domain *domain;
    struct fid_ep *ep;
    struct operation *failed;
};
struct fid_ep {
    struct fid fid;
    struct fid *ops;
    struct ops_cm *cm;
    struct ops_msg *msg;
    struct ops_rma *rma;
    struct fid_domain *domain;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fid_ep *next;
    uint64_t number;
    int enabled, in_flight;
    struct operation *inbound, *done;
    uint64_t *posted[8192];
    int receives;
};

static struct fid_ep *endpoints;
static uint64_t numbers;

/* One thread at a time may be inside of a domain: that is what the caller asked for. */
static void enter(struct fid_domain *domain) {
    if (atomic_exchange(&domain->inside, 1))
        wrong("two threads in one domain at a time");
    pthread_mutex_lock(&all);
}
static void leave(struct fid_domain *domain) {
    pthread_mutex_unlock(&all);
    atomic_store(&domain->inside, 0);
}

static void scribble(uint64_t *context, uint64_t seed) {
    for (int i = 0; i < 8; i++)
        context[i] = seed + i;
}
static void untouched(const uint64_t *context, uint64_t seed) {
    for (int i = 0; i < 8; i++)
        if (context[i] != seed + i)
            wrong("a context was touched while its operation was in flight");
}

static struct fid_ep *alive(uint64_t number) {
    for (struct fid_ep *ep = endpoints; ep; ep = ep->next)
        if (ep->number == number && ep->enabled)
            return ep;
    return NULL;
}

static int has(const struct fid_av *av, uint64_t number) {
    for (int i = 0; i < av->count; i++)
        if (av->known[i] == number)
            return 1;
    return 0;
}

/* Takes the n-th of a list out of it. */
static struct operation *take(struct operation **list, uint64_t n) {
    while (n--)
        list = &(*list)->next;
    struct operation *taken = *list;
    *list = taken->next;
    return taken;
}
static uint64_t length(const struct operation *list) {
    uint64_t n = 0;
    for (; list; list = list->next)
        n++;
    return n;
}
static void put(struct operation **list, struct operation *operation) {
    operation->next = *list;
    *list = operation;
}

/* The write itself, at the target's poll: 0, or what the initiator is told. */
static int land(struct fid_ep *ep, const struct operation *op) {
    if (!has(ep->av, op->from->number))
        return 1;
    for (struct fid_mr *mr = ep->domain->regions; mr; mr = mr->next) {
        if (mr->key != op->key)
            continue;
        uint64_t base = (uint64_t)(uintptr_t)mr->base;
        if (!(mr->access & F_REMOTE_WRITE) || op->address < base || op->address + op->bytes > base + mr->bytes)
            return 2;
        memcpy((void *)(uintptr_t)op->address, op->base, op->bytes);
        return 0;
    }
    return 2;
}

static ssize_t cq_read(struct fid_cq *cq, void *buf, size_t count) {
    struct cq_data *entries = buf;
    struct fid_ep *ep = cq->ep;
    size_t got = 0;
    enter(cq->domain);
    while (ep && ep->enabled && got < count && draw() % 8) {
        uint64_t in = length(ep->inbound), done = length(ep->done);
#ifdef RECEIVES
        if (!ep->receives)
            in = 0;
#endif
        if (in + done == 0)
            break;
        if (draw() % (in + done) < in) {
            struct operation *op = take(&ep->inbound, draw() % in);
            op->error = land(ep, op);
            put(&op->from->done, op);
            if (op->error)
                continue;
            struct cq_data *entry = &entries[got++];
            entry->op_context = (void *)0x1234;
            entry->flags = CAP_RMA | F_REMOTE_WRITE | F_REMOTE_CQ_DATA;
#ifdef RECEIVES
            int which = (int)(draw() % (uint64_t)ep->receives);
            untouched(ep->posted[which], 77);
            entry->op_context = ep->posted[which];
            ep->posted[which] = ep->posted[--ep->receives];
#endif
            entry->len = op->bytes;
            entry->buf = NULL;
            entry->data = 0xdeadbeef00000000ULL | op->data;
        } else {
            if (ep->done && cq->failed)
                break;
            struct operation *op = take(&ep->done, draw() % done);
            untouched(op->context, op->seed);
            scribble(op->context, 0);
            ep->in_flight--;
            if (op->error) {
                cq->failed = op;
                break;
            }
            struct cq_data *entry = &entries[got++];
            entry->op_context = op->context;
            /* The data's flag on the sender's side, too: some providers repeat it. */
            entry->flags = CAP_RMA | F_WRITE | F_REMOTE_CQ_DATA;
            entry->len = 0;
            entry->buf = NULL;
            entry->data = 0;
            free(op);
        }
    }
    int failed = cq->failed != NULL;
    leave(cq->domain);
    return got ? (ssize_t)got : failed ? -E_AVAIL : -E_AGAIN;
}

static ssize_t cq_readerr(struct fid_cq *cq, struct cq_err *entry, uint64_t flags) {
    (void)flags;
    enter(cq->domain);
    struct operation *op = cq->failed;
    cq->failed = NULL;
    leave(cq->domain);
    if (!op)
        return -E_AGAIN;
    memset(entry, 0, sizeof *entry);
    entry->op_context = op->context;
    entry->flags = CAP_RMA | F_WRITE;
    entry->err = E_IO;
    entry->prov_errno = op->error;
    entry->src_addr = ~0ULL;
    free(op);
    return 1;
}

static const char *cq_strerror(struct fid_cq *cq, int code, const void *data, char *buf, size_t len) {
    (void)cq, (void)data;
    const char *words[] = {"fine", "the target does not know this endpoint", "no such remote memory", "the target is gone"};
    snprintf(buf, len, "%s", words[code & 3]);
    return buf;
}

static ssize_t ep_writedata(struct fid_ep *ep, const void *buf, size_t bytes, void *desc, uint64_t data, uint64_t to,
                            uint64_t address, uint64_t key, void *context) {
    enter(ep->domain);
    ssize_t code = -E_INVAL;
    struct fid_mr *mr = ep->domain->regions;
    while (mr && mr->mem_desc != desc)
        mr = mr->next;
    if (!ep->enabled)
        wrong("a write before the endpoint is enabled");
    if (!context || (uintptr_t)context % 8)
        wrong("an operation without a context of its own");
    if (!mr || !(mr->access & F_WRITE) || (const char *)buf < mr->base || (const char *)buf + bytes > mr->base + mr->bytes)
        goto out;
    if (data >> 32 || bytes == 0 || bytes > LIMIT || to < AV_BASE || to - AV_BASE >= (uint64_t)ep->av->count)
        goto out;
    code = -E_AGAIN;
    if (ep->in_flight == DEPTH || draw() % 3 == 0)
        goto out;
    code = 0;
    struct operation *op = calloc(1, sizeof *op);
    *op = (struct operation){.from = ep, .to = alive(ep->av->known[to - AV_BASE]), .base = buf, .bytes = bytes,
                             .data = (uint32_t)data, .address = address, .key = key, .context = context, .seed = draw()};
    scribble(context, op->seed);
    ep->in_flight++;
    if (op->to) {
        put(&op->to->inbound, op);
    } else {
        op->error = 3;
        put(&ep->done, op);
    }
out:
    leave(ep->domain);
    return code;
}

static ssize_t ep_recv(struct fid_ep *ep, void *buf, size_t bytes, void *desc, uint64_t from, void *context) {
    (void)from;
    enter(ep->domain);
    struct fid_mr *mr = ep->domain->regions;
    while (mr && mr->mem_desc != desc)
        mr = mr->next;
    if (!mr || !(mr->access & F_RECV) || (char *)buf < mr->base || (char *)buf + bytes > mr->base + mr->bytes)
        wrong("a receive into memory that is not registered for it");
    ssize_t code = -E_AGAIN;
    if (ep->receives < 128 && draw() % 3) {
        scribble(context, 77);
        ep->posted[ep->receives++] = context;
        code = 0;
    }
    leave(ep->domain);
    return code;
}

static int ep_getname(struct fid *fid, void *address, size_t *bytes) {
    struct fid_ep *ep = (struct fid_ep *)fid;
    size_t room = *bytes;
    *bytes = ADDRESS;
    if (room < ADDRESS)
        return -E_TOOSMALL;
    memset(address, 0xfa, ADDRESS);
    memcpy(address, &ep->number, 8);
    return 0;
}

static int ep_bind(struct fid *fid, struct fid *other, uint64_t flags) {
    struct fid_ep *ep = (struct fid_ep *)fid;
    if (flags) {
        ep->cq = (struct fid_cq *)other;
        ep->cq->ep = ep;
    } else {
        ep->av = (struct fid_av *)other;
        ep->av->users++;
    }
    return 0;
}
static int ep_control(struct fid *fid, int command, void *argument) {
    struct fid_ep *ep = (struct fid_ep *)fid;
    (void)argument;
    if (command != 6 || !ep->cq || !ep->av)
        return -E_INVAL;
    pthread_mutex_lock(&all);
    ep->enabled = 1;
    pthread_mutex_unlock(&all);
    return 0;
}
static int ep_close(struct fid *fid) {
    struct fid_ep *ep = (struct fid_ep *)fid;
    enter(ep->domain);
    /* What it has on its way is dropped; what is on its way to it fails. */
    for (struct fid_ep *other = endpoints; other; other = other->next) {
        struct operation **at = &other->inbound;
        while (*at) {
            if ((*at)->from == ep)
                free(take(at, 0));
            else
                at = &(*at)->next;
        }
    }
    while (ep->inbound) {
        struct operation *op = take(&ep->inbound, 0);
        op->error = 3;
        put(&op->from->done, op);
    }
    while (ep->done)
        free(take(&ep->done, 0));
    struct fid_ep **at = &endpoints;
    while (*at != ep)
        at = &(*at)->next;
    *at = ep->next;
    if (ep->cq)
        ep->cq->ep = NULL;
    if (ep->av)
        ep->av->users--;
    ep->domain->children--;
    leave(ep->domain);
    free(ep);
    return 0;
}

static int mr_close(struct fid *fid) {
    struct fid_mr *mr = (struct fid_mr *)fid;
    struct fid_domain *domain = mr->domain;
    enter(domain);
    struct fid_mr **at = &domain->regions;
    while (*at != mr)
        at = &(*at)->next;
    *at = mr->next;
    domain->children--;
    leave(domain);
    free(mr);
    return 0;
}
static int cq_close(struct fid *fid) {
    struct fid_cq *cq = (struct fid_cq *)fid;
    if (cq->ep)
        return -E_BUSY;
    cq->domain->children--;
    free(cq->failed);
    free(cq);
    return 0;
}
static int cq_control(struct fid *fid, int command, void *argument) {
    (void)fid, (void)command, (void)argument;
    return -E_NOSYS;
}
static int av_close(struct fid *fid) {
    struct fid_av *av = (struct fid_av *)fid;
    if (av->users)
        return -E_BUSY;
    av->domain->children--;
    free(av);
    return 0;
}
static int domain_close(struct fid *fid) {
    struct fid_domain *domain = (struct fid_domain *)fid;
    if (domain->children)
        return -E_BUSY;
    domain->fabric->domains--;
    free(domain);
    return 0;
}
static int fabric_close(struct fid *fid) {
    struct fid_fabric *fabric = (struct fid_fabric *)fid;
    if (fabric->domains)
        return -E_BUSY;
    free(fabric);
    return 0;
}

static int av_insert(struct fid_av *av, const void *address, size_t count, uint64_t *number, uint64_t flags, void *context) {
    uint64_t known;
    (void)flags, (void)context;
    memcpy(&known, address, 8);
    if (count != 1 || ((const uint8_t *)address)[ADDRESS - 1] != 0xfa) {
        *number = ~0ULL;
        return 0;
    }
    pthread_mutex_lock(&all);
    *number = AV_BASE + (uint64_t)av->count;
    av->known[av->count++] = known;
    pthread_mutex_unlock(&all);
    return 1;
}

static struct ops_fid of_mr = {sizeof of_mr, mr_close, NULL, NULL, NULL};
static struct ops_fid of_cq = {sizeof of_cq, cq_close, NULL, cq_control, NULL};
static struct ops_fid of_av = {sizeof of_av, av_close, NULL, NULL, NULL};
static struct ops_fid of_ep = {sizeof of_ep, ep_close, ep_bind, ep_control, NULL};
static struct ops_fid of_domain = {sizeof of_domain, domain_close, NULL, NULL, NULL};
static struct ops_fid of_fabric = {sizeof of_fabric, fabric_close, NULL, NULL, NULL};
static struct ops_cq queue_ops = {sizeof queue_ops, cq_read, NULL, cq_readerr, NULL, NULL, NULL, cq_strerror};
static struct ops_av av_ops = {sizeof av_ops, av_insert};
static struct ops_cm cm_ops = {sizeof cm_ops, NULL, ep_getname};
static struct ops_msg msg_ops = {sizeof msg_ops, ep_recv};
static struct ops_rma rma_ops = {sizeof rma_ops, NULL, NULL, NULL, NULL, NULL, NULL, NULL, ep_writedata};

static int domain_mr(struct fid *fid, const void *base, size_t bytes, uint64_t access, uint64_t offset, uint64_t asked,
                     uint64_t flags, struct fid_mr **out, void *context) {
    struct fid_domain *domain = (struct fid_domain *)fid;
    (void)offset, (void)asked, (void)flags, (void)context;
    struct fid_mr *mr = calloc(1, sizeof *mr);
    mr->fid.ops = &of_mr;
    mr->domain = domain;
    mr->base = base;
    mr->bytes = bytes;
    mr->access = access;
    mr->mem_desc = (char *)mr + 8;
    enter(domain);
    mr->key = draw() | BIT(63);
    mr->next = domain->regions;
    domain->regions = mr;
    domain->children++;
    leave(domain);
    *out = mr;
    return 0;
}
static int domain_av(struct fid_domain *domain, struct av_attr *attr, struct fid_av **out, void *context) {
    (void)attr, (void)context;
    struct fid_av *av = calloc(1, sizeof *av);
    av->fid.ops = &of_av;
    av->ops = &av_ops;
    av->domain = domain;
    domain->children++;
    *out = av;
    return 0;
}
static int domain_cq(struct fid_domain *domain, struct cq_attr *attr, struct fid_cq **out, void *context) {
    (void)context;
    if (attr->wait_obj || attr->format != 3)
        return -E_NOSYS;
    struct fid_cq *cq = calloc(1, sizeof *cq);
    cq->fid.ops = &of_cq;
    cq->ops = &queue_ops;
    cq->domain = domain;
    domain->children++;
    *out = cq;
    return 0;
}
static int domain_ep(struct fid_domain *domain, struct info *info, struct fid_ep **out, void *context) {
    (void)info, (void)context;
    struct fid_ep *ep = calloc(1, sizeof *ep);
    ep->fid.ops = &of_ep;
    ep->cm = &cm_ops;
    ep->msg = &msg_ops;
    ep->rma = &rma_ops;
    ep->domain = domain;
    enter(domain);
    domain->children++;
    ep->number = ++numbers;
    ep->next = endpoints;
    endpoints = ep;
    leave(domain);
    *out = ep;
    return 0;
}
static struct ops_domain domain_ops = {sizeof domain_ops, domain_av, domain_cq, domain_ep};
static struct ops_mr mr_ops = {sizeof mr_ops, domain_mr, NULL, NULL};

static int fabric_domain(struct fid_fabric *fabric, struct info *info, struct fid_domain **out, void *context) {
    (void)info, (void)context;
    struct fid_domain *domain = calloc(1, sizeof *domain);
    domain->fid.ops = &of_domain;
    domain->ops = &domain_ops;
    domain->mr = &mr_ops;
    domain->fabric = fabric;
    fabric->domains++;
    *out = domain;
    return 0;
}
static struct ops_fabric fabric_ops = {sizeof fabric_ops, fabric_domain, NULL, NULL, NULL, NULL};

int fi_fabric(struct fabric_attr *attr, struct fid_fabric **out, void *context) {
    (void)attr, (void)context;
    struct fid_fabric *fabric = calloc(1, sizeof *fabric);
    fabric->fid.ops = &of_fabric;
    fabric->ops = &fabric_ops;
    *out = fabric;
    return 0;
}

uint32_t fi_version(void) { return 1 << 16 | 22; }

const char *fi_strerror(int code) {
    return code == E_IO ? "input or output" : code == E_INVAL ? "invalid" : code == E_BUSY ? "still used" : "error";
}

char *fi_tostr(const void *data, int type) {
    (void)data, (void)type;
    return "";
}
