#!/usr/bin/env python3
"""Records what a PyTorch's TCPStore and its clients say to each other: transcripts/, which transcript_test replays.

usage: record_store.py [--legacy] > transcripts/torch-VERSION.txt, with a python that has the torch in question;
       --legacy: with the server that is not libuv's, where there are two

Every scenario has a server of its own, clients, and a proxy between them that writes down the bytes in the order it saw
them. In the text:

    === scenario
    ## what a client was asked to do                  (the proxy had been quiet before)
    1> hex, up to 16 bytes  |the same as characters|  from the first client's connection to the server
    1< ...                                            and back
    1> opened, 1> closed, 1< closed
"""
import contextlib
import datetime
import os
import selectors
import socket
import subprocess
import sys
import threading
import time

QUIET = 0.1    # seconds without a byte, after which an action is taken to be over
# Seconds after which the rest of a request is there too: old servers wait for it, and requests do not mingle.
WHOLE = 0.003
PATIENCE = datetime.timedelta(seconds=60)


# ---- the proxy, a process of its own because some of torch's calls hold Python's lock while they wait ----

class Transcript:
    def __init__(self):
        self.spans = []  # (tag, bytes or words)

    def add(self, tag, data):
        if self.spans and self.spans[-1][0] == tag and isinstance(self.spans[-1][1], type(data)):
            data = self.spans.pop()[1] + data
        self.spans.append((tag, data))

    def write(self):
        for tag, data in self.spans:
            if isinstance(data, str):
                print(tag, data, flush=True)
                continue
            for i in range(0, len(data), 16):
                row = data[i:i + 16]
                text = "".join(chr(c) if 32 <= c < 127 else "." for c in row)
                print(f"{tag} {row.hex(' '):47}  |{text}|", flush=True)
        self.spans = []


def proxy(listener, control, server_port):
    """Labels come through control, one a line, and are answered once written; without one for good, it ends."""
    transcript, waiting, connections = Transcript(), selectors.DefaultSelector(), 0
    waiting.register(listener, selectors.EVENT_READ, None)
    waiting.register(control, selectors.EVENT_READ, None)
    label = None
    while True:
        events = waiting.select(QUIET if label is not None else None)
        if label is not None and not events:
            transcript.write()
            if label == "":
                return
            transcript.add("##", label)
            control.sendall(b".")
            label = None
        for key, _ in events:
            if key.fileobj is control:
                label = control.recv(4096).decode().rstrip("\n")
            elif key.fileobj is listener:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", server_port))
                connections += 1
                transcript.add(f"{connections}>", "opened")
                for near, far, tag in (client, server, f"{connections}>"), (server, client, f"{connections}<"):
                    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    waiting.register(near, selectors.EVENT_READ, (far, tag))
            else:
                far, tag = key.data
                time.sleep(WHOLE)
                try:
                    data = key.fileobj.recv(1 << 16)
                    if data:
                        far.sendall(data)
                except ConnectionError:
                    data = b""
                if not data:
                    with contextlib.suppress(OSError):
                        far.shutdown(socket.SHUT_WR)
                    waiting.unregister(key.fileobj)
                transcript.add(tag, data or "closed")


# ---- what is recorded ----

class Recording:
    """A server of torch, behind a proxy at self.port."""

    def __init__(self, name):
        print(f"\n=== {name}", flush=True)
        self.server = store(0, is_master=True)
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.control, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            self.control.close()
            try:
                proxy(listener, theirs, self.server.port)
            finally:
                os._exit(0)  # nothing of torch's is this process's to end
        theirs.close()
        listener.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.control.sendall(b"\n")
        os.waitpid(self.pid, 0)
        self.control.close()

    def label(self, text):
        self.control.sendall(text.encode() + b"\n")
        self.control.recv(1)

    def join(self, **options):
        self.label("join" + "".join(f" {name}={value}" for name, value in options.items()))
        return store(self.port, **options)


def store(port, wait_for_workers=False, world_size=None, **options):
    if LEGACY:
        options["use_libuv"] = False
    return torch.distributed.TCPStore("127.0.0.1", port, world_size, wait_for_workers=wait_for_workers,
                                      timeout=PATIENCE, **options)


