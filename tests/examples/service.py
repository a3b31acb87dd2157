"""The example service as a child process, and a client of it: for its tests and for its benchmark."""

import contextlib
import http.client
import json
import select
import signal
import subprocess
import time
from pathlib import Path


class Client:
    """One connection, kept alive."""

    def __init__(self, port: int):
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, method: str, path: str, body: str | None = None) -> tuple[int | None, dict]:
        """Status and what the answer's JSON says; a connection that breaks has no status."""
        try:
            self._connection.request(method, path, body)
            answer = self._connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            return None, {"broken": repr(error)}

    def close(self) -> None:
        self._connection.close()


class Service:
    """`http_service` with a model, on a port of its own.

    with Service(program, folder) as service:
        status, told = service.get("/weights/embed.weight")
        status, told = service.load(other_folder)
    """

    def __init__(self, program: Path, model: Path):
        self.program = program
        self.model = model
        self.port = 0
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> "Service":
        self._process = subprocess.Popen([self.program, self.model], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            self.port = int(self._first_line().rsplit(":", 1)[1])
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        return self

    def __exit__(self, *_) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def _first_line(self, limit: float = 60) -> str:
        text, until = b"", time.monotonic() + limit
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0, until - time.monotonic()))
            byte = self._process.stdout.read1(1) if ready else b""
            if not byte:
                self._process.kill()
                raise RuntimeError(f"the service did not start: {self._process.communicate()[1].decode()}")
            text += byte
        return text.decode()

    def client(self):
        return contextlib.closing(Client(self.port))

    def ask(self, method: str, path: str, body: str | None = None) -> tuple[int | None, dict]:
        with self.client() as client:
            return client.ask(method, path, body)

    def get(self, path: str) -> tuple[int | None, dict]:
        return self.ask("GET", path)

    def load(self, uri: str | Path) -> tuple[int | None, dict]:
        return self.ask("POST", "/load", json.dumps({"uri": str(uri)}))

    def stop(self) -> int:
        """Asks it to end; gives its exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)
