/* What a libfabric looks like from outside, as far as the fake needs it: written from the manual pages, with the places of
 * libfabric 1.20 and later on a 64-bit machine. Entries that are not offered are of type `entry` and stay null. */
#ifndef FAKE_ABI_H
#define FAKE_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef void (*entry)(void);

enum {
    E_AGAIN = 11, E_BUSY = 16, E_INVAL = 22, E_IO = 5, E_NOSYS = 38, E_NODATA = 61, E_CANCELED = 125, E_TOOSMALL = 257,
    E_AVAIL = 259,
};

#define BIT(n) (1ULL << (n))
#define CAP_MSG BIT(1)
#define CAP_RMA BIT(2)
#define F_READ BIT(8)
#define F_WRITE BIT(9)
#define F_RECV BIT(10)
#define F_REMOTE_WRITE BIT(13)
#define F_REMOTE_CQ_DATA BIT(17)
#define MODE_CONTEXT2 BIT(52)
#define MODE_RX_CQ_DATA BIT(56)
#define MR_LOCAL 0x04
#define MR_VIRT_ADDR 0x10
#define MR_ALLOCATED 0x20
#define MR_PROV_KEY 0x40

struct fid {
    size_t fclass;
    void *context;
    struct ops_fid *ops;
};
struct ops_fid {
    size_t size;
    int (*close)(struct fid *);
    int (*bind)(struct fid *, struct fid *, uint64_t);
    int (*control)(struct fid *, int, void *);
    entry ops_open;
};

struct tx_attr {
    uint64_t caps, mode, op_flags, msg_order, comp_order;
    size_t inject_size, size, iov_limit, rma_iov_limit;
    uint32_t tclass;
};
struct rx_attr {
    uint64_t caps, mode, op_flags, msg_order, comp_order;
    size_t total_buffered_recv, size, iov_limit;
};
struct ep_attr {
    uint32_t type, protocol, protocol_version;
    size_t max_msg_size, rest[8];
};
struct domain_attr {
    void *domain;
    char *name;
    uint32_t threading, control_progress, data_progress, resource_mgmt, av_type;
    int mr_mode;
    size_t mr_key_size, cq_data_size, rest[18];
};
struct fabric_attr {
    void *fabric;
    char *name, *prov_name;
    uint32_t prov_version, api_version;
};
struct bus_attr {
    uint32_t bus_type;
    uint16_t domain_id;
    uint8_t bus_id, device_id, function_id;
};
struct link_attr {
    char *address;
    size_t mtu, speed;
    uint32_t state;
    char *network_type;
};
struct nic {
    struct fid fid;
    void *device_attr;
    struct bus_attr *bus_attr;
    struct link_attr *link_attr;
    void *prov_attr;
};
struct info {
    struct info *next;
    uint64_t caps, mode;
    uint32_t addr_format;
    size_t src_addrlen, dest_addrlen;
    void *src_addr, *dest_addr;
    struct fid *handle;
    struct tx_attr *tx_attr;
    struct rx_attr *rx_attr;
    struct ep_attr *ep_attr;
    struct domain_attr *domain_attr;
    struct fabric_attr *fabric_attr;
    struct nic *nic;
    void *appended_later;
};

struct cq_attr {
    size_t size;
    uint64_t flags;
    uint32_t format, wait_obj;
    int signaling_vector;
    uint32_t wait_cond;
    void *wait_set;
};
struct av_attr {
    uint32_t type;
    int rx_ctx_bits;
    size_t count, ep_per_node;
    const char *name;
    void *map_addr;
    uint64_t flags;
};
struct cq_data {
    void *op_context;
    uint64_t flags;
    size_t len;
    void *buf;
    uint64_t data;
};
struct cq_err {
    void *op_context;
    uint64_t flags;
    size_t len;
    void *buf;
    uint64_t data, tag;
    size_t olen;
    int err, prov_errno;
    void *err_data;
    size_t err_data_size;
    uint64_t src_addr; /* appended in 1.20 */
};

struct fid_fabric;
struct fid_domain;
struct fid_av;
struct fid_cq;
struct fid_ep;
struct fid_mr;

struct ops_fabric {
    size_t size;
    int (*domain)(struct fid_fabric *, struct info *, struct fid_domain **, void *);
    entry passive_ep, eq_open, wait_open, trywait;
};
struct ops_domain {
    size_t size;
    int (*av_open)(struct fid_domain *, struct av_attr *, struct fid_av **, void *);
    int (*cq_open)(struct fid_domain *, struct cq_attr *, struct fid_cq **, void *);
    int (*endpoint)(struct fid_domain *, struct info *, struct fid_ep **, void *);
};
struct ops_mr {
    size_t size;
    int (*reg)(struct fid *, const void *, size_t, uint64_t, uint64_t, uint64_t, uint64_t, struct fid_mr **, void *);
    entry regv, regattr;
};
struct ops_av {
    size_t size;
    int (*insert)(struct fid_av *, const void *, size_t, uint64_t *, uint64_t, void *);
};
struct ops_cq {
    size_t size;
    ssize_t (*read)(struct fid_cq *, void *, size_t);
    entry readfrom;
    ssize_t (*readerr)(struct fid_cq *, struct cq_err *, uint64_t);
    entry sread, sreadfrom, signal;
    const char *(*strerror)(struct fid_cq *, int, const void *, char *, size_t);
};
struct ops_cm {
    size_t size;
    entry setname;
    int (*getname)(struct fid *, void *, size_t *);
};
struct ops_msg {
    size_t size;
    ssize_t (*recv)(struct fid_ep *, void *, size_t, void *, uint64_t, void *);
};
struct ops_rma {
    size_t size;
    entry read, readv, readmsg, write, writev, writemsg, inject;
    ssize_t (*writedata)(struct fid_ep *, const void *, size_t, void *, uint64_t, uint64_t, uint64_t, uint64_t, void *);
};

/* Of the fake itself: writes in flight, largest write, bytes of an address. */
#define DEPTH 64
#define LIMIT (16u << 20)
#define ADDRESS 32

#endif
