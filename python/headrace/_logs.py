"""The engine's log lines become records of the logger `headrace`."""

from __future__ import annotations

import logging

from headrace import _core

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
_NONE = len(_LEVELS)

_logger = logging.getLogger("headrace")
_logger.addHandler(logging.NullHandler())
_collected: int | None = None


def _hand_on(level: int, line: str) -> None:
    _logger.log(_LEVELS[level], "%s", line)


def collect() -> None:
    """Has the engine collect what the logger wants now. Lines arrive while Python waits for a stream or takes from it."""
    global _collected
    wanted = next((at for at, level in enumerate(_LEVELS) if _logger.isEnabledFor(level)), _NONE)
    if wanted != _collected:
        _core.collect_log(_hand_on, wanted)
        _collected = wanted
