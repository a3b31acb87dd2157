"""The server of the benchmarks: nginx on loopback, one worker, serving a folder with sendfile.

Over TLS it speaks TLS 1.3 with AES-128-GCM alone."""

import getpass
import grp
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

CONFIGURATION = """\
{user}
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  sendfile on;
  keepalive_requests 1000000000;
  keepalive_timeout 300s;
  default_type application/octet-stream;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port}{tls};
    root "{root}";{locations}
  }}
}}
"""


TLS = """ ssl;
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    ssl_protocols TLSv1.3;
    ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256"""


class NginxError(Exception):
    pass


def find_nginx() -> str:
    usual = "/usr/sbin/nginx"  # often not in the PATH of a user
    if os.access(usual, os.X_OK):
        return usual
    found = shutil.which("nginx")
    if found is None:
        raise NginxError("nginx is missing: install nginx-light (or nginx)")
    return found


def version() -> str:
    text = subprocess.run([find_nginx(), "-v"], capture_output=True, text=True, check=False).stderr
    return text.strip().rpartition("/")[2] or "unknown"


def openssl(*command: str) -> None:
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NginxError(f"cannot run openssl: {error.strerror}") from error
    if made.returncode != 0:
        raise NginxError(f"openssl makes no certificate:\n{made.stderr}")


class Nginx:
    """`with Nginx(root) as server:` serves `root` at `server.url` until the block is left.

    With `tls`, `server.ca_file` is what to trust.
    """

    def __init__(self, root: pathlib.Path, *, tls: bool = False):
        self._root = root
        self._tls = tls
        self.ca_file = ""
        self._process: subprocess.Popen | None = None
        self.url = ""

    def __enter__(self) -> "Nginx":
        executable = find_nginx()
        if any(character in '"\\$' for character in str(self._root)):
            raise NginxError(f"nginx cannot serve a folder with such a name: {self._root}")
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-bench-nginx-")
        try:
            if self._tls:
                self._make_certificate()
            for _ in range(5):
                if self._start(executable):
                    return self
            raise NginxError(f"nginx does not start:\n{self._log()}")
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_unused: object) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()

    def _start(self, executable: str) -> bool:
        """False where another process took the port between our choice of it and nginx's."""
        folder = self._folder.name
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        # As root, the worker would become a user who may not read the checkpoints.
        user = (
            f"user {getpass.getuser()} {grp.getgrgid(os.getgid()).gr_name};"
            if os.geteuid() == 0
            else ""
        )
        path = pathlib.Path(folder, "nginx.conf")
        path.write_text(
            CONFIGURATION.format(
                user=user,
                folder=folder,
                port=port,
                root=self._root,
                tls=TLS.format(certificate=self._certificate, key=self._key) if self._tls else "",
                locations=self._locations(pathlib.Path(folder)),
            ),
            encoding="utf-8",
        )
        self._process = subprocess.Popen(
            [executable, "-p", folder, "-c", str(path), "-e", f"{folder}/error.log"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Its own process group: Ctrl-C reaches the driver alone, which then stops the server.
            start_new_session=True,
        )
        limit = time.monotonic() + 10
        while time.monotonic() < limit:
            if self._process.poll() is not None:
                if "Address already in use" in self._log():
                    return False
                raise NginxError(f"nginx does not start:\n{self._log()}")
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                time.sleep(0.01)
                continue
            # The port answers; it is ours if the process has not given up on it.
            time.sleep(0.05)
            if self._process.poll() is None:
                self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}"
                return True
        raise NginxError(f"nginx does not answer within 10 seconds:\n{self._log()}")

    def _locations(self, folder: pathlib.Path) -> str:
        """What a subclass adds to the server's block; `folder` is the server's own."""
        return ""

    def _make_certificate(self) -> None:
        """For 127.0.0.1, signed by itself."""
        folder = pathlib.Path(self._folder.name)
        self.ca_file = self._certificate = str(folder / "certificate.pem")
        self._key = str(folder / "key.pem")
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        command += ["-nodes", "-days", "2", "-subj", "/CN=headrace", "-keyout", self._key]
        openssl(*command, "-addext", "subjectAltName=IP:127.0.0.1", "-out", self.ca_file)

    def _log(self) -> str:
        try:
            return pathlib.Path(self._folder.name, "error.log").read_text(encoding="utf-8").strip()
        except OSError:
            return "(no log)"
