"""The programs that are compared. A figure counts only if every tensor and every byte came."""

import contextlib
import json
import os
import pathlib
import sys
from collections.abc import Iterator

import make_checkpoint
from measure import RunError, Sample, number, run, run_for_json, run_quietly, say
from nginx import Nginx
from resetting_server import ResettingServer

MODEL, TINY, SHARDS = "qwen2-1.5b", "tiny-tensors", "many-shards"
MIB, GIB = 1 << 20, 1 << 30


class Contestants:
    def __init__(
        self,
        *,
        rounds: int,
        settle_seconds: float,
        build: pathlib.Path,
        headrace: pathlib.Path,
        folder: pathlib.Path,
        disk_folder: pathlib.Path,
        scratch: pathlib.Path,
    ):
        self.rounds = rounds
        self.settle_seconds = settle_seconds
        self.folder = folder
        self.disk_folder = disk_folder
        self.url = ""  # of the server that serves `folder`, once it runs
        self.ca_file = ""  # what to trust of it
        self.programs = {
            "headrace": headrace,
            "keep": build / "bench/keep",
            "asio_stream": build / "bench/asio_stream",
            "micro": build / "bench/micro",
            "ceiling": build / "bench/ceiling",
            "condition": build / "bench/condition",
            "tls_ceiling": build / "bench/tls_ceiling",
            "libcuda.so.1": build / "tests/cuda/libcuda.so.1",
        }
        self._environment_of_others = build / "bench-venv"
        self._stats_file = scratch / "stats.json"
        self._checkpoints: dict[tuple[str, pathlib.Path], dict] = {}

    # What is measured on

    def checkpoint(self, name: str, folder: pathlib.Path | None = None) -> dict:
        """Makes sure of a checkpoint in a folder (`self.folder`) and returns its description."""
        folder = folder or self.folder
        if (name, folder) not in self._checkpoints:
            say(f"  making sure of the checkpoint {name}")
            try:
                description = make_checkpoint.make(name, str(folder / name))
            except OSError as error:
                raise RunError(f"cannot make the checkpoint {name}: {error}") from error
            self._checkpoints[name, folder] = description
        return self._checkpoints[name, folder]

    def file_bytes(self, name: str) -> int:
        return sum(self.checkpoint(name)["files"].values())

    # The programs

    def condition(self, name: str) -> None:
        """Touches and frees as much as the checkpoint has, and what buffers and pools may take."""
        size = max(self.file_bytes(name), 512 * MIB)
        run_quietly([str(self.programs["condition"]), str(size)])

    def headrace(
        self, name: str, options: list[str], *, io: str = "", folder: pathlib.Path | None = None
    ) -> list[Sample]:
        """`headrace stream` over HTTP, or of the copy in a folder. A sample for each pass."""
        command = [str(self.programs["headrace"]), "stream", self._uri(name, folder), *options]
        command += ["-q", "--stats", str(self._stats_file)]
        environment = {"HEADRACE_IO": io} if io else {}
        samples = run(command, self._stats_file, **environment)
        for sample in samples:
            self._check_tensors(name, sample)
            backend = str(sample.stats.get("io_backend", ""))
            if io not in backend:
                raise RunError(f"HEADRACE_IO={io}, but the program says that it used {backend!r}")
        return samples

    def to_device(self, name: str, options: list[str], *, gbps: int, io: str) -> Sample:
        """`headrace stream` to a CUDA device of the fake driver, whose copies take the time that they would at `gbps`
        and move nothing: a real one's engine takes no processor time either. The memory and the processor time that the
        fake took itself are left out."""
        report = self._stats_file.with_name("fake-cuda.json")
        report.unlink(missing_ok=True)
        command = [str(self.programs["headrace"]), "stream", self._uri(name, None), *options]
        command += ["--device", "cuda:0", "-q", "--stats", str(self._stats_file)]
        [sample] = run(
            command,
            self._stats_file,
            HEADRACE_IO=io,
            LD_LIBRARY_PATH=str(self.programs["libcuda.so.1"].parent),
            FAKE_CUDA_COPY_GBPS=str(gbps),
            FAKE_CUDA_MOVE="0",
            FAKE_CUDA_CHECK_BYTES="0",
            FAKE_CUDA_REPORT=str(report),
        )
        self._check_tensors(name, sample)
        seen = json.loads(report.read_text(encoding="utf-8"))
        if seen["violations"] or seen["leaks"]:
            raise RunError(f"the fake driver complains: {seen['violations']}, {seen['leaks']}")
        sample.cpu_seconds -= seen["cpu_microseconds"] / 1e6
        sample.peak_rss_bytes -= seen["resident_bytes"]
        copies = sample.stats["copies"]
        if copies["bytes"] != sample.bytes or seen["copied_bytes"] != sample.bytes:
            raise RunError(f"not every byte was copied: {copies}, {seen}")
        sample.stats |= {"batches": copies["batches"], "wake_ups": copies["wake_ups"]}
        return sample

    def keep(self, name: str, options: list[str], folder: pathlib.Path | None = None) -> Sample:
        [sample] = run([str(self.programs["keep"]), self._uri(name, folder), *options])
        self._check_tensors(name, sample)
        return sample

    def asio_stream(self, how: str, name: str, options: list[str], io: str) -> Sample:
        """A consumer on Boost.Asio; `how`: where the loop runs, or `plain` for one without Asio."""
        command = [str(self.programs["asio_stream"]), how, *options, self._uri(name, None)]
        [sample] = run(command, HEADRACE_IO=io)
        self._check_tensors(name, sample)
        return sample

    def micro(self) -> dict[str, float]:
        """Nanoseconds of processor time, by the name of the benchmark: none of them waits."""
        found = run_for_json([str(self.programs["micro"]), "--benchmark_format=json"])
        times = {}
        for each in found.get("benchmarks", []):
            if each.get("error_occurred"):
                say(f"  {each['name']}: {each.get('error_message', 'failed')}")
                continue
            if each.get("time_unit") != "ns":
                raise RunError(f"expected nanoseconds: {each}")
            times[each["name"]] = number(each, "cpu_time")
        return times

    def ceiling(self, name: str, *options: str) -> Sample:
        [sample] = run([str(self.programs["ceiling"]), *options, *self._urls(name)])
        self._check_bytes(sample, self.file_bytes(name))
        return sample

    def tls_ceiling(self, name: str) -> Sample:
        [sample] = run([str(self.programs["tls_ceiling"]), *self._urls(name)])
        self._check_bytes(sample, self.file_bytes(name))
        return sample

    def obstore(self, name: str) -> Sample:
        script = pathlib.Path(__file__).with_name("obstore_ranges.py")
        [sample] = run([str(self._others_python()), str(script), *self._urls(name)])
        self._check_bytes(sample, self.file_bytes(name))
        return sample

    def _others_python(self) -> pathlib.Path:
        """The Python that has what headrace is compared with; made at the first use."""
        wanted = os.environ.get("HEADRACE_BENCH_PYTHON", "obstore").split()
        folder = self._environment_of_others
        marker, python = folder / "headrace-packages.txt", folder / "bin/python"
        if not marker.exists() or marker.read_text(encoding="utf-8").split() != wanted:
            say(f"  making {folder.name} with {' '.join(wanted)}")
            run_quietly([sys.executable, "-m", "venv", "--clear", str(folder)])
            run_quietly([str(python), "-m", "pip", "install", "--quiet", *wanted])
            marker.write_text("\n".join(wanted), encoding="utf-8")
        return python

    @contextlib.contextmanager
    def over_tls(self) -> Iterator[None]:
        """Within it the server speaks TLS: `url` and `ca_file` are that one's."""
        plain = self.url
        with Nginx(self.folder, tls=True) as server:
            self.url, self.ca_file = server.url, server.ca_file
            try:
                yield
            finally:
                self.url, self.ca_file = plain, ""

    def with_resets(self, name: str, options: list[str], *, faulty: bool) -> Sample:
        """headrace against a server that resets the first answer to each range half-way, or not. `server_bytes` and
        `resets` are what that server counted."""
        plain = self.url
        with ResettingServer(self.folder, faulty=faulty) as server:
            self.url = server.url
            try:
                [sample] = self.headrace(name, options)
            finally:
                self.url = plain
            sample.stats["server_bytes"] = server.sent
            sample.stats["resets"] = server.resets
        return sample

    def read_loop(self, name: str, folder: pathlib.Path, *options: str) -> Sample:
        files = [str(folder / name / file) for file in self.checkpoint(name, folder)["files"]]
        [sample] = run([str(self.programs["ceiling"]), "--read", *options, *files])
        self._check_bytes(sample, self.file_bytes(name))
        return sample

    def _urls(self, name: str) -> list[str]:
        return [f"{self.url}/{name}/{file}" for file in self.checkpoint(name)["files"]]

    def _uri(self, name: str, folder: pathlib.Path | None) -> str:
        return str(folder / name) if folder is not None else f"{self.url}/{name}"

    def _check_tensors(self, name: str, sample: Sample) -> None:
        expected = self.checkpoint(name)
        if sample.number("tensors") != expected["tensors"]:
            raise RunError(f"expected {expected['tensors']} tensors: {sample.stats}")
        self._check_bytes(sample, expected["tensor_bytes"])

    @staticmethod
    def _check_bytes(sample: Sample, expected: int) -> None:
        if sample.bytes != expected:
            raise RunError(f"expected {expected} bytes, got {sample.bytes}")
