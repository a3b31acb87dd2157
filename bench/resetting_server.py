"""A server of ranges that resets the first answer to each of them half-way: what faults cost in bytes."""

import os
import re
import socket
import struct
import threading
from pathlib import Path
from types import TracebackType

_RANGE = re.compile(rb"^range:\s*bytes=(\d+)-(\d+)\s*$", re.IGNORECASE | re.MULTILINE)
_TARGET = re.compile(rb"^GET (/\S*) HTTP/1\.1\r\n")
_LINGER_RESET = struct.pack("ii", 1, 0)


class ResettingServer:
    """Serves the files of a folder on loopback, a thread for each connection.

    `sent` counts the bytes of bodies that the kernel has taken, also those that a reset then throws away; `resets` the
    resets. With `faulty` false nothing is reset.
    """

    def __init__(self, root: Path, *, faulty: bool = True):
        self.sent = 0
        self.resets = 0
        self._root = root
        self._faulty = faulty
        self._lock = threading.Lock()
        self._seen: set[tuple[str, int]] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> "ResettingServer":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while head := self._head(connection):
                    if not self._answer(connection, head):
                        return
            except OSError:
                return

    @staticmethod
    def _head(connection: socket.socket) -> bytes:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            part = connection.recv(65536)
            if not part:
                return b""
            head += part
        return head

    def _answer(self, connection: socket.socket, head: bytes) -> bool:
        target, wanted = _TARGET.match(head), _RANGE.search(head)
        name = target.group(1).decode() if target else "/"
        path = (self._root / name.lstrip("/")).resolve()
        if not path.is_file() or not path.is_relative_to(self._root.resolve()) or not wanted:
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return True
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            begin = int(wanted.group(1))
            end = min(int(wanted.group(2)) + 1, status.st_size)
            connection.sendall(
                f"HTTP/1.1 206 Partial Content\r\nContent-Length: {end - begin}\r\nETag: \"{status.st_mtime_ns}\"\r\n"
                f"Content-Range: bytes {begin}-{end - 1}/{status.st_size}\r\n\r\n".encode()
            )
            with self._lock:
                cut = self._faulty and (name, end) not in self._seen
                self._seen.add((name, end))
            left = (end - begin) // 2 if cut else end - begin
            while left > 0:
                count = os.sendfile(connection.fileno(), file.fileno(), begin, left)
                begin, left = begin + count, left - count
                with self._lock:
                    self.sent += count
        if not cut:
            return True
        with self._lock:
            self.resets += 1
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
        return False
