"""Reserves a port for a test that must know it beforehand."""
import contextlib
import random
import socket

RESERVED = []


def free_port():
    """One that the system does not give away by itself, and no other test gets from here while this one runs: a socket
    stays bound to it, which is in the way of nobody who says SO_REUSEADDR, as servers do, and of all others."""
    dual = socket.has_dualstack_ipv6()
    while True:
        port = random.randrange(10000, 30000)
        holder = socket.socket(socket.AF_INET6 if dual else socket.AF_INET)
        with contextlib.suppress(OSError):
            if dual:
                holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            holder.bind(("", port))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not before: then nobody else has it
            RESERVED.append(holder)
            return port
        holder.close()
