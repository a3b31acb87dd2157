"""What `./run bench` compares: each function runs one comparison and gives its section."""

import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Sequence

import machine
from contestants import GIB, MIB, MODEL, SHARDS, TINY, Contestants
from measure import Rounds, RunError, Sample, alternate, median, ratio, say
from results import Section, Table, Verdict

ONE_LOOP = ["--threads", "1", "--max-concurrency", "8", "--memory-limit", "256MiB"]
# Few and long ranges: a retry for each of many would empty the bucket that guards the host.
FEW_RANGES = ["--max-concurrency", "2", "--chunk-size", "128MiB", "--memory-limit", "1GiB"]
SERVER = "http://127.0.0.1:PORT"
CEILING = f"ceiling {SERVER}/{MODEL}/*.safetensors"

# ---- Parts of sections ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Figure:
    title: str
    value: Callable[[Sample], float]
    form: str

    def show(self, value: float) -> str:
        return self.form.format(value)


RATE = Figure("GB/s", lambda sample: sample.gbps, "{:.2f}")
CPU = Figure("CPU s per GB", lambda sample: sample.cpu_per_gb, "{:.3f}")
RSS = Figure("peak RSS, MiB", lambda sample: sample.rss_mib, "{:.0f}")
REQUESTS = Figure("requests", lambda sample: sample.number("requests"), "{:.0f}")
FIRST = Figure(
    "first tensor, ms", lambda sample: 1e3 * sample.number("first_tensor_seconds"), "{:.1f}"
)
TENSORS = Figure("tensors/s", lambda sample: sample.number("tensors") / sample.seconds, "{:,.0f}")
SERVER_BYTES = Figure(
    "GB from the server", lambda sample: sample.number("server_bytes") / 1e9, "{:.3f}"
)
BATCHES = Figure("batches of copies", lambda sample: sample.number("batches"), "{:.0f}")
WAKE_UPS = Figure("wake-ups by copies", lambda sample: sample.number("wake_ups"), "{:.0f}")
RESETS = Figure("resets", lambda sample: sample.number("resets"), "{:.0f}")
# Before the first request and after the last byte: little, or the clock is wrong.
OUTSIDE = Figure(
    "outside the clock, ms", lambda sample: 1e3 * (sample.wall_seconds - sample.seconds), "{:.0f}"
)
USUAL = [RATE, CPU, RSS, REQUESTS, OUTSIDE]


def make_section(
    name: str,
    title: str,
    explanation: str,
    commands: list[str],
    rounds: Rounds,
    figures: list[Figure],
    verdicts: list[Verdict],
) -> Section:
    medians = [
        [who] + [figure.show(median(rounds, who, figure.value)) for figure in figures]
        for who in rounds[0]
    ]
    every = [
        [str(count), who] + [figure.show(figure.value(sample)) for figure in figures]
        for count, result in enumerate(rounds, 1)
        for who, sample in result.items()
    ]
    titles = [figure.title for figure in figures]
    return Section(
        name=name,
        title=title,
        explanation=" ".join(explanation.split()),
        commands=commands,
        medians=Table(["median", *titles], medians),
        verdicts=verdicts,
        rounds=Table(["round", "", *titles], every),
    )


def stream_command(
    uri: str = f"{SERVER}/{MODEL}", options: Sequence[str] = (), io: str = ""
) -> str:
    environment = f"HEADRACE_IO={io} " if io else ""
    return " ".join([f"{environment}headrace stream {uri}", *options, "-q --stats FILE"])


def compare(
    rounds: Rounds, figure: Figure, who: str, other: str, what: str, target: float, sign: str = "≥"
) -> Verdict:
    """The median of the ratios within a round, the least and the greatest, and the target."""
    middle, least, greatest = ratio(rounds, who, other, figure.value)
    return Verdict(
        what,
        f"{middle:.2f} ({least:.2f}–{greatest:.2f})",
        f"{sign} {target:.2f}",
        middle >= target if sign == "≥" else middle <= target,
    )


def judge(value: float, what: str, form: str, target: float, sign: str = "≥") -> Verdict:
    met = value >= target if sign == "≥" else value <= target
    return Verdict(what, form.format(value), f"{sign} {form.format(target)}", met)


# ---- Streaming over HTTP -------------------------------------------------------------------------


def stream(run: Contestants, name: str, options: list[str], io: str) -> Rounds:
    return alternate(
        name,
        run.rounds,
        {
            "headrace": lambda: run.headrace(MODEL, options, io=io)[0],
            "ceiling": lambda: run.ceiling(MODEL),
        },
        lambda: run.condition(MODEL),
    )


