"""A stand-in for the Hugging Face Hub: repositories over folders, large files behind redirects to another origin."""

import http.server
import json
import threading
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from model_server import ModelServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer:
    """Serves the folder `root/ORG/NAME` as the repository ORG/NAME, with the branch `main` and one commit.

    with HubServer(root) as hub:
        ... hub.url, hub.cdn ...

    Safetensors files are redirected to `hub.cdn`, a server of its own. `token` has to be sent where it is set. Listings come
    in pages of `page` entries. `requests` lists (path, authorization) of what came.
    """

    def __init__(self, root: Path, *, token: str | None = None, page: int = 1000):
        self.root = root
        self.token = token
        self.page = page
        self.requests: list[tuple[str, str | None]] = []
        self.cdn = ModelServer(root)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "HubServer":
        self.cdn.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.cdn.__exit__()


def _handler_of(hub: HubServer):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_):
            pass

        def do_GET(self):
            hub.requests.append((self.path, self.headers.get("Authorization")))
            if hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
                self._answer(401, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Invalid username or password."})
                return
            place = urlsplit(self.path)
            parts = [unquote(part) for part in place.path.strip("/").split("/")]
            if parts[:2] == ["api", "models"]:
                self._api("/".join(parts[2:4]), parts[4], parts[5], "/".join(parts[6:]), place.query)
            else:
                self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))

        def _api(self, repository: str, kind: str, revision: str, folder: str, query: str) -> None:
            place = hub.root / repository / folder
            if revision not in ("main", COMMIT):
                self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
            elif not place.is_dir():
                self._answer(404, b"", {"X-Error-Code": "EntryNotFound" if folder else "RepoNotFound"})
            elif kind == "revision":
                self._answer(200, json.dumps({"id": repository, "sha": COMMIT}).encode())
            else:
                entries = [self._entry(hub.root / repository, path) for path in sorted(place.iterdir())]
                start = int(query.partition("cursor=")[2] or 0)
                headers = {}
                if start + hub.page < len(entries):
                    target = f"{hub.url}{self.path.split('?')[0]}?cursor={start + hub.page}"
                    headers["Link"] = f'<{target}>; rel="next"'
                self._answer(200, json.dumps(entries[start : start + hub.page]).encode(), headers)

        @staticmethod
        def _entry(root: Path, path: Path) -> dict:
            kind = "directory" if path.is_dir() else "file"
            size = 0 if path.is_dir() else path.stat().st_size
            return {"type": kind, "oid": "0", "size": size, "path": path.relative_to(root).as_posix()}

        def _file(self, repository: str, revision: str, name: str) -> None:
            path = hub.root / repository / name
            if revision != COMMIT or not path.is_file():
                self._answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
            elif name.endswith(".safetensors"):
                location = f"{hub.cdn.url}/{quote(f'{repository}/{name}')}?Signature=secret"
                linked = {"X-Linked-Size": str(path.stat().st_size), "X-Linked-Etag": '"linked"', "X-Repo-Commit": COMMIT}
                self._answer(302, b"Found", {"Location": location, **linked})
            else:
                self._answer(200, path.read_bytes(), {"ETag": '"small"', "X-Repo-Commit": COMMIT})

        def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
