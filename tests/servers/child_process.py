"""A server that runs as our child: free ports, start, readiness, stop.

The child never outlives us: `stop()` ends it by its pid and waits for it, and the kernel asks it to end if we are killed.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class ServerError(RuntimeError):
    """The server did not start; the message ends with the tail of its log."""


def free_ports(count: int) -> list[int]:
    """`count` different loopback TCP ports that were free a moment ago. Another process may take one before its use:
    whoever starts a server on them tries again with fresh ones."""
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(count):
            probe = held.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
        return ports


class ChildProcess:
    """One child with its output in a log file.

    child = ChildProcess([binary, ...], log=folder / "server.log")
    child.wait_until(ready, limit=30)
    child.stop()
    """

    def __init__(self, command, *, log: Path, cwd: Path | None = None, env: dict | None = None):
        self.log = log
        with open(log, "wb") as output:
            # A session of its own: Ctrl-C in the terminal reaches us only, and we stop the child in order.
            self._process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=env,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self._name = Path(command[0]).name

    @property
    def pid(self) -> int:
        return self._process.pid

    def running(self) -> bool:
        return self._process.poll() is None

    def wait_until(self, ready, *, limit: float) -> None:
        """Returns once `ready()` is true. Raises ServerError when the child ends first or after `limit` seconds."""
        end = time.monotonic() + limit
        while not ready():
            if not self.running():
                raise ServerError(f"{self._name} ended with status {self._process.returncode}:\n{self.log_tail()}")
            if time.monotonic() > end:
                raise ServerError(f"{self._name} was not ready after {limit:g} s:\n{self.log_tail()}")
            time.sleep(0.02)

    def stop(self, *, limit: float = 10) -> None:
        """Asks the child to end, kills it after `limit` seconds, and has waited for it in either case."""
        if self.running():
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(limit)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()

    def log_tail(self, lines: int = 20) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


def _die_with_parent() -> None:
    # SIGTERM, so that a server can end its own children too.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def find_binary(name: str, *folders: Path | str) -> Path:
    """The program `name` from `folders`, PATH or the system's folders for servers."""
    places = [*folders, *os.environ.get("PATH", "").split(os.pathsep), "/usr/local/sbin", "/usr/sbin"]
    for place in places:
        candidate = Path(place) / name
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise ServerError(f"{name} not found: `./run test` and `./run demo` install it")
