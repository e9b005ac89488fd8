"""Reserves a port for a test that must know it beforehand."""
import contextlib
import random
import socket

RESERVED = []


def free_port():
    """Returns a port outside the system's ephemeral range that no other test gets from this function meanwhile: a bound
    socket reserves it, which only blocks programs that do not set SO_REUSEADDR, as servers do."""
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
