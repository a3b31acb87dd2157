#!/usr/bin/env python3
"""Measures headrace against a bare C loop that moves the same bytes, and writes bench/RESULTS.md.

./run bench                      every comparison
./run bench list                 their names and targets
./run bench stream-uring keep    only these; the other sections of RESULTS.md stay
./run bench --quick tiny         one round, nothing written: for development
"""

import argparse
import os
import pathlib
import signal
import sys
import tempfile

import machine
from comparisons import COMPARISONS
from contestants import Contestants
from measure import RunError, say
from nginx import Nginx, NginxError
from results import Section
from results import write as write_results

BENCH = pathlib.Path(__file__).resolve().parent
USUAL_ROUNDS = 7


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, path = parser.add_argument, pathlib.Path
    add("names", nargs="*", metavar="NAME", help="comparisons to run (default: all), or: list")
    add("--rounds", type=int, metavar="N", help="rounds of each (default: 7, with --quick 1)")
    add("--quick", action="store_true", help="few rounds, RESULTS.md not written")
    add("--write", action="store_true", help="write RESULTS.md however few the rounds")
    add(
        "--dir",
        type=path,
        metavar="FOLDER",
        default=path("/dev/shm/headrace-bench"),
        help="the checkpoints, on tmpfs: 3.3 GB, kept for the next time (default: %(default)s)",
    )
    add(
        "--disk-dir",
        type=path,
        metavar="FOLDER",
        help="the copy on a disk, for `local`: 3.1 GB, kept (default: bench-data in the build)",
    )
    add(
        "--build",
        type=path,
        metavar="FOLDER",
        default=BENCH.parent / "build",
        help="the build to measure (default: build)",
    )
    add("--headrace", type=path, metavar="FILE", help="the program (default: that of the build)")
    add(
        "--settle",
        type=float,
        metavar="SECONDS",
        default=10,
        help="how long memory lies free before `unconditioned` (default: %(default)s)",
    )
    add("--results", type=path, metavar="FILE", default=BENCH / "RESULTS.md", help="what to write")
    arguments = parser.parse_args()

    unknown = [name for name in arguments.names if name not in COMPARISONS and name != "list"]
    if unknown:
        known = ", ".join(COMPARISONS)
        parser.error(f"no comparison named {', '.join(unknown)} (there are: {known})")
    if arguments.rounds is None:
        arguments.rounds = 1 if arguments.quick else USUAL_ROUNDS
    if arguments.rounds < 1:
        parser.error("--rounds: at least 1")
    if arguments.settle < 0:
        parser.error("--settle: at least 0")
    arguments.build = arguments.build.resolve()
    arguments.dir = arguments.dir.resolve()
    arguments.disk_dir = (arguments.disk_dir or arguments.build / "bench-data").resolve()
    arguments.headrace = (arguments.headrace or arguments.build / "cli/headrace").resolve()
    return arguments


def check_programs(run: Contestants, names: list[str]) -> None:
    needed = {"ceiling", "condition"}.union(*(COMPARISONS[name].programs for name in names))
    missing = sorted(name for name in needed if not os.access(run.programs[name], os.X_OK))
    if missing:
        raise RunError(
            f"not built: {', '.join(missing)}. `./run bench` builds them; so does Meson with "
            "-Dbench=true"
        )


def check_build(build: pathlib.Path) -> None:
    """Figures of a slow build would be true and misleading."""
    options = machine.build_options(build)
    sanitized = options.get("b_sanitize", "none") not in ("none", [], ["none"])
    if options.get("optimization") in ("plain", "0", "g", "1") or sanitized:
        raise RunError("the build is not optimised, or has sanitizers: use --quick, or rebuild")


def measure_all(
    run: Contestants, names: list[str], command: str, build: pathlib.Path
) -> tuple[list[Section], list[str]]:
    """Runs the comparisons. One that fails gives no section, and its name is returned instead."""
    sections, failed = [], []
    for name in names:
        say(f"{name}: {COMPARISONS[name].targets}")
        load, before = os.getloadavg()[0], machine.processor_times()
        try:
            section = COMPARISONS[name].measure(run)
        except RunError as error:
            say(f"bench: {name}: {error}")
            failed.append(name)
            continue
        stolen = machine.stolen_share(before, machine.processor_times())
        section.provenance = [
            f"`{command}`, rounds: {run.rounds}, {machine.describe_commit(BENCH.parent)}",
            machine.describe_machine(),
            machine.describe_build(build),
            f"load at the start {load:.1f}, processor time taken by the host {100 * stolen:.0f} %",
        ]
        sections.append(section)
        print(section.summary(), flush=True)
    return sections, failed


def main() -> int:
    arguments = parse_arguments()
    if "list" in arguments.names:
        for name, comparison in COMPARISONS.items():
            print(f"{name:14} {comparison.targets}")
        return 0
    # A terminated driver, too, stops its server.
    signal.signal(signal.SIGTERM, lambda *_unused: sys.exit(143))

    names = [name for name in COMPARISONS if name in arguments.names or not arguments.names]
    will_write = arguments.write or (not arguments.quick and arguments.rounds >= USUAL_ROUNDS)
    # Without the options that only name folders of this machine.
    command = " ".join(["./run bench", *arguments.names])
    if arguments.rounds != USUAL_ROUNDS:
        command += f" --rounds {arguments.rounds}"

    try:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
            run = Contestants(
                rounds=arguments.rounds,
                settle_seconds=arguments.settle,
                build=arguments.build,
                headrace=arguments.headrace,
                folder=arguments.dir,
                disk_folder=arguments.disk_dir,
                scratch=pathlib.Path(scratch),
            )
            check_programs(run, names)
            if will_write:
                check_build(arguments.build)
            arguments.dir.mkdir(parents=True, exist_ok=True)
            with Nginx(arguments.dir) as server:
                run.url = server.url
                sections, failed = measure_all(run, names, command, arguments.build)
        if will_write and sections:
            write_results(arguments.results, sections, list(COMPARISONS))
            say(f"written: {os.path.relpath(arguments.results)}")
        elif sections:
            say("RESULTS.md is not written: for that, 7 rounds or more, or --write")
    except (RunError, NginxError, OSError) as error:
        say(f"bench: {error}")
        return 1
    except KeyboardInterrupt:
        say("bench: interrupted, nothing written")
        return 130
    if failed:
        say(f"bench: failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
