#!/usr/bin/env python3
"""Measures headrace beside other libraries that load safetensors, and writes sections and charts
for bench/RESULTS.md.

./run bench-peers                                   everything: 3.1 GB, five rounds, below a quarter
of an hour ./run bench-peers list                              the sections and their contenders
./run bench-peers peers-s3 --contenders flyte,runai only these (and headrace); other sections of
RESULTS.md stay ./run bench-peers --quick --checkpoint many-shards  one round of 200 MB, nothing
written: for development"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

PEERS = pathlib.Path(__file__).resolve().parent
BENCH = PEERS.parent
sys.path.insert(0, str(BENCH))
sys.path.append(str(BENCH.parent / "tests" / "servers"))

import machine
import make_checkpoint
from child_process import ServerError
from comparisons import COMPARISONS, FIRST, RATE, Figure, compare, judge, make_section
from measure import RunError, Rounds, Sample, alternate, median, run, run_quietly, say
from nginx import NginxError
from results import Section
from results import write as write_results
from s3_nginx import BUCKET, S3Nginx, s3_environment
from seaweedfs import SeaweedFS
from uploader import S3Error

USUAL_ROUNDS = 5
USUAL_CHECKPOINT = "qwen2-1.5b"
MIB = 1 << 20
MEMORY_LIMIT = 1 << 30  # headrace's default
# Importing torch and a peer takes seconds that are not measured.
STARTUP_SECONDS = 60

CPU = Figure("CPU s per GB", lambda sample: sample.cpu_per_gb, "{:.3f}")
ABOVE = Figure(
    "peak RSS above torch, MiB",
    lambda sample: (sample.peak_rss_bytes - sample.number("bare_rss_bytes")) / MIB,
    "{:.0f}",
)
FIGURES = [RATE, CPU, ABOVE, FIRST]
BETTER = {RATE.title: "more", CPU.title: "less", ABOVE.title: "less", FIRST.title: "less"}


class Peers:
    """Runs one contender at a time on one checkpoint, wherever that is served from."""

    def __init__(
        self,
        *,
        rounds: int,
        build: pathlib.Path,
        folder: pathlib.Path,
        checkpoint: str,
        python: pathlib.Path,
    ):
        self.rounds = rounds
        self.folder = folder
        self.name = checkpoint
        self.python = python
        self.description = make_checkpoint.make(checkpoint, str(folder / checkpoint))
        self._condition = build / "bench/condition"
        self._headrace = build / "cli/headrace"

    @property
    def path(self) -> pathlib.Path:
        return self.folder / self.name

    def condition(self) -> None:
        size = max(sum(self.description["files"].values()), 512 * MIB)
        run_quietly([str(self._condition), str(size)])

    def contender(self, name: str, uri: str, environment: dict[str, str], *, keep: bool) -> Sample:
        """One run. The processor time is what the program took itself, its start and its imports
        left out."""
        if name == "headrace-cli":
            command = [
                str(self._headrace),
                "stream",
                uri,
                "--memory-limit",
                str(MEMORY_LIMIT),
                "-q",
                "--stats",
                "-",
            ]
        else:
            command = [
                str(self.python),
                str(PEERS / "contender.py"),
                name,
                uri,
                "--memory-limit",
                str(MEMORY_LIMIT),
            ]
            command += ["--keep"] if keep else []
        # torch's threads wait for each other without spinning: on few cores they would keep the
        # rest from working.
        environment = {"OMP_WAIT_POLICY": "passive", **environment}
        [sample] = run(command, startup_seconds=STARTUP_SECONDS, **environment)
        sample.stats.setdefault("bare_rss_bytes", 0)
        expected = (self.description["tensors"], self.description["tensor_bytes"])
        found = (sample.number("tensors"), sample.bytes)
        if found != expected:
            raise RunError(
                f"{name}: expected {expected[0]} tensors of {expected[1]} bytes, "
                f"got {found[0]} of {found[1]}"
            )
        return dataclasses.replace(sample, cpu_seconds=sample.number("cpu_seconds"))


# ---- Where the checkpoint is ---------------------------------------------------------------------

Place = tuple[str, dict[str, str]]  # a URI, and the environment that leads to it


@contextlib.contextmanager
def over_http(peers: Peers) -> Iterator[Place]:
    with S3Nginx(peers.folder, peers.name) as server:
        yield f"s3://{BUCKET}/{peers.name}", server.environment()


@contextlib.contextmanager
def over_tls(peers: Peers) -> Iterator[Place]:
    with S3Nginx(peers.folder, peers.name, tls=True) as server:
        yield f"s3://{BUCKET}/{peers.name}", server.environment()


@contextlib.contextmanager
def from_seaweedfs(peers: Peers) -> Iterator[Place]:
    with SeaweedFS() as server:
        say("  putting the checkpoint into SeaweedFS")
        client = server.client()
        client.create_bucket(BUCKET)
        for file in sorted(peers.path.iterdir()):
            if not file.name.startswith("."):
                client.put_object(BUCKET, f"{peers.name}/{file.name}", file)
        os.sync()  # or it would be written back in the middle of the runs
        yield (
            f"s3://{BUCKET}/{peers.name}",
            s3_environment(server.endpoint, server.access_key, server.secret_key),
        )


@contextlib.contextmanager
def from_folder(peers: Peers) -> Iterator[Place]:
    yield str(peers.path), {}


@dataclasses.dataclass(frozen=True)
class Comparison:
    title: str
    where: str
    place: Callable[[Peers], contextlib.AbstractContextManager[Place]]
    contenders: tuple[str, ...]
    keep: bool = False
    # The least that headrace's throughput is to be of a peer's.
    rates: dict[str, float] = dataclasses.field(default_factory=dict)


REMOTE = ("headrace", "flyte", "runai", "obstore")
LOCAL = ("headrace", "safetensors", "fastsafetensors", "runai", "obstore")
NGINX = """nginx on loopback, one worker, answers S3's ranged GETs from tmpfs without looking at
signatures."""
FILES = """Files on tmpfs. What comes as a view of a mapped file is copied, as nobody has read it
before."""

# In the order of RESULTS.md.
SECTIONS = {
    "peers-s3": Comparison(
        "Beside other libraries: S3 over HTTP, tensors dropped",
        NGINX,
        over_http,
        ("headrace", "headrace-async", "headrace-cli", "flyte", "runai", "obstore"),
        rates={"flyte": 4, "runai": 3},
    ),
    "peers-s3-kept": Comparison(
        "Beside other libraries: S3 over HTTP, tensors kept",
        NGINX,
        over_http,
        REMOTE,
        True,
        {"flyte": 2, "runai": 2},
    ),
    "peers-tls": Comparison(
        "Beside other libraries: S3 over TLS, tensors dropped",
        f"{NGINX} TLS 1.3 with AES-128-GCM; obstore checks no certificate, the others do.",
        over_tls,
        REMOTE,
    ),
    "peers-seaweedfs": Comparison(
        "Beside other libraries: SeaweedFS, tensors dropped",
        "SeaweedFS on loopback, which checks signatures and takes more time than any client.",
        from_seaweedfs,
        REMOTE,
    ),
    "peers-local": Comparison(
        "Beside other libraries: local files, tensors dropped",
        FILES,
        from_folder,
        ("headrace", "headrace-cli", *LOCAL[1:]),
    ),
    "peers-local-kept": Comparison(
        "Beside other libraries: local files, tensors kept",
        FILES,
        from_folder,
        LOCAL,
        True,
    ),
}


# ---- Measuring -----------------------------------------------------------------------------------


def measure(peers: Peers, name: str, chosen: set[str]) -> tuple[Section, dict]:
    """A section, and what charts.py draws of it."""
    comparison = SECTIONS[name]
    names = [each for each in comparison.contenders if each == "headrace" or each in chosen]
    with comparison.place(peers) as (uri, environment):
        rounds = alternate(
            name,
            peers.rounds,
            {
                each: lambda each=each: peers.contender(
                    each, uri, environment, keep=comparison.keep
                )
                for each in names
            },
            peers.condition,
        )
    stats = {each: rounds[0][each].stats for each in names if "version" in rounds[0][each].stats}
    versions = dict.fromkeys(
        f"{each.partition('-')[0]} {found['version']}" for each, found in stats.items()
    )
    explanation = f"""{comparison.where} Each library in a process of its own, with its own defaults
        ({", ".join(versions)}; torch {stats["headrace"]["torch"]}). The clock begins after the
        imports; memory is what comes on top of the interpreter with torch (for the program: all of
        it). """
    if "headrace-async" in names:
        explanation += "headrace is `stream_sync()`, headrace-async `stream()`."
    # What stands in a folder of this machine is shown without the folder.
    shown = uri if "://" in uri else f"FOLDER/{peers.name}"
    commands = [
        f"contender.py {'--keep ' if comparison.keep else ''}{each} {shown}"
        for each in names
        if each != "headrace-cli"
    ]
    if "headrace-cli" in names:
        commands.append(f"headrace stream {shown} --memory-limit 1GiB -q --stats -")
    section = make_section(
        name, comparison.title, explanation, commands, rounds, FIGURES, verdicts(rounds, comparison)
    )
    section.explanation += f"\n\n![{comparison.title}](peers/charts/{name}.svg)"
    panels = [
        {
            "title": figure.title,
            "better": BETTER[figure.title],
            "values": {each: median(rounds, each, figure.value) for each in names},
        }
        for figure in FIGURES
    ]
    return section, {"title": comparison.title, "panels": panels}


def verdicts(rounds: Rounds, comparison: Comparison) -> list:
    found = []
    there = list(rounds[0])
    peers = [each for each in there if not each.startswith("headrace")]
    for peer, target in comparison.rates.items():
        if peer in there:
            found.append(
                compare(rounds, RATE, "headrace", peer, f"throughput, of {peer}'s", target)
            )
    if "flyte" in there and comparison.rates and not comparison.keep:
        found.append(compare(rounds, CPU, "headrace", "flyte", "CPU per GB, of flyte's", 0.25, "≤"))
    if not comparison.keep:
        worst = max(ABOVE.value(result["headrace"]) for result in rounds)
        found.append(
            judge(worst, "peak RSS above torch", "{:.0f} MiB", MEMORY_LIMIT / MIB + 100, "≤")
        )
    if peers:
        soonest = min(peers, key=lambda peer: median(rounds, peer, FIRST.value))
        found.append(
            compare(
                rounds,
                FIRST,
                "headrace",
                soonest,
                f"first tensor, of {soonest}'s (the soonest peer)",
                1,
                "≤",
            )
        )
    if "headrace-cli" in there:
        found.append(
            compare(
                rounds,
                RATE,
                "headrace",
                "headrace-cli",
                "throughput from Python, of the program's",
                0.95,
            )
        )
    return found


def draw(python: pathlib.Path, chart: dict, file: pathlib.Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(
        [str(python), str(PEERS / "charts.py"), str(file)],
        input=json.dumps(chart),
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise RunError(f"charts.py: {made.stderr.strip()}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run bench-peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, path = parser.add_argument, pathlib.Path
    add("names", nargs="*", metavar="SECTION", help="sections to run (default: all), or: list")
    add("--contenders", metavar="NAME,...", help="only these beside headrace (default: all)")
    add(
        "--rounds",
        type=int,
        metavar="N",
        help=f"rounds of each (default: {USUAL_ROUNDS}, with --quick 1)",
    )
    add("--quick", action="store_true", help="few rounds, nothing written")
    add(
        "--write",
        action="store_true",
        help="write RESULTS.md and the charts however few the rounds",
    )
    add(
        "--checkpoint",
        choices=make_checkpoint.CHECKPOINTS,
        default=USUAL_CHECKPOINT,
        help="default: %(default)s",
    )
    add(
        "--dir",
        type=path,
        metavar="FOLDER",
        default=path("/dev/shm/headrace-bench"),
        help="the checkpoints, on tmpfs, kept for the next time (default: %(default)s)",
    )
    add(
        "--build",
        type=path,
        metavar="FOLDER",
        default=BENCH.parent / "build",
        help="the build to measure (default: build)",
    )
    add(
        "--python",
        type=path,
        metavar="FILE",
        default=BENCH.parent / "build-peers/venv/bin/python",
        help="the Python that has headrace and the others (default: that of build-peers/venv)",
    )
    add(
        "--results",
        type=path,
        metavar="FILE",
        default=BENCH / "RESULTS.md",
        help="what to write; charts go beside it",
    )
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in SECTIONS and name != "list"]
    if unknown:
        parser.error(f"no section named {', '.join(unknown)} (there are: {', '.join(SECTIONS)})")
    known = {each for comparison in SECTIONS.values() for each in comparison.contenders}
    arguments.chosen = set(arguments.contenders.split(",")) if arguments.contenders else known
    if arguments.chosen - known:
        parser.error(
            f"no contender named {', '.join(sorted(arguments.chosen - known))} "
            f"(there are: {', '.join(sorted(known))})"
        )
    if arguments.rounds is None:
        arguments.rounds = 1 if arguments.quick else USUAL_ROUNDS
    if arguments.rounds < 1:
        parser.error("--rounds: at least 1")
    arguments.build = arguments.build.resolve()
    arguments.dir = arguments.dir.resolve()
    # Not resolved: a virtual environment's Python is a link.
    arguments.python = arguments.python.absolute()
    return arguments


def main() -> int:
    arguments = parse_arguments()
    if "list" in arguments.names:
        for name, comparison in SECTIONS.items():
            print(f"{name:18} {', '.join(comparison.contenders)}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_unused: sys.exit(143))
    # Keys and options of whoever runs this belong to none of the contenders.
    for name in list(os.environ):
        if name.startswith(("AWS_", "FLYTE_", "RUNAI_")):
            del os.environ[name]

    names = [name for name in SECTIONS if name in arguments.names or not arguments.names]
    usual = (
        arguments.checkpoint == USUAL_CHECKPOINT
        and arguments.rounds >= USUAL_ROUNDS
        and not arguments.contenders
    )
    will_write = arguments.write or (usual and not arguments.quick)
    command = " ".join(["./run bench-peers", *arguments.names])
    if arguments.contenders:
        command += f" --contenders {arguments.contenders}"
    if arguments.checkpoint != USUAL_CHECKPOINT:
        command += f" --checkpoint {arguments.checkpoint}"
    commit = machine.describe_commit(BENCH.parent)
    sections, failed = [], []
    try:
        arguments.dir.mkdir(parents=True, exist_ok=True)
        say(f"making sure of the checkpoint {arguments.checkpoint}")
        peers = Peers(
            rounds=arguments.rounds,
            build=arguments.build,
            folder=arguments.dir,
            checkpoint=arguments.checkpoint,
            python=arguments.python,
        )
        with tempfile.TemporaryDirectory(prefix="headrace-peers-") as scratch:
            charts = (
                arguments.results.resolve().parent / "peers" / "charts"
                if will_write
                else pathlib.Path(scratch)
            )
            for name in names:
                say(f"{name}: {SECTIONS[name].title}")
                load, before = os.getloadavg()[0], machine.processor_times()
                try:
                    section, chart = measure(peers, name, arguments.chosen)
                    draw(arguments.python, chart, charts / f"{name}.svg")
                except (RunError, ServerError, S3Error, NginxError) as error:
                    say(f"bench-peers: {name}: {error}")
                    failed.append(name)
                    continue
                stolen = machine.stolen_share(before, machine.processor_times())
                section.provenance = [
                    f"`{command}`, rounds: {arguments.rounds}, {commit}",
                    machine.describe_machine(),
                    machine.describe_build(arguments.build),
                    f"load at the start {load:.1f}, "
                    f"processor time taken by the host {100 * stolen:.0f} %",
                ]
                sections.append(section)
                print(section.summary(), flush=True)
        if will_write and sections:
            write_results(arguments.results, sections, [*COMPARISONS, *SECTIONS])
            say(f"written: {os.path.relpath(arguments.results)}")
        elif sections:
            say(
                "RESULTS.md is not written: for that, all contenders, "
                f"{USUAL_ROUNDS} rounds or more and the usual checkpoint, or --write"
            )
    except OSError as error:
        say(f"bench-peers: {error}")
        return 1
    except KeyboardInterrupt:
        say("bench-peers: interrupted, nothing written")
        return 130
    if failed:
        say(f"bench-peers: failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
