/* What the fake offers, and the descriptions that say so. */
#include "fake_abi.h"

#include <stdlib.h>
#include <string.h>

uint32_t fi_version(void);

static char *copy(const char *text) { return text ? strdup(text) : NULL; }

struct info *fi_dupinfo(const struct info *from) {
    struct info *info = calloc(1, sizeof *info);
    struct tx_attr *tx = info->tx_attr = calloc(1, sizeof *tx);
    struct rx_attr *rx = info->rx_attr = calloc(1, sizeof *rx);
    struct ep_attr *ep = info->ep_attr = calloc(1, sizeof *ep);
    struct domain_attr *domain = info->domain_attr = calloc(1, sizeof *domain);
    struct fabric_attr *fabric = info->fabric_attr = calloc(1, sizeof *fabric);
    if (!from)
        return info;
    *info = *from;
    info->next = NULL;
    *tx = *from->tx_attr, *rx = *from->rx_attr, *ep = *from->ep_attr;
    *domain = *from->domain_attr, *fabric = *from->fabric_attr;
    info->tx_attr = tx, info->rx_attr = rx, info->ep_attr = ep, info->domain_attr = domain, info->fabric_attr = fabric;
    domain->name = copy(domain->name), fabric->name = copy(fabric->name), fabric->prov_name = copy(fabric->prov_name);
    if (from->src_addr) {
        info->src_addr = malloc(from->src_addrlen);
        memcpy(info->src_addr, from->src_addr, from->src_addrlen);
    }
    return info;
}

void fi_freeinfo(struct info *info) {
    while (info) {
        struct info *next = info->next;
        free(info->domain_attr->name), free(info->fabric_attr->name), free(info->fabric_attr->prov_name);
        free(info->tx_attr), free(info->rx_attr), free(info->ep_attr), free(info->domain_attr), free(info->fabric_attr);
        free(info->src_addr);
        free(info);
        info = next;
    }
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct info *hints,
               struct info **out) {
    static struct bus_attr bus = {1, 0, 0x36, 0, 0};
    static struct link_attr link = {NULL, 8928, 100000000000ULL, 2, NULL};
    static struct nic nic = {{0, NULL, NULL}, NULL, &bus, &link, NULL};
    const int needs = MR_LOCAL | MR_VIRT_ADDR | MR_ALLOCATED | MR_PROV_KEY;
    (void)node, (void)service, (void)flags;
    if (version > fi_version())
        return -E_NOSYS;
    const char *provider = hints->fabric_attr->prov_name;
    if ((provider && strcmp(provider, "efa")) || !(hints->mode & MODE_CONTEXT2) || hints->ep_attr->type != 3 ||
        (hints->domain_attr->mr_mode & needs) != needs || hints->domain_attr->data_progress == 1)
        return -E_NODATA;
    struct info *info = *out = fi_dupinfo(NULL);
    info->caps = hints->caps;
    info->mode = MODE_CONTEXT2;
    info->addr_format = 12;
    info->src_addrlen = ADDRESS;
    info->src_addr = calloc(1, ADDRESS);
    info->tx_attr->size = DEPTH;
    info->rx_attr->size = 128;
    info->ep_attr->type = 3;
    info->ep_attr->protocol = 20;
    info->ep_attr->max_msg_size = LIMIT;
    info->domain_attr->name = strdup("rdmap54s0-rdm");
    info->domain_attr->threading = hints->domain_attr->threading;
    info->domain_attr->data_progress = 2;
    info->domain_attr->mr_mode = needs;
    info->domain_attr->mr_key_size = 8;
    info->domain_attr->cq_data_size = 4;
#ifdef RECEIVES
    if (hints->mode & MODE_RX_CQ_DATA)
        info->mode |= MODE_RX_CQ_DATA;
    else
        info->domain_attr->cq_data_size = 0;
#endif
    info->fabric_attr->name = strdup("efa-direct");
    info->fabric_attr->prov_name = strdup("efa");
    info->nic = &nic;
    return 0;
}