def stream_uring(run: Contestants) -> Section:
    rounds = stream(run, "stream-uring", ONE_LOOP, "uring")
    return make_section(
        "stream-uring",
        "Streaming, io_uring",
        "Every tensor dropped on arrival; one loop, 8 connections, a limit of 256 MiB.",
        [stream_command(options=ONE_LOOP, io="uring"), CEILING],
        rounds,
        USUAL,
        [
            compare(rounds, RATE, "headrace", "ceiling", "throughput, of the ceiling's", 0.95),
            compare(rounds, CPU, "headrace", "ceiling", "CPU per GB, of the ceiling's", 1.20, "≤"),
        ],
    )


def stream_epoll(run: Contestants) -> Section:
    rounds = stream(run, "stream-epoll", ONE_LOOP, "epoll")
    return make_section(
        "stream-epoll",
        "Streaming, epoll",
        """The same with epoll, which is what remains under Docker's default seccomp profile. The
        ceiling still uses io_uring.""",
        [stream_command(options=ONE_LOOP, io="epoll"), CEILING],
        rounds,
        USUAL,
        [compare(rounds, RATE, "headrace", "ceiling", "throughput, of the ceiling's", 0.90)],
    )


def defaults(run: Contestants) -> Section:
    rounds = stream(run, "defaults", [], "")
    return make_section(
        "defaults",
        "Streaming, all defaults",
        "Every tensor dropped on arrival, no option given: what a user gets who tunes nothing.",
        [stream_command(), CEILING],
        rounds,
        USUAL,
        [
            compare(rounds, RATE, "headrace", "ceiling", "throughput, of the ceiling's", 0.85),
            compare(rounds, CPU, "headrace", "ceiling", "CPU per GB, of the ceiling's", 1.30, "≤"),
        ],
    )


def tls(run: Contestants) -> Section:
    run.checkpoint(MODEL)
    with run.over_tls():
        trust = ["--ca-file", run.ca_file]
        two_loops = ["--threads", "2", *ONE_LOOP[2:], *trust]
        rounds = alternate(
            "tls",
            run.rounds,
            {
                "headrace": lambda: run.headrace(MODEL, [*ONE_LOOP, *trust], io="uring")[0],
                "ceiling": lambda: run.tls_ceiling(MODEL),
                "obstore": lambda: run.obstore(MODEL),
                "headrace, epoll": lambda: run.headrace(MODEL, [*ONE_LOOP, *trust], io="epoll")[0],
                "headrace, two loops": lambda: run.headrace(MODEL, two_loops)[0],
            },
            lambda: run.condition(MODEL),
        )
    used = rounds[0]["ceiling"].stats
    others = rounds[0]["obstore"].stats
    server = SERVER.replace("http:", "https:")
    options = [*ONE_LOOP, "--ca-file FILE"]
    rate = "throughput, of the ceiling's"
    return make_section(
        "tls",
        "Streaming over TLS",
        f"""{used.get("cipher")} from nginx on loopback, OpenSSL {used.get("openssl")} on both sides.
        The ceiling is a plain loop over OpenSSL: one thread, epoll, the same 8 connections and
        ranges of 16 MiB, into reused buffers. obstore {others.get("obstore")} (the Rust crate
        object_store, under Python) fetches the same ranges on as many threads as it likes, without
        checking certificates; so does the ceiling. Two loops are for information: the server has
        one worker, and on two cores they share one with it.""",
        [
            stream_command(f"{server}/{MODEL}", options, "uring"),
            f"tls_ceiling {server}/{MODEL}/*.safetensors",
            f"obstore_ranges.py {server}/{MODEL}/*.safetensors",
        ],
        rounds,
        USUAL,
        [
            compare(rounds, RATE, "headrace", "ceiling", rate, 0.85),
            compare(rounds, RATE, "headrace, epoll", "ceiling", f"epoll: {rate}", 0.85),
            compare(rounds, RATE, "headrace", "obstore", "throughput, of obstore's", 1.0),
        ],
    )


