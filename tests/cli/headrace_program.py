"""The headrace program as a child process."""

import ctypes
import errno
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from dataclasses import dataclass
from pathlib import Path

# Sanitizers are slow, and so is a machine that is shared.
PATIENCE = float(os.environ.get("HEADRACE_TIMEOUT_MULTIPLIER", "1"))
LIMIT = 60 * PATIENCE

_ERROR_LINE = re.compile(
    r"headrace: (not_found|access_denied|invalid_request|throttled|timeout|object_changed|truncated|protocol_error|tls_error"
    r"|connect_error|unavailable|invalid_safetensors|unsupported|cancelled|out_of_memory|internal): \S.*\n"
)


def binary() -> Path:
    for variable in ("HEADRACE_BIN", "HEADRACE_CLI"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).absolute()
    return Path(__file__).resolve().parents[2] / "build" / "cli" / "headrace"


def clean_environment() -> dict[str, str]:
    """Ours without what would configure the program."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HEADRACE_", "AWS_", "AZURE_", "IDENTITY_", "HF_", "GOOGLE_"))
        and not name.lower().endswith("_proxy")
    }


# No test meets the keys of whoever runs it, or of the machine that it runs on.
NOBODYS_KEYS = {
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def has_io_uring() -> bool:
    # With a null pointer it fails in either case; EFAULT says that it would have worked.
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(425, 1, None)
    return ctypes.get_errno() == errno.EFAULT


@dataclass
class Outcome:
    status: int
    stdout: str
    stderr: str

    def error_kind(self) -> str:
        """The KIND of a failure that is reported as it must be: exit 1, one line, nothing on standard output."""
        assert (self.status, self.stdout) == (1, ""), self
        line = _ERROR_LINE.fullmatch(self.stderr)
        assert line, self
        return line[1]

    def usage_message(self) -> str:
        assert (self.status, self.stdout) == (2, ""), self
        assert re.fullmatch(r"headrace: usage: \S.*\n", self.stderr), self
        return self.stderr


class Program:
    """Runs `headrace` with a clean environment and `environment` on top."""

    def __init__(self, **environment: str):
        self.environment = environment

    def start(self, *arguments, environment: dict | None = None, **options) -> subprocess.Popen:
        merged = {**clean_environment(), **NOBODYS_KEYS, **self.environment, **(environment or {})}
        command = [str(word) for word in (binary(), *arguments)]
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen(command, env=merged, **options)

    def __call__(self, *arguments, environment: dict | None = None, **options) -> Outcome:
        child = self.start(*arguments, environment=environment, **options)
        return collect(child)


def collect(child: subprocess.Popen, limit: float = LIMIT) -> Outcome:
    try:
        stdout, stderr = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        child.kill()
        stdout, stderr = child.communicate()
        raise AssertionError(f"not finished after {limit:g} s: {child.args}\n{stdout!r}\n{stderr!r}") from None
    return Outcome(child.returncode, (stdout or b"").decode(), (stderr or b"").decode())


class Terminal:
    """A pseudo-terminal for a child's standard error. `text` is all that came, `screen()` what it looks like."""

    def __init__(self, columns: int = 100):
        self.columns = columns
        self._ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._received = b""
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_) -> None:
        self._closing.set()
        os.close(self.theirs)
        self._reader.join()
        os.close(self._ours)

    def _read(self) -> None:
        while True:
            readable, _, _ = select.select([self._ours], [], [], 0.05)
            if not readable:
                if self._closing.is_set():
                    return
                continue
            try:
                received = os.read(self._ours, 65536)
            except OSError:
                return
            if not received:
                return
            self._received += received

    @property
    def text(self) -> str:
        return self._received.decode(errors="replace")

    def wait_for(self, found, limit: float = LIMIT) -> None:
        wait_until(lambda: found(self.text), limit, lambda: f"the terminal shows {self.text!r}")

    def screen(self) -> list[str]:
        """The lines as a terminal shows them. Knows carriage returns, newlines and erasing to the end of a line."""
        lines, column = [""], 0
        for part in re.findall(r"\x1b\[K|[\r\n]|[^\r\n\x1b]|\x1b", self.text):
            if part == "\x1b[K":
                lines[-1] = lines[-1][:column]
            elif part == "\r":
                column = 0
            elif part == "\n":
                lines.append("")
            else:
                assert part != "\x1b", f"unknown control sequence in {self.text!r}"
                lines[-1] = lines[-1][:column].ljust(column) + part + lines[-1][column + 1 :]
                column += 1
                assert column < self.columns, f"a line reached the last of {self.columns} columns: {lines[-1]!r}"
        return [line.rstrip() for line in lines]


def wait_until(ready, limit: float = LIMIT, what=lambda: "it did not happen") -> None:
    end = time.monotonic() + limit
    while not ready():
        assert time.monotonic() < end, f"after {limit:g} s: {what()}"
        time.sleep(0.005)


def without_privileges() -> None:
    """In a child before exec: root then obeys the permissions of files."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    pr_capbset_drop, cap_dac_override, cap_dac_read_search = 24, 1, 2
    if os.geteuid() == 0:
        for capability in (cap_dac_override, cap_dac_read_search):
            if prctl(pr_capbset_drop, capability, 0, 0, 0) != 0:
                os._exit(99)


def interrupt(child: subprocess.Popen, number: int = signal.SIGINT) -> tuple[Outcome, float]:
    """Sends a signal. Gives the outcome and the seconds that the child went on."""
    sent = time.monotonic()
    child.send_signal(number)
    child.wait(LIMIT)
    took = time.monotonic() - sent
    return collect(child), took
