"""Runs a program and measures it; runs several in alternated rounds, each on conditioned memory."""

import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

RUN_LIMIT_SECONDS = 180


Rounds = list[dict[str, "Sample"]]


class RunError(Exception):
    """A program that failed, hung or reported nonsense: no figure comes from it."""


@dataclasses.dataclass
class Sample:
    """One pass over a checkpoint, by one program."""

    bytes: int
    seconds: float
    cpu_seconds: float
    peak_rss_bytes: int
    wall_seconds: float
    stats: dict

    @property
    def gbps(self) -> float:
        return self.bytes / self.seconds / 1e9

    @property
    def cpu_per_gb(self) -> float:
        return self.cpu_seconds / (self.bytes / 1e9)

    @property
    def rss_mib(self) -> float:
        return self.peak_rss_bytes / (1 << 20)

    def number(self, name: str) -> float:
        return number(self.stats, name)


def number(stats: dict, name: str) -> float:
    value = stats.get(name)
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 <= value < float("inf")
    ):
        raise RunError(f"the statistics hold no usable {name}: {json.dumps(stats)[:400]}")
    return value


def clean_environment(**extra: str) -> dict[str, str]:
    """This process's environment without what would change a run: our own options, and proxies."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HEADRACE_") and not name.lower().endswith("_proxy")
    }
    return kept | extra


def run(
    command: list[str],
    stats_file: pathlib.Path | None = None,
    *,
    startup_seconds: float = 1,
    **environment: str,
) -> list[Sample]:
    """One process; a sample for each object of its statistics (`--repeat` reports several).

    The statistics come from `stats_file`, without one from stdout. Processor time is what the
    kernel reports to a parent, from start to end of the process: one instrument for every program.
    Only where there are several passes is it taken from the statistics. `startup_seconds` is what a
    process may take that its own seconds do not cover.
    """
    if stats_file is not None:
        stats_file.unlink(missing_ok=True)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        start = time.monotonic()
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=clean_environment(**environment),
            )
        except OSError as error:
            raise RunError(f"cannot run {command[0]}: {error.strerror}") from error
        late = threading.Timer(RUN_LIMIT_SECONDS, process.kill)
        late.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            late.cancel()
        wall_seconds = time.monotonic() - start
        output.seek(0)
        errors.seek(0)
        message = errors.read().decode(errors="replace").strip()
        name = pathlib.Path(command[0]).name
        if process.returncode != 0:
            if wall_seconds >= RUN_LIMIT_SECONDS:
                message = f"ran past {RUN_LIMIT_SECONDS} seconds and was killed. {message}"
            raise RunError(
                f"{name} ended with status {process.returncode}: {message or 'no message'}"
            )
        try:
            text = stats_file.read_bytes() if stats_file is not None else output.read()
            found = json.loads(text)
        except (OSError, ValueError) as error:
            raise RunError(f"{name} wrote no usable statistics: {error}") from error
    passes = found if isinstance(found, list) else [found]
    if not passes or not all(isinstance(each, dict) for each in passes):
        raise RunError(f"{name}: the statistics are not an object or an array of objects")

    samples = []
    for stats in passes:
        alone = len(passes) == 1
        samples.append(
            Sample(
                bytes=int(number(stats, "bytes")),
                seconds=number(stats, "seconds"),
                cpu_seconds=usage.ru_utime + usage.ru_stime
                if alone
                else number(stats, "cpu_seconds"),
                # Of the program's own figure and the kernel's, the larger one.
                peak_rss_bytes=max(usage.ru_maxrss * 1024, int(number(stats, "peak_rss_bytes"))),
                wall_seconds=wall_seconds,
                stats=stats,
            )
        )
    if sum(sample.seconds for sample in samples) > wall_seconds:
        raise RunError(f"{name} claims more seconds than it ran for: {json.dumps(found)[:400]}")
    if wall_seconds > 2 * sum(sample.seconds for sample in samples) + startup_seconds:
        raise RunError(f"{name} ran for {wall_seconds:.1f} seconds but claims: {json.dumps(found)}")
    if any(sample.seconds <= 0 for sample in samples):
        raise RunError(f"{name} claims to have taken no time: {json.dumps(found)[:400]}")
    return samples


def run_quietly(command: list[str]) -> None:
    """One process of which nothing is measured."""
    try:
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise RunError(f"cannot run {command[0]}: {error.strerror}") from error
    if result.returncode != 0:
        message = result.stderr.strip() or f"status {result.returncode}"
        raise RunError(f"{pathlib.Path(command[0]).name}: {message}")


def run_for_json(command: list[str]) -> dict:
    """One process that measures itself and prints what it found."""
    name = pathlib.Path(command[0]).name
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_LIMIT_SECONDS,
            env=clean_environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunError(f"cannot run {command[0]}: {error}") from error
    if result.returncode != 0:
        raise RunError(f"{name}: {result.stderr.strip() or f'status {result.returncode}'}")
    try:
        found = json.loads(result.stdout)
    except ValueError as error:
        raise RunError(f"{name} wrote no usable results: {error}") from error
    if not isinstance(found, dict):
        raise RunError(f"{name}: the results are not an object")
    return found


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def alternate(
    name: str,
    rounds: int,
    contestants: dict[str, Callable[[], Sample]],
    before_each: Callable[[], None],
) -> Rounds:
    """Runs every contestant once a round, A B A B …: drift of the machine meets them all."""
    results = []
    for count in range(1, rounds + 1):
        result = {}
        for contestant, measure in contestants.items():
            before_each()
            result[contestant] = measure()
        results.append(result)
        figures = ", ".join(f"{who} {sample.gbps:.2f} GB/s" for who, sample in result.items())
        say(f"  {name} {count}/{rounds}: {figures}")
    return results


def median(rounds: Rounds, who: str, figure: Callable[[Sample], float]) -> float:
    return statistics.median(figure(each[who]) for each in rounds)


def ratio(
    rounds: Rounds, who: str, other: str, figure: Callable[[Sample], float]
) -> tuple[float, float, float]:
    """Median, least and greatest of the ratios within a round."""
    ratios = [figure(each[who]) / figure(each[other]) for each in rounds]
    return statistics.median(ratios), min(ratios), max(ratios)