def resets(run: Contestants) -> Section:
    run.checkpoint(MODEL)
    rounds = alternate(
        "resets",
        run.rounds,
        {
            "a reset in each range": lambda: run.with_resets(MODEL, FEW_RANGES, faulty=True),
            "none": lambda: run.with_resets(MODEL, FEW_RANGES, faulty=False),
        },
        lambda: run.condition(MODEL),
    )
    what = "bytes from the server, of those without resets"
    return make_section(
        "resets",
        "A reset in each range",
        """The first answer to each range is reset half-way; the next request begins at the first byte that is missing. A
        server in Python counts the bytes that leave it. Each reset costs a connection and a pause of 100 ms and more, so
        that the seconds are those of the pauses.""",
        [stream_command(options=FEW_RANGES)],
        rounds,
        [RATE, CPU, REQUESTS, SERVER_BYTES, RESETS],
        [compare(rounds, SERVER_BYTES, "a reset in each range", "none", what, 1.10, "≤")],
    )


def unconditioned(run: Contestants) -> Section:
    run.checkpoint(MODEL)
    options = [*ONE_LOOP, "--repeat", "3"]
    first, second, third = (f"headrace, {count} pass" for count in ("first", "second", "third"))
    rounds: Rounds = []
    for count in range(1, run.rounds + 1):
        time.sleep(run.settle_seconds)
        passes = run.headrace(MODEL, options, io="uring")
        if len(passes) != 3:
            raise RunError(f"expected the statistics of 3 passes, got {len(passes)}")
        run.condition(MODEL)
        result = dict(zip((first, second, third), passes, strict=True))
        result["ceiling"] = run.ceiling(MODEL)
        rounds.append(result)
        rates = ", ".join(f"{sample.gbps:.2f}" for sample in result.values())
        say(f"  unconditioned {count}/{run.rounds}: three passes and the ceiling: {rates} GB/s")
    return make_section(
        "unconditioned",
        "Unconditioned memory",
        f"""Nothing touches memory for {run.settle_seconds:g} seconds, then come three passes in one
        process. The ceiling runs on conditioned memory, as everywhere. The first pass also pays for
        memory that the host must give back.""",
        [stream_command(options=options, io="uring"), CEILING],
        rounds,
        [RATE],
        [
            compare(
                rounds, RATE, first, "ceiling", "first pass, of the ceiling's throughput", 0.70
            ),
            compare(
                rounds, RATE, third, "ceiling", "third pass, of the ceiling's throughput", 0.95
            ),
        ],
    )


def rss(run: Contestants) -> Section:
    largest = run.checkpoint(MODEL)["largest_tensor_bytes"]
    limits = {"256 MiB": 256 * MIB, "1 GiB": GIB, "2 GiB": 2 * GIB}

    def contestant(limit: int, *more: str) -> Callable[[], Sample]:
        return lambda: run.headrace(MODEL, ["--memory-limit", str(limit), *more])[0]

    contestants = {}
    for limit, size in limits.items():
        contestants[limit] = contestant(size)
        contestants[f"{limit}, slow consumer"] = contestant(size, "--digest")
    rounds = alternate("rss", run.rounds, contestants, lambda: run.condition(MODEL))
    verdicts = []
    for limit, size in limits.items():
        peak = max(
            sample.rss_mib
            for result in rounds
            for who, sample in result.items()
            if who.partition(",")[0] == limit
        )
        bound = max(size, largest) / MIB + 64
        verdicts.append(judge(peak, f"peak RSS with a limit of {limit}", "{:.0f} MiB", bound, "≤"))
    return make_section(
        "rss",
        "Peak memory",
        """The peak resident memory of the whole process. Allowed: the limit or the largest tensor,
        whichever is larger, and 64 MiB. Each limit also with `--digest`: a consumer slower than the
        network lets pile up what the limit admits. The worst of all rounds is judged.""",
        [stream_command(options=["--memory-limit LIMIT [--digest]"])],
        rounds,
        [RSS, RATE],
        verdicts,
    )


def keep(run: Contestants) -> Section:
    options = ["--threads", "1", "--max-concurrency", "8"]
    rounds = alternate(
        "keep",
        run.rounds,
        {
            "headrace": lambda: run.keep(MODEL, options),
            "ceiling": lambda: run.ceiling(MODEL, "--fresh"),
        },
        lambda: run.condition(MODEL),
    )
    return make_section(
        "keep",
        "Keeping every tensor",
        """Every tensor kept to the end, against the loop that receives into fresh memory advised to
        use huge pages.""",
        [
            " ".join([f"bench/keep {SERVER}/{MODEL}", *options]),
            f"ceiling --fresh {SERVER}/{MODEL}/*.safetensors",
        ],
        rounds,
        USUAL,
        [compare(rounds, RATE, "headrace", "ceiling", "throughput, of the ceiling's", 0.95)],
    )


# ---- Onto a device -------------------------------------------------------------------------------

