#include "env/served.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/status.h"
#include "rendezvous/address.h"
#include "rendezvous/store/server.h"
#include "rendezvous/store/store.h"

struct cairn__served {
    struct cairn__served *next;
    struct cairn__store_server *server;
    struct cairn__store_door door;
    struct cairn__secret *secret;
    char address[64];
    int users;
    bool stays;
    pid_t process; /* a child of fork inherits the list, but not the threads that serve */
    int ports[CAIRN__MAX_PORTS], num_ports;
    char proof[sizeof(((struct cairn__meeting *)0)->proof)];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the list and its entries */
static struct cairn__served *all;

/* Finds this process's store of that meeting; NULL if there is none. */
static struct cairn__served *find(const struct cairn__meeting *m) {
    for (struct cairn__served *s = all; s; s = s->next) {
        if (s->process == getpid() && s->num_ports == m->num_ports && strcmp(s->proof, m->proof) == 0 &&
            memcmp(s->ports, m->ports, (size_t)m->num_ports * sizeof(m->ports[0])) == 0)
            return s;
    }
    return NULL;
}

static void forget(struct cairn__served *s) {
    struct cairn__served **at = &all;
    while (*at && *at != s) at = &(*at)->next;
    if (*at) *at = s->next;
    cairn__secret_destroy(&s->secret);
    cairn__free(s);
}

static cairn_status serve(const struct cairn__meeting *m, struct cairn__served *s) {
    cairn_status st = CAIRN_ESYSTEM;
    for (int i = 0; i < m->num_ports; i++) {
        s->door.port = m->ports[i];
        st = cairn__store_serve_at(&s->door, &s->server, NULL);
        if (st != CAIRN_ESYSTEM || m->num_ports == 1) return st;
    }
    return cairn__fail(st,
                       "rank 0 cannot host the store at any of the job's %d ports (%d, %d, ...): %s; set MASTER_PORT "
                       "to a free port for every rank",
                       m->num_ports, m->ports[0], m->ports[1], cairn_last_error());
}

static cairn_status make(const struct cairn__launch *launch, struct cairn__secret **secret,
                         struct cairn__served **out) {
    const struct cairn__meeting *m = &launch->meeting;
    struct cairn__served *s = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*s), (void **)&s));
    if (m->num_hosts == 1)
        cairn__address_to_listen(m->hosts[0], cairn__launch_has_others(launch), s->address, sizeof(s->address));
    s->door = (struct cairn__store_door){.address = s->address, .secret = *secret, .is_open = cairn__store_is_open()};
    TRY(serve(m, s));
    s->secret = *secret;
    *secret = NULL;
    s->process = getpid();
    s->num_ports = m->num_ports;
    memcpy(s->ports, m->ports, sizeof(s->ports));
    memcpy(s->proof, m->proof, sizeof(s->proof));
    s->next = all;
    all = s;
    *out = s;
    return CAIRN_OK;
out:
    cairn__free(s);
    return st;
}

cairn_status cairn__served_share(const struct cairn__launch *launch, struct cairn__secret **secret,
                                 struct cairn__served **out) {
    const struct cairn__meeting *m = &launch->meeting;
    cairn_status st = CAIRN_OK;
    TRY(cairn__meeting_is_here(launch));
    pthread_mutex_lock(&mutex);
    struct cairn__served *s = find(m);
    if (!s) st = make(launch, secret, &s);
    if (st == CAIRN_OK) {
        s->users++;
        *out = s;
    }
    pthread_mutex_unlock(&mutex);
out:
    return st;
}

cairn_status cairn__served_connect(struct cairn__served *s, double timeout, cairn_store **out) {
    return cairn__store_connect_here(&s->door, s->door.port, timeout, out);
}

/* The server's thread calls it once no client is connected. Frees the port before the list entry. */
static bool may_end(void *ctx) {
    struct cairn__served *s = ctx;
    pthread_mutex_lock(&mutex);
    const bool ends = s->users == 0;
    if (ends) {
        cairn__store_close_door(s->server);
        forget(s);
    }
    pthread_mutex_unlock(&mutex);
    return ends;
}

void cairn__served_leave(struct cairn__served **served, enum cairn__served_end how) {
    struct cairn__served *s = *served;
    if (!s) return;
    *served = NULL;
    pthread_mutex_lock(&mutex);
    s->users--;
    s->stays = s->stays || how == CAIRN__SERVED_STAYS;
    if (s->users == 0 && s->process == getpid()) {
        if (s->stays) {
            cairn__store_let_end(s->server, may_end, s);
        } else {
            cairn__store_stop(&s->server);
            forget(s);
        }
    }
    pthread_mutex_unlock(&mutex);
}
