"""A progress bar by tqdm: one for a group of processes, and none where nobody looks."""

from __future__ import annotations

import os
import sys
from typing import Any, Literal

Progress = bool | Literal["always"]


def make_bar(wanted: Progress, description: str) -> Bar | None:
    """A bar where one is wanted and this is the process to show it; with True only on a terminal."""
    if not wanted:
        return None
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError('progress needs tqdm: pip install "headrace[progress]"') from None
    if wanted != "always" and not (sys.stderr is not None and sys.stderr.isatty()):
        return None
    if not _first_of_group():
        return None
    return Bar(tqdm(desc=description, unit="B", unit_scale=True, unit_divisor=1024))


def _first_of_group() -> bool:
    """Whether this is the process that shows bars: rank 0 of a launcher's, and no child of multiprocessing."""
    for name in ("LOCAL_RANK", "RANK"):
        if os.environ.get(name, "0") != "0":
            return False
    multiprocessing = sys.modules.get("multiprocessing.process")
    return multiprocessing is None or multiprocessing.parent_process() is None


class Bar:
    """Shows how far a stream is."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def show(self, progress: tuple[int, int, int, int]) -> None:
        arrived, total, _, _ = progress
        if total and self._bar.total != total:
            self._bar.total = total
        self._bar.update(max(0, arrived - self._bar.n))

    def close(self) -> None:
        self._bar.close()
