/* Where ranks meet: at the host or port that is given; otherwise the host is derived from the launcher's variables, and
 * the ports from the job. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/status.h"
#include "core/vars.h"
#include "rendezvous/address.h"
#include "rendezvous/launch/parts.h"

enum { MAX_PORT = 65535 };

/* ---- hosts ---- */

/* Removes brackets. A host that is in the list already, or does not fit, is left out. */
static void add_host(struct cairn__meeting *m, const char *host, size_t length) {
    if (length > 1 && host[0] == '[' && host[length - 1] == ']') host++, length -= 2;
    if (length == 0 || length >= sizeof(m->hosts[0]) || m->num_hosts == CAIRN__MAX_HOSTS) return;
    for (int i = 0; i < m->num_hosts; i++) {
        if (strlen(m->hosts[i]) == length && strncmp(m->hosts[i], host, length) == 0) return;
    }
    memcpy(m->hosts[m->num_hosts], host, length);
    m->hosts[m->num_hosts++][length] = '\0';
}

static cairn_status name_host(struct cairn__meeting *m, const char *host, size_t length, const char *what) {
    REQUIRE(length < sizeof(m->hosts[0]), CAIRN_EINVAL, "%s has %zu characters; an address has at most %zu", what,
            length, sizeof(m->hosts[0]) - 1);
    add_host(m, host, length);
    REQUIRE(m->num_hosts, CAIRN_EINVAL, "%s is '%.*s', which is not an address; set it to the address of rank 0", what,
            (int)length, host);
    return CAIRN_OK;
}

static bool speaks_slurm(const struct cairn__launch *l) {
    for (const struct cairn__launcher *by = cairn__launchers; by->name; by++) {
        if (strcmp(by->name, "srun") == 0) return cairn__launcher_agrees(by, l->rank, l->size);
    }
    return false;
}

/* If another launcher runs within a Slurm job, the step is that of its daemons, which may lack a node. */
static cairn_status add_slurm_host(struct cairn__meeting *m, const struct cairn__launch *l, const char **from) {
    const char *name = cairn__first_set((cairn__names){"SLURM_JOB_NODELIST", "SLURM_NODELIST"});
    if (speaks_slurm(l) && cairn__var("SLURM_STEP_NODELIST")) name = "SLURM_STEP_NODELIST";
    if (!name) return CAIRN_OK;
    char host[sizeof(m->hosts[0])];
    cairn_status st = CAIRN_OK;
    TRY(cairn__nodelist_get(cairn__var(name), 0, host, sizeof(host)));
    add_host(m, host, strlen(host));
    *from = name;
out:
    return st;
}

static cairn_status guess_hosts(struct cairn__meeting *m, const struct cairn__launch *l, const char **from) {
    if (l->local_size == l->size) {
        add_host(m, "127.0.0.1", strlen("127.0.0.1"));
        *from = "all ranks are on this machine";
        return CAIRN_OK;
    }
    cairn_status st = CAIRN_OK;
    TRY(add_slurm_host(m, l, from));
    const char *uri = cairn__var("OMPI_MCA_orte_hnp_uri");
    if (uri && strcmp(l->launcher, "mpirun") == 0) {
        /* "408682496.0;tcp://192.0.2.2,10.1.0.2:34819;tcp6://[fd00::2,fd01::2]:41639": the addresses of one machine. */
        for (const char *part = strstr(uri, "tcp"); part; part = strstr(part, "tcp")) {
            part += strspn(part, "tcp46");
            if (strncmp(part, "://", 3) != 0) continue;
            part += 3;
            const bool in_brackets = *part == '[';
            part += in_brackets;
            for (;;) {
                const size_t length = strcspn(part, in_brackets ? ",];" : ",:;");
                add_host(m, part, length);
                part += length;
                if (*part != ',') break;
                part++;
            }
        }
        if (!*from) *from = "OMPI_MCA_orte_hnp_uri";
    }
    REQUIRE(
        m->num_hosts, CAIRN_EINVAL,
        "%d ranks (%s) need a place to meet, and MASTER_ADDR is not set; set it to the address of rank 0 (127.0.0.1 on "
        "one machine)",
        l->size, l->variables);
    m->guessed_host = true;
out:
    return st;
}

/* ---- the place in the environment ---- */

static cairn_status find_ports(struct cairn__meeting *m, const struct cairn__job *job, const struct cairn__launch *l,
                               const char *host_from) {
    bool is_named = false;
    long port = 0;
    cairn_status st = CAIRN_OK;
    TRY(cairn__var_int("MASTER_PORT", 1, MAX_PORT, &is_named, &port));
    if (is_named) {
        m->ports[0] = (int)port;
        m->num_ports = 1;
        snprintf(m->from, sizeof(m->from), "%s, MASTER_PORT", host_from);
    } else {
        REQUIRE(job, CAIRN_EINVAL,
                "%d ranks (%s) need a place to meet, and MASTER_PORT is not set; set it to a free port, the same for "
                "every rank (29500)",
                l->size, l->variables);
        cairn__job_ports(job, m->ports);
        m->num_ports = CAIRN__MAX_PORTS;
        snprintf(m->from, sizeof(m->from), "%s, ports from %s", host_from, job->from);
    }
out:
    return st;
}

