"""A port for a test that must know it beforehand."""
import contextlib
import random
import socket


def free_port():
    """One that the system does not give away by itself: other tests ask it for ports all the time."""
    dual = socket.has_dualstack_ipv6()
    while True:
        port = random.randrange(10000, 30000)
        with contextlib.suppress(OSError), socket.create_server(
                ("", port), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual):
            return port
