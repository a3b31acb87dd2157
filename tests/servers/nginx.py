"""A static folder over HTTP or HTTPS: Debian's nginx on a loopback port, one worker, sendfile."""

import http.client
import os
import ssl
import subprocess
from pathlib import Path

from child_process import ChildProcess, ServerError, find_binary, free_ports
from server import Server

_CONFIG = """\
{user}
worker_processes 1;
daemon off;
pid "{state}/nginx.pid";
error_log "{state}/error.log" warn;
events {{ worker_connections 1024; }}
http {{
  {access_log}
  client_body_temp_path "{state}/body";
  proxy_temp_path "{state}/proxy";
  fastcgi_temp_path "{state}/fastcgi";
  uwsgi_temp_path "{state}/uwsgi";
  scgi_temp_path "{state}/scgi";
  default_type application/octet-stream;
  sendfile on;
  tcp_nodelay on;
  keepalive_requests 10000000;
  server {{
    listen 127.0.0.1:{port} {ssl} backlog=1024;
    root "{root}";
    autoindex off;
    {extra}
  }}
}}
"""


class Nginx(Server):
    """Serves `root` at `url`, without a trailing slash.

    with Nginx(folder) as server:
        ... f"{server.url}/model.safetensors" ...

    With `tls` it speaks TLS 1.2 and 1.3 for 127.0.0.1 and localhost; `ca_file` is what to trust then. `extra` goes into the server block, e.g. "etag off;" or "limit_rate 1m;". With `access_log` the requests are listed
    in the file of that name, one a line, after each has been answered.
    """

    _PREFIX = "headrace-http-"
    _LIMIT = 20.0

    def __init__(self, root: Path | str, *, tls: bool = False, extra: str = "", access_log: Path | None = None):
        super().__init__()
        self.root = Path(root).resolve()
        self.url = ""
        self.ca_file: Path | None = None
        self._tls = tls
        self._extra = extra
        self._access_log = access_log

    def _start_once(self, limit: float) -> None:
        binary = find_binary("nginx")
        (port,) = free_ports(1)
        extra = self._extra
        if self._tls:
            self.ca_file, key = make_certificate(self.folder)
            extra = f'ssl_certificate "{self.ca_file}"; ssl_certificate_key "{key}"; {self._extra}'
        config = self.folder / "nginx.conf"
        config.write_text(
            _CONFIG.format(
                # As root the worker would become another user, who cannot read a private folder.
                user="user root;" if os.geteuid() == 0 else "",
                state=self.folder,
                port=port,
                root=self.root,
                access_log=f'access_log "{self._access_log}";' if self._access_log else "access_log off;",
                ssl="ssl" if self._tls else "",
                extra=extra,
            )
        )
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}"
        self.child = ChildProcess(
            [binary, "-p", self.folder, "-c", config, "-e", self.folder / "error.log"], log=self.folder / "nginx.log"
        )
        self.child.wait_until(lambda: self._answers(port), limit=limit)

    def _answers(self, port: int) -> bool:
        if self._tls:
            trust = ssl.create_default_context(cafile=self.ca_file)
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=trust)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("HEAD", "/")
            return connection.getresponse().headers.get("Server", "").startswith("nginx")
        except OSError:
            return False
        finally:
            connection.close()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and localhost that signed itself, and its key: two PEM files in `folder`."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = [find_binary("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=headrace test", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    made = subprocess.run([*command, "-keyout", key, "-out", certificate], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise ServerError(f"openssl makes no certificate:\n{made.stderr}")
    return certificate, key
