"""An HTTP server over a folder that answers ranges, and misbehaves on request."""

import hashlib
import http.server
import re
import threading
from pathlib import Path


class ModelServer:
    """Serves `root` at `url`.

    with ModelServer(folder) as server:
        ... f"{server.url}/model" ...

    `ranges=False` ignores ranges, as Python's own server does. `requests` lists (method, path, range header) of what came.
    `hold(path)` makes each answer about that path stop after its first `after` bytes of body until `release()`; `held` is set
    once one does. After `release(broken=True)` these connections are cut instead, and `refuse` answers what comes next with
    that status.
    """

    def __init__(self, root: Path, *, ranges: bool = True):
        self.root = root
        self.ranges = ranges
        self.requests: list[tuple[str, str, str | None]] = []
        self.held = threading.Event()
        self.refuse: int | None = None
        self._held_path: str | None = None
        self._held_after = 0
        self._held_from = 0
        self._released = threading.Event()
        self._broken = False
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "ModelServer":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.release(broken=True)
        self._server.shutdown()
        self._server.server_close()

    def hold(self, path: str, *, after: int = 0, start: int = 0) -> None:
        """Holds answers whose range begins at `start` or later."""
        self._held_path, self._held_after, self._held_from = path, after, start

    def release(self, *, broken: bool = False) -> None:
        self._broken = broken
        self._released.set()

    def _send(self, handler, path: str, start: int, body: bytes) -> None:
        if path != self._held_path or start < self._held_from or self._released.is_set():
            handler.wfile.write(body)
            return
        handler.wfile.write(body[: self._held_after])
        handler.wfile.flush()
        self.held.set()
        self._released.wait()
        if self._broken:
            handler.close_connection = True
        else:
            handler.wfile.write(body[self._held_after :])


def _handler_of(server: ModelServer):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_):
            pass

        def do_HEAD(self):
            self._answer(with_body=False)

        def do_GET(self):
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            wanted = self.headers.get("Range")
            server.requests.append((self.command, self.path, wanted))
            if server.refuse is not None:
                self._refuse(server.refuse)
                return
            path = server.root / self.path.split("?")[0].lstrip("/")
            if not path.is_file():
                self._refuse(404)
                return
            content = path.read_bytes()
            start, end, status = 0, len(content), 200
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted or "")
            if asked and server.ranges:
                start = int(asked[1])
                end = min(len(content), int(asked[2]) + 1) if asked[2] else len(content)
                status = 206
                if start >= len(content):
                    self._refuse(416, {"Content-Range": f"bytes */{len(content)}"})
                    return
            self.send_response(status)
            self.send_header("Content-Length", str(end - start))
            self.send_header("ETag", '"' + hashlib.sha256(content).hexdigest()[:32] + '"')
            if server.ranges:
                self.send_header("Accept-Ranges", "bytes")
            if status == 206:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
            self.end_headers()
            if with_body:
                try:
                    server._send(self, self.path, start, content[start:end])
                except OSError:
                    self.close_connection = True

        def _refuse(self, status: int, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return Handler