COPY_GBPS = 20
STAGING_MIB = 32 * 8  # the default: slots and their size


def device(run: Contestants) -> Section:
    run.checkpoint(MODEL)
    to_device, to_host = "to the device", "to the host"

    def device_sample(io: str) -> Sample:
        return run.to_device(MODEL, ONE_LOOP, gbps=COPY_GBPS, io=io)

    def host_sample(io: str) -> Sample:
        sample = run.headrace(MODEL, ONE_LOOP, io=io)[0]
        sample.stats |= {"batches": 0, "wake_ups": 0}
        return sample

    contestants: dict[str, Callable[[], Sample]] = {}
    for io in ("uring", "epoll"):
        contestants[f"{to_device}, {io}"] = lambda io=io: device_sample(io)
        contestants[f"{to_host}, {io}"] = lambda io=io: host_sample(io)
    rounds = alternate("device", run.rounds, contestants, lambda: run.condition(MODEL))
    verdicts = []
    for io in ("uring", "epoll"):
        here, there = f"{to_device}, {io}", f"{to_host}, {io}"
        verdicts += [
            compare(rounds, RATE, here, there, f"{io}: throughput, of the host path's", 0.95),
            compare(rounds, CPU, here, there, f"{io}: CPU per GB, of the host path's", 1.10, "≤"),
            judge(
                max(result[here].rss_mib for result in rounds),
                f"{io}: peak RSS",
                "{:.0f} MiB",
                STAGING_MIB + 64,
                "≤",
            ),
            judge(
                max(WAKE_UPS.value(result[here]) / BATCHES.value(result[here]) for result in rounds),
                f"{io}: wake-ups a batch",
                "{:.2f}",
                1.0,
                "≤",
            ),
        ]
    return make_section(
        "device",
        "Onto a device",
        f"""The fake driver of the tests stands for a GPU: its copies take the time that they would at {COPY_GBPS} GB/s and
        move nothing, as nothing is moved by the processor with a real one. Memory and processor time of the fake itself
        are left out. Allowed of the host's memory: the staging slots, {STAGING_MIB} MiB by default and pinned as they are
        needed, and 64 MiB. The worst of all rounds is judged. With a real GPU the same is still to be measured:
        `tests/gpu/check` does so on a machine that has one.""",
        [
            stream_command(options=[*ONE_LOOP, "--device cuda:0"], io="uring|epoll"),
            stream_command(options=ONE_LOOP, io="uring|epoll"),
        ],
        rounds,
        [*USUAL, BATCHES, WAKE_UPS],
        verdicts,
    )


# ---- Local files ---------------------------------------------------------------------------------


def local(run: Contestants) -> Section:
    places = {"tmpfs": run.folder, "disk": run.disk_folder}
    if machine.file_system(run.disk_folder) == "tmpfs":
        raise RunError("--disk-dir is on tmpfs: name a folder on a disk")
    for folder in places.values():
        run.checkpoint(MODEL, folder)
    os.sync()  # a fresh copy would be written back in the middle of the runs

    rounds: Rounds = [{} for _ in range(run.rounds)]
    verdicts = []
    for place, folder in places.items():
        kind = machine.file_system(folder)
        label = place if kind == place else f"{place} ({kind})"
        dropped, loop = f"dropped, {label}", f"read loop, {label}"
        kept, fresh = f"kept, {label}", f"read loop into fresh memory, {label}"
        run.read_loop(MODEL, folder)  # not measured: brings it into the page cache
        here = alternate(
            f"local, {place}",
            run.rounds,
            {
                dropped: lambda folder=folder: run.headrace(MODEL, [], folder=folder)[0],
                loop: lambda folder=folder: run.read_loop(MODEL, folder),
                kept: lambda folder=folder: run.keep(MODEL, [], folder),
                fresh: lambda folder=folder: run.read_loop(MODEL, folder, "--fresh"),
            },
            lambda: run.condition(MODEL),
        )
        for result, more in zip(rounds, here, strict=True):
            result.update(more)
        verdicts += [
            compare(here, RATE, dropped, loop, f"{dropped}, of the read loop's throughput", 1.0),
            compare(here, RATE, kept, fresh, f"{kept}, of the read loop's throughput", 0.8),
        ]
    return make_section(
        "local",
        "Local files in the page cache",
        """Against a loop of `read`, 1 MiB at a time: into one reused buffer where each tensor is
        dropped, into fresh memory advised to use huge pages where all are kept. All defaults.""",
        [
            stream_command(f"FOLDER/{MODEL}"),
            f"ceiling --read FOLDER/{MODEL}/*.safetensors",
            f"bench/keep FOLDER/{MODEL}",
            f"ceiling --read --fresh FOLDER/{MODEL}/*.safetensors",
        ],
        rounds,
        [RATE, CPU, RSS],
        verdicts,
    )


