"""A real HTTP proxy: Debian's tinyproxy on a loopback port."""

import http.client
from pathlib import Path

from child_process import ChildProcess, find_binary, free_ports
from server import Server

_CONFIG = """\
Port {port}
Listen 127.0.0.1
Timeout 60
MaxClients 100
LogLevel Connect
PidFile "{state}/tinyproxy.pid"
{extra}
"""


class Tinyproxy(Server):
    """Forwards, and connects by CONNECT to the ports of `connect_ports` (any, where that is empty).

    with Tinyproxy(user="user", password="secret") as proxy:
        environment = {"http_proxy": proxy.url, "https_proxy": proxy.url}
    """

    _PREFIX = "headrace-proxy-"
    _LIMIT = 20.0

    def __init__(self, *, user: str = "", password: str = "", connect_ports: tuple[int, ...] = ()):
        super().__init__()
        self.port = 0
        self._user = user
        self._password = password
        self._connect_ports = connect_ports

    @property
    def url(self) -> str:
        """With the user and the password where it asks for them."""
        credentials = f"{self._user}:{self._password}@" if self._user else ""
        return f"http://{credentials}127.0.0.1:{self.port}"

    def log(self) -> str:
        return self.child.log.read_text(errors="replace")

    def _start_once(self, limit: float) -> None:
        binary = find_binary("tinyproxy")
        (self.port,) = free_ports(1)
        extra = [f"ConnectPort {port}" for port in self._connect_ports]
        if self._user:
            extra.append(f"BasicAuth {self._user} {self._password}")
        config = self.folder / "tinyproxy.conf"
        config.write_text(_CONFIG.format(port=self.port, state=self.folder, extra="\n".join(extra)))
        self.child = ChildProcess([binary, "-d", "-c", config], log=self.folder / "tinyproxy.log")
        self.child.wait_until(self._answers, limit=limit)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/")
            return "tinyproxy" in connection.getresponse().headers.get("Server", "")
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
