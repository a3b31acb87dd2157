"""A real HTTP proxy: Debian's tinyproxy on a loopback port."""

import http.client
import shutil
import tempfile
from pathlib import Path

from child_process import ChildProcess, ServerError, find_binary, free_ports

_CONFIG = """\
Port {port}
Listen 127.0.0.1
Timeout 60
MaxClients 100
LogLevel Connect
PidFile "{state}/tinyproxy.pid"
{extra}
"""


class Tinyproxy:
    """Forwards, and connects by CONNECT to the ports of `connect_ports` (any, where that is empty).

    with Tinyproxy(user="user", password="secret") as proxy:
        environment = {"http_proxy": proxy.url, "https_proxy": proxy.url}
    """

    def __init__(self, *, user: str = "", password: str = "", connect_ports: tuple[int, ...] = ()):
        self.port = 0
        self._user = user
        self._password = password
        self._connect_ports = connect_ports
        self._state: Path | None = None
        self._child: ChildProcess | None = None

    @property
    def url(self) -> str:
        """With the user and the password where it asks for them."""
        credentials = f"{self._user}:{self._password}@" if self._user else ""
        return f"http://{credentials}127.0.0.1:{self.port}"

    def log(self) -> str:
        return self._child.log.read_text(errors="replace")

    def __enter__(self) -> "Tinyproxy":
        self.start()
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def start(self, *, limit: float = 20) -> None:
        attempts = 3
        for attempt in range(1, attempts + 1):
            try:
                self._start_once(limit)
                return
            except ServerError:
                # Most likely another process took the port.
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
        if self._state:
            shutil.rmtree(self._state, ignore_errors=True)
            self._state = None

    def _start_once(self, limit: float) -> None:
        binary = find_binary("tinyproxy")
        self._state = Path(tempfile.mkdtemp(prefix="headrace-proxy-"))
        (self.port,) = free_ports(1)
        extra = [f"ConnectPort {port}" for port in self._connect_ports]
        if self._user:
            extra.append(f"BasicAuth {self._user} {self._password}")
        config = self._state / "tinyproxy.conf"
        config.write_text(_CONFIG.format(port=self.port, state=self._state, extra="\n".join(extra)))
        self._child = ChildProcess([binary, "-d", "-c", config], log=self._state / "tinyproxy.log")
        self._child.wait_until(self._answers, limit=limit)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/")
            return "tinyproxy" in connection.getresponse().headers.get("Server", "")
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
