"""A proxy that is itself spoken to by TLS: CONNECT alone, in Python, a thread for each direction."""

import base64
import contextlib
import select
import socket
import ssl
import threading


class TlsProxy:
    """Listens on loopback with `certificate` and `key` (PEM files), asks for `user` and `password`.

    with TlsProxy(certificate, key, user="user", password="secret") as proxy:
        environment = {"https_proxy": proxy.url}

    `requests` holds the head of every request that came, as text.
    """

    def __init__(self, certificate, key, *, user: str, password: str):
        self.requests: list[str] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._expected = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://{user}:{password}@127.0.0.1:{self._listener.getsockname()[1]}"
        self._acceptor = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> "TlsProxy":
        self._acceptor.start()
        return self

    def __exit__(self, *_) -> None:
        # A thread that waits in accept is not woken by close.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError), self._context.wrap_socket(plain, server_side=True) as client:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                byte = client.recv(1)
                if not byte:
                    return
                head += byte
            text = head.decode()
            self.requests.append(text)
            if f"Proxy-Authorization: Basic {self._expected}\r\n" not in text:
                client.sendall(b"HTTP/1.1 407 No\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n")
                return
            host, port = text.split()[1].rsplit(":", 1)
            with socket.create_connection((host, int(port))) as origin:
                client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
                _relay(client, origin)


def _relay(client: ssl.SSLSocket, origin: socket.socket) -> None:
    # One thread alone may use an SSLSocket: it waits for either side, and never long.
    client.setblocking(False)
    origin.setblocking(False)
    wanted = {client: b"", origin: b""}  # what is still to be sent there
    while True:
        moved = False
        for source, target in ((client, origin), (origin, client)):
            if len(wanted[target]) < 1 << 20:
                with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
                    received = source.recv(65536)
                    if not received:
                        return
                    wanted[target] += received
                    moved = True
            if wanted[target]:
                with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
                    wanted[target] = wanted[target][target.send(wanted[target]) :]
                    moved = True
        if not moved:
            _wait_for(client, origin, wanted)


def _wait_for(client: ssl.SSLSocket, origin: socket.socket, wanted: dict) -> None:
    writable = [side for side in (client, origin) if wanted[side]]
    select.select([client, origin], writable, [], 1)
