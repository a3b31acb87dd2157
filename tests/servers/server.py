"""What the servers of the tests have in common: a folder of their own, a child process, free ports, start and stop."""

import shutil
import tempfile
from pathlib import Path
from typing import Self

from child_process import ChildProcess, ServerError


class Server:
    """A server that runs as our child from `start()` to `stop()`, or within a `with` block.

    A subclass says in `_start_once` how: `self.folder` is empty and its own then, `self.child` the process to be set.
    """

    _PREFIX = "headrace-server-"  # of the folder's name
    _LIMIT = 60.0  # seconds until it has to be ready

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.child: ChildProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self.child.pid if self.child else 0

    def start(self, *, limit: float = 0) -> None:
        attempts = 3
        for attempt in range(1, attempts + 1):
            try:
                self.folder = Path(tempfile.mkdtemp(prefix=self._PREFIX))
                self._start_once(limit or self._LIMIT)
                return
            except ServerError:
                # Most likely another process took a port.
                self.stop()
                if attempt == attempts:
                    raise
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        if self.child:
            self.child.stop()
            self.child = None
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None

    def _start_once(self, limit: float) -> None:
        raise NotImplementedError
