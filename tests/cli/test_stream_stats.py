"""`--stats`, `--repeat` and `--trace`."""

import json
import os

import checkpoints
import pytest
from headrace_program import collect, without_privileges
from model_server import ModelServer

FIELDS = {
    "tensors", "bytes", "seconds", "gbps", "first_tensor_seconds", "requests", "retries", "cpu_seconds", "peak_rss_bytes",
    "io_backend",
}  # fmt: skip


def assert_plausible(figures: dict, tensors: int, size: int, backend: str) -> None:
    assert figures.keys() == FIELDS
    assert (figures["tensors"], figures["bytes"], figures["io_backend"]) == (tensors, size, backend)
    assert 0 < figures["first_tensor_seconds"] <= figures["seconds"]
    assert figures["gbps"] == pytest.approx(size / 1e9 / figures["seconds"], rel=0.02)
    assert figures["requests"] >= 1
    assert figures["retries"] == 0
    assert figures["cpu_seconds"] > 0
    assert figures["peak_rss_bytes"] > 2**20


def test_figures_are_written_to_a_file(headrace, large, tmp_path):
    file = tmp_path / "stats.json"
    outcome = headrace("stream", large, "--stats", file)
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, "", "")
    assert_plausible(json.loads(file.read_text()), 6, 24_000_000, headrace.environment["HEADRACE_IO"])
    assert os.listdir(tmp_path) == ["stats.json"]


def test_figures_go_to_standard_output_after_the_digests(headrace_once, small):
    outcome = headrace_once("stream", small, "--digest", "--stats", "-")
    assert outcome.status == 0
    lines = outcome.stdout.splitlines()
    assert len(checkpoints.parse_digests("\n".join(lines[:3]) + "\n")) == 3
    assert json.loads("\n".join(lines[3:])).keys() == FIELDS


def test_requests_are_those_that_the_server_saw(headrace, large):
    with ModelServer(large) as server:
        outcome = headrace("stream", f"{server.url}/model.safetensors", "--stats", "-", "--chunk-size", "1M")
        assert outcome.status == 0, outcome
        assert json.loads(outcome.stdout)["requests"] == len(server.requests)


@pytest.mark.parametrize("passes", [1, 3])
def test_repeat_gives_an_array(headrace, small, passes):
    outcome = headrace("stream", small, "--repeat", str(passes), "--stats", "-", "--digest")
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    digests, _, figures = outcome.stdout.partition("[")
    assert len(checkpoints.parse_digests(digests)) == 3
    figures = json.loads("[" + figures)
    assert len(figures) == passes
    for one in figures:
        assert (one["tensors"], one["bytes"]) == (3, 4096 + 128 + 20)


def test_repeat_opens_each_time(headrace_once, small):
    with ModelServer(small) as server:
        assert headrace_once("stream", f"{server.url}/model.safetensors").status == 0
        once = len(server.requests)
        assert headrace_once("stream", f"{server.url}/model.safetensors", "--repeat", "4").status == 0
        assert len(server.requests) == 5 * once


def test_a_model_without_tensors_has_figures(headrace_once, tmp_path):
    folder = checkpoints.write_single(tmp_path / "model", [])
    figures = json.loads(headrace_once("stream", folder, "--stats", "-").stdout)
    assert (figures["tensors"], figures["bytes"], figures["gbps"], figures["first_tensor_seconds"]) == (0, 0, 0, None)


def test_a_failure_leaves_the_file_of_figures_alone(headrace_once, tmp_path):
    file = tmp_path / "stats.json"
    file.write_text("before")
    assert headrace_once("stream", tmp_path / "nowhere", "--stats", file).error_kind() == "not_found"
    assert file.read_text() == "before"
    assert os.listdir(tmp_path) == ["stats.json"]


def test_a_file_of_figures_keeps_being_a_link(headrace_once, small, tmp_path):
    (tmp_path / "real.json").write_text("before")
    (tmp_path / "link.json").symlink_to("real.json")
    assert headrace_once("stream", small, "--stats", tmp_path / "link.json").status == 0
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text())["tensors"] == 3


def test_a_device_is_written_to_and_not_replaced(headrace_once, small, tmp_path):
    assert headrace_once("stream", small, "--stats", "/dev/null", "--trace", "/dev/null").status == 0
    assert not os.path.isfile("/dev/null")


@pytest.mark.parametrize("option", ["--stats", "--trace"])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_fetched(headrace_once, small, tmp_path, option):
    with ModelServer(small) as server:
        uri = f"{server.url}/model.safetensors"
        assert headrace_once("stream", uri, option, tmp_path / "no" / "such" / "file").error_kind() == "not_found"
        assert headrace_once("stream", uri, option, tmp_path).error_kind() == "invalid_request"
        folder = tmp_path / "forbidden"
        folder.mkdir(mode=0o500)
        denied = headrace_once("stream", uri, option, folder / "file", preexec_fn=without_privileges)
        assert denied.error_kind() == "access_denied"
        assert server.requests == []


def test_a_trace_is_chrome_trace_events(headrace, large, tmp_path):
    file = tmp_path / "trace.json"
    with ModelServer(large) as server:
        assert headrace("stream", f"{server.url}/model.safetensors", "--trace", file).status == 0
    events = json.loads(file.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert spans
    for span in spans:
        assert span["ts"] >= 0 and span["dur"] >= 0 and span["name"]


def test_a_trace_is_written_after_a_failure_too(headrace_once, large, tmp_path):
    file = tmp_path / "trace.json"
    with ModelServer(large) as server:
        server.hold("/model.safetensors", start=1_000_000)
        child = headrace_once.start("stream", f"{server.url}/model.safetensors", "--trace", file, "--retries", "0")
        assert server.held.wait(60)
        server.refuse = 403
        server.release(broken=True)
        collect(child).error_kind()
    assert json.loads(file.read_text())["traceEvents"]


def test_a_full_standard_output_is_an_error(headrace_once, small):
    with open("/dev/full", "wb") as full:
        outcome = headrace_once("stream", small, "--digest", stdout=full)
    assert outcome.error_kind() == "unavailable"
    assert "standard output" in outcome.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["stream", "--digest"], ["inspect"], ["ls"]])
def test_a_reader_that_went_away_is_an_error_and_no_signal(headrace_once, small, arguments):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        outcome = headrace_once(*arguments, *([] if arguments == ["--help"] else [small]), stdout=writing)
    finally:
        os.close(writing)
    assert outcome.error_kind() == "unavailable"
    assert "standard output" in outcome.stderr


def test_a_standard_output_that_was_closed_is_an_error(headrace_once, small):
    outcome = headrace_once("stream", small, "--digest", preexec_fn=lambda: os.close(1))
    assert outcome.error_kind() == "unavailable"
    assert headrace_once("stream", small, preexec_fn=lambda: os.close(1)).status == 0