# ---- Latency and small things --------------------------------------------------------------------


def both_ways(run: Contestants, name: str, checkpoint: str) -> Rounds:
    """With all defaults, over loopback and from tmpfs."""
    return alternate(
        name,
        run.rounds,
        {
            "loopback": lambda: run.headrace(checkpoint, [])[0],
            "local": lambda: run.headrace(checkpoint, [], folder=run.folder)[0],
        },
        lambda: run.condition(checkpoint),
    )


def first_tensor(run: Contestants) -> Section:
    rounds = both_ways(run, "first-tensor", MODEL)
    return make_section(
        "first-tensor",
        "First tensor",
        """From the first request, or the first read, to the first tensor in the consumer's hands.
        All defaults.""",
        [stream_command(), stream_command(f"FOLDER/{MODEL}")],
        rounds,
        [FIRST, RATE],
        [
            judge(median(rounds, who, FIRST.value), f"first tensor, {who}", "{:.1f} ms", 10, "≤")
            for who in rounds[0]
        ],
    )


def tiny(run: Contestants) -> Section:
    rounds = both_ways(run, "tiny", TINY)
    value = median(rounds, "loopback", TENSORS.value)
    return make_section(
        "tiny",
        "20,000 tensors of 1 KiB",
        "What a tensor costs: one file of 20,000 tensors, opening it included. All defaults.",
        [stream_command(f"{SERVER}/{TINY}"), stream_command(f"FOLDER/{TINY}")],
        rounds,
        [TENSORS, *USUAL],
        [judge(value, "tensors a second, loopback", "{:,.0f}", 400_000)],
    )


def shards(run: Contestants) -> Section:
    rounds = alternate(
        "shards",
        run.rounds,
        {
            "headrace": lambda: run.headrace(SHARDS, [])[0],
            "ceiling": lambda: run.ceiling(SHARDS),
        },
        lambda: run.condition(SHARDS),
    )
    return make_section(
        "shards",
        "200 shards of 1 MB",
        """What a file costs: 200 shards with an index, opening them included. All defaults. The
        ceiling asks for the sizes before its clock starts and is here for scale only.""",
        [stream_command(f"{SERVER}/{SHARDS}"), f"ceiling {SERVER}/{SHARDS}/*.safetensors"],
        rounds,
        USUAL,
        [judge(median(rounds, "headrace", RATE.value), "throughput", "{:.2f} GB/s", 2)],
    )


# ---- Boost.Asio, and the pieces alone ------------------------------------------------------------


def asio(run: Contestants) -> Section:
    options = ONE_LOOP[2:]
    contestants = {
        f"{how}, {io}": lambda how=how, io=io: run.asio_stream(how, MODEL, options, io)
        for io in ("uring", "epoll")
        for how in ("hosted", "own", "plain")
    }
    rounds = alternate("asio", run.rounds, contestants, lambda: run.condition(MODEL))
    return make_section(
        "asio",
        "Inside an io_context of Boost.Asio",
        """Each tensor is taken by a coroutine of Asio's and dropped on arrival. `hosted`: headrace's
        loop runs inside the same io_context, on one thread; `own`: it has a thread of its own;
        `plain`: that, and headrace's own next() instead of Asio. 8 connections, 256 MiB.""",
        [f"bench/asio_stream hosted|own|plain {' '.join(options)} {SERVER}/{MODEL}"],
        rounds,
        USUAL,
        [
            compare(rounds, RATE, f"hosted, {io}", f"own, {io}", f"hosted of own, {io}", 0.9)
            for io in ("uring", "epoll")
        ],
    )


