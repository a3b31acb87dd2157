"""`--device`: streams onto the CUDA devices of the tests' own driver."""

import json

import pytest
from headrace_program import Program, binary
from model_server import ModelServer

FAKE = binary().parents[1] / "tests" / "cuda"


@pytest.fixture
def on_device(headrace, tmp_path):
    """The program with the fake driver; `settings` are its own, `report()` is what it has seen."""
    if not (FAKE / "libcuda.so.1").exists():
        pytest.skip("the fake driver is not built: no headers of CUDA")
    return Device(headrace, tmp_path / "report.json")


class Device:
    def __init__(self, program: Program, report_file):
        self._program = program
        self._report_file = report_file

    def __call__(self, *arguments, **settings):
        environment = {f"FAKE_CUDA_{name.upper()}": str(value) for name, value in settings.items()}
        program = Program(
            **self._program.environment,
            LD_LIBRARY_PATH=str(FAKE),
            FAKE_CUDA_REPORT=str(self._report_file),
            **environment,
        )
        return program(*arguments)

    def report(self) -> dict:
        seen = json.loads(self._report_file.read_text())
        assert (seen["violations"], seen["leaks"]) == ([], {})
        return seen


def test_digests_are_those_of_the_host(headrace, on_device, large):
    expected = headrace("stream", large, "--digest")
    with ModelServer(large) as server:
        for where in (large, server.url):
            outcome = on_device("stream", where, "--device", "cuda", "--digest", delay_us=300)
            assert (outcome.status, outcome.stderr) == (0, "")
            assert outcome.stdout == expected.stdout
            assert on_device.report()["copied_bytes"] == 2 * 24_000_000


def test_figures_tell_of_the_copies(on_device, large):
    outcome = on_device("stream", large, "--device", "cuda:1", "--stats", "-", "--repeat", "2", devices=2)
    assert outcome.status == 0, outcome
    for figures in json.loads(outcome.stdout):
        copies = figures["copies"]
        assert copies.keys() == {"pieces", "bytes", "batches", "wake_ups"}
        assert copies["bytes"] == figures["bytes"] == 24_000_000
        assert 0 < copies["wake_ups"] <= copies["batches"] <= copies["pieces"]
    on_device.report()


def test_staging_memory_is_what_the_options_say(on_device, large):
    outcome = on_device(
        "stream", large, "--device", "cuda", "--staging-slots", "2", "--staging-slot-size", "256KiB", "-q", copy_gbps=1
    )
    assert outcome.status == 0, outcome
    assert on_device.report()["peak_pinned_bytes"] == 2 * 256 * 1024


def test_a_trace_shows_the_copies(on_device, large, tmp_path):
    file = tmp_path / "trace.json"
    assert on_device("stream", large, "--device", "cuda", "--trace", file).status == 0
    events = json.loads(file.read_text())["traceEvents"]
    copies = [event for event in events if event["name"] == "copy"]
    assert sum(event["args"]["bytes"] for event in copies) == 24_000_000


def test_without_a_driver_only_devices_are_refused(headrace_once, small):
    outcome = headrace_once("stream", small, "--device", "cuda:0")
    assert outcome.status == 1
    assert outcome.stderr in (
        "headrace: unsupported: no CUDA driver (libcuda.so.1 not found)\n",
        "headrace: unsupported: this build has no CUDA support\n",
    )
    assert headrace_once("stream", small, "--device", "cpu").status == 0


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("invalid_request", {"devices": 0}),
        ("invalid_request", {"devices": 3}),
        ("out_of_memory", {"devices": 4, "memory": "5M"}),
        ("out_of_memory", {"devices": 4, "pinned": 4096}),
        ("unavailable", {"devices": 4, "fail_copy": "2=700"}),
        ("unavailable", {"devices": 4, "fail": "cuLaunchHostFunc:1=700"}),
        ("unsupported", {"driver": "11010"}),
    ],
)
def test_what_goes_wrong_on_a_device_is_one_line(on_device, large, kind, settings):
    outcome = on_device("stream", large, "--device", "cuda:3", "--digest", "--memory-limit", "64M", **settings)
    assert outcome.error_kind() == kind


@pytest.mark.parametrize("size", ["4KiB", "100000", "0"])
def test_a_slot_that_cannot_be_is_a_usage_error(headrace_once, small, size):
    outcome = headrace_once("stream", small, "--staging-slot-size", size)
    assert "--staging-slot-size" in outcome.usage_message()
