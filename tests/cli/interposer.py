"""A proxy before a real server, for what must happen between two of its answers."""

import http.client
import http.server
import re
import threading
from collections.abc import Callable
from urllib.parse import urlsplit


class Interposer:
    """Passes GET requests on to the server at `target` and its answers back, without changing them.

    with Interposer(server.endpoint, before=overwrite) as between:
        ... between.url ...

    `before(start)` is called, one call at a time, before a request for the bytes from `start` on is passed on.
    """

    def __init__(self, target: str, *, before: Callable[[int], None]):
        self._target = urlsplit(target)
        self._before = before
        self._lock = threading.Lock()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{self._target.path}"

    def __enter__(self) -> "Interposer":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _ask(self, path: str, headers: dict[str, str]) -> tuple[int, list[tuple[str, str]], bytes]:
        asked = re.fullmatch(r"bytes=(\d+)-\d*", headers.get("Range", ""))
        if asked:
            with self._lock:
                self._before(int(asked[1]))
        connection = http.client.HTTPConnection(self._target.hostname, self._target.port, timeout=60)
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()


def _handler_of(interposer: Interposer):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            status, fields, body = interposer._ask(self.path, dict(self.headers))
            self.send_response_only(status)
            for name, value in fields:
                if name.lower() not in ("transfer-encoding", "content-length", "connection", "keep-alive"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:
                self.close_connection = True

    return Handler