def values():
    with Recording("values") as record:
        client = record.join()
        calls = [("set", "k", "v"), ("get", "k"), ("set", "k", ""), ("get", "k"), ("add", "c", 5), ("add", "c", -7),
                 ("get", "c"), ("check", ["k"]), ("check", ["k", "missing"]), ("wait", ["k", "c"]),
                 ("compare_set", "k", "other", "w"), ("compare_set", "k", "", "w"),
                 ("compare_set", "missing", "w", "x"),
                 ("compare_set", "new", "", "x"), ("compare_set", "new", "x", "longer-than-before"),
                 ("num_keys",), ("delete_key", "k"), ("delete_key", "k"), ("append", "a", "ab"), ("append", "a", "cd"),
                 ("get", "a"), ("multi_set", ["m", "n"], ["1", ""]), ("multi_get", ["m", "n", "c"]), ("num_keys",)]
        for name, *arguments in calls:
            if hasattr(client, "append" if arguments[:1] == ["a"] else name):
                record.label(" ".join([name, *map(repr, arguments)]).replace("'", '"'))
                getattr(client, name)(*arguments)
        record.label("leave")
        del client


def attempt(client, wait, key, seconds):
    try:
        client.wait([key], datetime.timedelta(seconds=seconds))
    except RuntimeError as e:
        wait.append(str(e).splitlines()[0])


def waiting():
    with Recording("waiting") as record:
        first, second = record.join(), record.join()
        for key, wake in [("s", lambda: second.set("s", "1")), ("n", lambda: second.add("n", 1))]:
            record.label(f'first waits for "{key}"')
            thread = threading.Thread(target=attempt, args=(first, [], key, 60))
            thread.start()
            record.label(f'second writes "{key}"')
            wake()
            thread.join()
        record.label("first waits in vain for half a second")
        attempt(first, [], "late", 0.5)
        record.label('second writes "late"')
        second.set("late", "1")
        if hasattr(first, "append"):  # before, the connection is out of step by now
            record.label('first gets "late"')
            first.get("late")


def world():
    with Recording("world of two") as record:
        record.label("two join and wait for each other")
        joined = []
        threads = [threading.Thread(target=lambda: joined.append(store(record.port, True, 2))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        record.label("leave")
        joined.clear()


def newest():
    """Requests that came after 2.6."""
    with Recording("newest") as record:
        first, second = record.join(), record.join()
        record.label("barrier of one in vain for half a second")
        with contextlib.suppress(RuntimeError):
            first.barrier("b", 2, datetime.timedelta(seconds=0.5))
        record.label("first comes to a barrier of two")
        thread = threading.Thread(target=lambda: first.barrier("c", 2))
        thread.start()
        record.label("second comes to it")
        second.barrier("c", 2)
        thread.join()
        for name in ["num_keys", "list_keys"]:
            record.label(name)
            getattr(first, name)()


RANK = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(x)
assert x.item() == 3
dist.barrier()
dist.destroy_process_group()
"""


def gloo():
    with Recording("gloo, two ranks") as record:
        record.label("init_process_group, all_reduce, barrier, destroy_process_group")
        ranks = []
        for rank in 0, 1:
            facts = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(record.port),
                     "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
            ranks.append(subprocess.Popen([sys.executable, "-c", RANK], env={**os.environ, **facts}))
        if any(rank.wait(60) for rank in ranks):
            sys.exit("a rank of the group failed")


def version():
    if torch.__file__.startswith("/usr/lib/python3/"):  # what the module says there is not the release
        return subprocess.run(["dpkg-query", "-W", "-f", "${Version} (Debian)", "python3-torch"],
                              stdout=subprocess.PIPE, text=True, check=True).stdout
    return torch.__version__


def main():
    kind = "legacy" if LEGACY else "default"
    print(f"# PyTorch {version()}, its {kind} server; written by record_store.py", flush=True)
    for scenario in values, waiting, world, gloo:
        scenario()
    if hasattr(torch.distributed.TCPStore, "barrier"):
        newest()


if __name__ == "__main__":
    import torch.distributed
    LEGACY = "--legacy" in sys.argv
    main()