/* Python's str(bool). */
static bool agent_serves(void) {
    const char *agent = cairn__var("TORCHELASTIC_USE_AGENT_STORE");
    return agent && strcmp(agent, "True") == 0;
}

static cairn_status find_by_environment(const struct cairn__job *job, struct cairn__launch *l) {
    struct cairn__meeting *m = &l->meeting;
    const char *address = cairn__var("MASTER_ADDR"), *from = address ? "MASTER_ADDR" : NULL;
    cairn_status st = CAIRN_OK;
    if (address) {
        TRY(name_host(m, address, strlen(address), "MASTER_ADDR"));
    } else {
        TRY(guess_hosts(m, l, &from));
    }
    TRY(find_ports(m, job, l, from));
    const bool is_named = address && m->num_ports == 1;
    if (!is_named && job) snprintf(m->proof, sizeof(m->proof), "cairn/job/%s", job->name);
    m->agent_store =
        is_named && agent_serves() && (strcmp(l->launcher, "torch") == 0 || strcmp(l->launcher, "options") == 0);
out:
    return st;
}

/* ---- the place that the program gives ---- */

static cairn_status find_by_url(const char *url, struct cairn__launch *l) {
    static const char scheme[] = "tcp://";
    struct cairn__meeting *m = &l->meeting;
    const bool is_tcp = strncmp(url, scheme, strlen(scheme)) == 0;
    const char *host = url + (is_tcp ? strlen(scheme) : 0);
    const char *colon = strrchr(host, ':'); /* [v6]:port */
    char *end = NULL;
    const long port = colon ? strtol(colon + 1, &end, 10) : 0;
    REQUIRE(
        is_tcp && colon && colon > host && colon[1] >= '0' && colon[1] <= '9' && *end == '\0' && port > 0 &&
            port <= MAX_PORT && (!memchr(host, ':', (size_t)(colon - host)) || (host[0] == '[' && colon[-1] == ']')),
        CAIRN_EINVAL,
        "cairn_env_options.init_method is '%.300s'; it can be \"env://\", \"tcp://host:port\", \"tcp://[v6]:port\" or "
        "\"file:///path\"",
        url);
    cairn_status st = CAIRN_OK;
    TRY(name_host(m, host, (size_t)(colon - host), "cairn_env_options.init_method"));
    m->ports[0] = (int)port;
    m->num_ports = 1;
    snprintf(m->from, sizeof(m->from), "cairn_env_options.init_method");
    const char *address = cairn__var("MASTER_ADDR"), *master_port = cairn__var("MASTER_PORT");
    m->agent_store = agent_serves() && address && strcmp(address, m->hosts[0]) == 0 && master_port &&
                     strtol(master_port, NULL, 10) == port;
out:
    return st;
}

cairn_status cairn__meeting_find(const struct cairn__launch_told *told, const struct cairn__job *job,
                                 struct cairn__launch *launch) {
    const char *url = told ? told->init_method : NULL;
    cairn_status st = CAIRN_OK;
    launch->meeting = (struct cairn__meeting){0};
    if (told && told->has_store) return CAIRN_OK;
    if (url && strcmp(url, "env://") != 0) {
        st = find_by_url(url, launch);
    } else if (launch->size > 1) {
        st = find_by_environment(job, launch);
    }
    if (launch->size == 1) launch->meeting = (struct cairn__meeting){0};
    return st;
}

/* ---- whether it is here ---- */

/* bind succeeds only for this machine's addresses. */
static bool is_own_address(const struct addrinfo *a) {
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    const bool is_own = bind(fd, a->ai_addr, a->ai_addrlen) == 0; /* port 0: any free one */
    close(fd);
    return is_own;
}

bool cairn__host_is_here(const char *host) {
    char own[256] = "";
    const char *node = cairn__var("SLURMD_NODENAME");
    gethostname(own, sizeof(own) - 1);
    if ((node && strcmp(host, node) == 0) || strcmp(host, own) == 0) return true;
    struct addrinfo *list = NULL;
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    if (getaddrinfo(host, NULL, &hints, &list) != 0) return false;
    bool is_own = false;
    for (const struct addrinfo *a = list; a && !is_own; a = a->ai_next) is_own = is_own_address(a);
    freeaddrinfo(list);
    return is_own;
}

cairn_status cairn__meeting_is_here(const struct cairn__launch *launch) {
    const struct cairn__meeting *m = &launch->meeting;
    char own[256] = "?";
    for (int i = 0; i < m->num_hosts && m->guessed_host; i++) {
        if (cairn__host_is_here(m->hosts[i])) return CAIRN_OK;
    }
    gethostname(own, sizeof(own) - 1);
    REQUIRE(!m->guessed_host, CAIRN_EINVAL,
            "rank 0 runs on '%s', but the meeting place is '%s' (%s); set MASTER_ADDR to the address of rank 0's "
            "machine for every rank (mpirun -x MASTER_ADDR=%s)",
            own, m->hosts[0], m->from, own);
    return CAIRN_OK;
}

bool cairn__launch_has_others(const struct cairn__launch *launch) {
    const struct cairn__meeting *m = &launch->meeting;
    bool is_loopback = m->num_hosts > 0;
    for (int i = 0; i < m->num_hosts; i++)
        is_loopback = is_loopback && (strcmp(m->hosts[i], "localhost") == 0 || cairn__address_is_loopback(m->hosts[i]));
    return launch->local_size != launch->size && !is_loopback;
}