def micro(run: Contestants) -> Section:
    rounds = []
    for count in range(1, run.rounds + 1):
        rounds.append(run.micro())
        say(f"  micro {count}/{run.rounds}")
    names = [name for name in rounds[0] if all(name in each for each in rounds)]
    medians = {name: statistics.median(each[name] for each in rounds) for name in names}
    extra = {
        name: statistics.median(each[name] - each["next"] for each in rounds)
        for name in names
        if name.startswith("async_next")
    }
    if not extra:
        raise RunError("micro measured no completion token")
    return Section(
        name="micro",
        title="The pieces alone",
        explanation="""What a piece costs in processor time, by google-benchmark: a task that is called and resumes its
awaiter; a value through a channel of one; a byte to a socket of the same loop and back (two sends,
two receives); the header of a file with 338 tensors; a value that is ready, by next() and by
async_next with two completion tokens.""",
        commands=["bench/micro"],
        medians=Table(
            ["median", "ns"], [[name, f"{value:,.0f}"] for name, value in medians.items()]
        ),
        verdicts=[
            judge(value, f"{name} over next()", "{:,.0f} ns", 2000, "≤")
            for name, value in extra.items()
        ],
        rounds=Table(
            ["round", "", "ns"],
            [
                [str(count), name, f"{each[name]:,.0f}"]
                for count, each in enumerate(rounds, 1)
                for name in names
            ],
            words=2,
        ),
    )


# ---- The ceiling itself --------------------------------------------------------------------------


def ceiling(run: Contestants) -> Section:
    variants = {
        "ceiling": [],
        "4 connections": ["--connections", "4"],
        "16 connections": ["--connections", "16"],
        "receives of at most 1 MiB": ["--receive-size", str(MIB)],
        "chunks of 64 MiB": ["--chunk-size", str(64 * MIB)],
        "pages of 4 KiB": ["--plain-pages"],
    }
    rounds = alternate(
        "ceiling",
        run.rounds,
        {
            name: lambda options=options: run.ceiling(MODEL, *options)
            for name, options in variants.items()
        },
        lambda: run.condition(MODEL),
    )
    others = [name for name in variants if name != "ceiling"]
    best = max(others, key=lambda name: ratio(rounds, name, "ceiling", RATE.value)[0])
    what = f"the best variant ({best}), of the ceiling's throughput"
    return make_section(
        "ceiling",
        "The ceiling itself",
        """A weak ceiling would flatter headrace. The variants show whether another choice would
        have made it stronger.""",
        [f"ceiling [OPTIONS] {SERVER}/{MODEL}/*.safetensors"],
        rounds,
        [RATE, CPU, RSS],
        [compare(rounds, RATE, best, "ceiling", what, 1.10, "≤")],
    )


@dataclasses.dataclass(frozen=True)
class Comparison:
    measure: Callable[[Contestants], Section]
    programs: list[str]  # besides ceiling and condition
    targets: str


# In the order of RESULTS.md.
COMPARISONS = {
    "stream-uring": Comparison(
        stream_uring, ["headrace"], "≥ 0.95 of the ceiling, ≤ 1.20 of its CPU per GB"
    ),
    "stream-epoll": Comparison(stream_epoll, ["headrace"], "≥ 0.90 of the ceiling"),
    "defaults": Comparison(
        defaults, ["headrace"], "≥ 0.85 of the ceiling, ≤ 1.30 of its CPU per GB"
    ),
    "tls": Comparison(
        tls, ["headrace", "tls_ceiling"], "≥ 0.85 of a plain loop over OpenSSL, ahead of obstore"
    ),
    "resets": Comparison(resets, ["headrace"], "≤ 1.10 of the bytes of a clean stream"),
    "unconditioned": Comparison(
        unconditioned, ["headrace"], "first pass ≥ 0.70, third pass ≥ 0.95 of the ceiling"
    ),
    "rss": Comparison(rss, ["headrace"], "≤ max(memory limit, largest tensor) + 64 MiB"),
    "device": Comparison(
        device,
        ["headrace", "libcuda.so.1"],
        "≥ 0.95 of the host path, ≤ 1.10 of its CPU per GB, staging + 64 MiB, a wake-up a batch",
    ),
    "keep": Comparison(keep, ["keep"], "≥ 0.95 of the ceiling into fresh memory"),
    "local": Comparison(
        local, ["headrace", "keep"], "dropped ≥ 1.0, kept ≥ 0.8 of a read loop; tmpfs and disk"
    ),
    "first-tensor": Comparison(first_tensor, ["headrace"], "≤ 10 ms over loopback and locally"),
    "tiny": Comparison(tiny, ["headrace"], "≥ 400,000 tensors a second"),
    "shards": Comparison(shards, ["headrace"], "≥ 2 GB/s"),
    "asio": Comparison(asio, ["asio_stream"], "hosted ≥ 0.90 of a loop with its own thread"),
    "micro": Comparison(micro, ["micro"], "async_next ≤ 2 µs over next()"),
    "ceiling": Comparison(ceiling, [], "no variant of it over 1.10 of it"),
}
