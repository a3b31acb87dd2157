"""Bad input: exit 1, one line, nothing on standard output."""

import json
import os
import struct

import checkpoints
import pytest
from headrace_program import collect, without_privileges
from model_server import ModelServer

COMMANDS = ["stream", "inspect", "ls"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "uri, kind",
    [
        ("ftp://host/model", "unsupported"),
        ("nonsense://bucket/model", "unsupported"),
        ("s3://", "invalid_request"),
        ("s3:///model", "invalid_request"),
        ("http://", "invalid_request"),
        ("http:///model", "invalid_request"),
        ("http://host:99999/model", "invalid_request"),
        ("", "invalid_request"),
        ("/no/such/folder", "not_found"),
        ("file:///no/such/folder", "not_found"),
        ("/no/such/file.safetensors", "not_found"),
    ],
)
def test_a_uri_that_leads_nowhere(headrace_once, command, uri, kind):
    assert headrace_once(command, uri).error_kind() == kind


def test_an_unknown_scheme_is_named(headrace_once):
    assert "ftp" in headrace_once("stream", "ftp://host/model").stderr


def test_a_folder_without_safetensors_files_says_what_was_looked_for(headrace, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    outcome = headrace("stream", tmp_path)
    assert outcome.error_kind() == "not_found"
    assert "No files found" in outcome.stderr
    assert str(tmp_path) in outcome.stderr
    assert ".safetensors" in outcome.stderr


def test_an_http_directory_without_safetensors_files_says_what_was_looked_for(headrace, tmp_path):
    with ModelServer(tmp_path) as server:
        outcome = headrace("stream", f"{server.url}/model")
    assert outcome.error_kind() == "not_found"
    assert "No files found" in outcome.stderr
    assert f"{server.url}/model" in outcome.stderr
    assert "model.safetensors" in outcome.stderr


def length(size: int) -> bytes:
    return struct.pack("<Q", size)


HEADER = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'

MALFORMED = {
    "empty": b"",
    "seven bytes": b"1234567",
    "an endless header": length(2**63) + b"{}",
    "a header beyond the end": length(1000) + b"{}",
    "not JSON": length(3) + b"{{{",
    "not an object": length(2) + b"[]",
    "not UTF-8": length(4) + b'{"\xff',
    "truncated data": length(len(HEADER)) + HEADER + b"1234567",
    "data too long": length(len(HEADER)) + HEADER + b"123456789",
    "nonsense": b"\x00" * 1000,
    "an HTML page": b"<!DOCTYPE html><html><body>Not here</body></html>" * 10,
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_file(headrace, tmp_path, what):
    file = tmp_path / "model.safetensors"
    file.write_bytes(MALFORMED[what])
    for command in COMMANDS:
        outcome = headrace(command, tmp_path)
        assert outcome.error_kind() == "invalid_safetensors"
        assert "model.safetensors" in outcome.stderr
    with ModelServer(tmp_path) as server:
        assert headrace("stream", f"{server.url}/model.safetensors").error_kind() == "invalid_safetensors"


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": "../secret.safetensors"}}',
        '{"weight_map": {"a": "/etc/passwd"}}', "\x00\x00",
    ],
)  # fmt: skip
def test_a_malformed_index(headrace, tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    checkpoints.write_single(tmp_path, [checkpoints.tensor("a", "F32", [2])])
    for command in COMMANDS:
        outcome = headrace(command, tmp_path)
        assert outcome.error_kind() == "invalid_safetensors"
        assert "model.safetensors.index.json" in outcome.stderr


def test_a_shard_that_the_store_lacks(headrace, tmp_path):
    shards = [[checkpoints.tensor(name, "F32", [4])] for name in "abc"]
    checkpoints.write_sharded(tmp_path, shards)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with ModelServer(tmp_path.parent) as server:
        for uri in (tmp_path, f"{server.url}/{tmp_path.name}"):
            outcome = headrace("stream", uri)
            assert outcome.error_kind() == "not_found"
            assert "model-00002-of-00003.safetensors" in outcome.stderr


def test_a_tensor_that_its_file_lacks(headrace, tmp_path):
    checkpoints.write_sharded(tmp_path, [[checkpoints.tensor("a", "F32", [4])]])
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["missing.weight"] = "model-00001-of-00001.safetensors"
    index.write_text(json.dumps(content))
    outcome = headrace("stream", tmp_path)
    assert outcome.error_kind() == "invalid_safetensors"
    assert "missing.weight" in outcome.stderr


def test_a_file_that_may_not_be_read(headrace, tmp_path):
    folder = checkpoints.write_single(tmp_path, [checkpoints.tensor("a", "F32", [4])])
    (folder / "model.safetensors").chmod(0)
    for uri in (folder, folder / "model.safetensors"):
        assert headrace("stream", uri, preexec_fn=without_privileges).error_kind() == "access_denied"
    folder.chmod(0)
    try:
        assert headrace("stream", folder, preexec_fn=without_privileges).error_kind() == "access_denied"
    finally:
        folder.chmod(0o700)


def test_what_is_no_regular_file(headrace, tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    headrace("stream", tmp_path / "model.safetensors").error_kind()
    os.mkfifo(tmp_path / "fifo.safetensors")
    headrace("stream", tmp_path / "fifo.safetensors").error_kind()


def test_a_file_that_is_no_safetensors_name(headrace_once, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    headrace_once("stream", tmp_path / "notes.txt").error_kind()


@pytest.mark.parametrize(
    "status, kinds",
    [(403, {"access_denied"}), (401, {"access_denied"}), (500, {"unavailable"}), (503, {"throttled", "unavailable"})],
)
def test_a_server_that_refuses(headrace, small, status, kinds):
    with ModelServer(small) as server:
        server.refuse = status
        outcome = headrace("stream", f"{server.url}/model.safetensors", "--retries", "0")
    assert outcome.error_kind() in kinds
    assert str(status) in outcome.stderr


def test_a_server_that_is_not_there(headrace):
    with ModelServer(os.devnull) as server:
        uri = f"{server.url}/model.safetensors"
    assert headrace("stream", uri, "--retries", "0", "--connect-timeout", "1s").error_kind() == "connect_error"


def test_a_host_that_is_not_there(headrace):
    uri = "http://no-such-host.invalid/model.safetensors"
    assert headrace("stream", uri, "--retries", "0", "--deadline", "20s").error_kind() in {"connect_error", "timeout"}


def test_a_server_that_says_nothing_more_is_a_timeout(headrace, large):
    with ModelServer(large) as server:
        server.hold("/model.safetensors", after=100_000, start=1_000_000)
        outcome = headrace("stream", f"{server.url}/model.safetensors", "--stall-timeout", "200ms", "--retries", "0", "--digest")
    assert outcome.error_kind() == "timeout"


def test_a_deadline_ends_it(headrace, large):
    with ModelServer(large) as server:
        server.hold("/model.safetensors", after=100_000, start=1_000_000)
        outcome = headrace("stream", f"{server.url}/model.safetensors", "--deadline", "300ms", "--digest")
        assert outcome.error_kind() == "timeout"
        server.hold("/model.safetensors", after=10)
        outcome = headrace("inspect", f"{server.url}/model.safetensors", "--deadline", "300ms")
        assert outcome.error_kind() == "timeout"


def test_connections_that_break_are_truncated_bodies_or_connect_errors(headrace, large):
    with ModelServer(large) as server:
        server.hold("/model.safetensors", after=100_000, start=1_000_000)
        child = headrace.start("stream", f"{server.url}/model.safetensors", "--retries", "0", "--digest")
        assert server.held.wait(60)
        server.refuse = 500
        server.release(broken=True)
        assert collect(child).error_kind() in {"truncated", "connect_error", "unavailable"}


def test_a_device_that_is_not_there(headrace_once, small):
    assert headrace_once("stream", small, "--device", "cuda:63").error_kind() == "unsupported"


def test_a_backend_that_does_not_exist(headrace_once, small):
    outcome = headrace_once("stream", small, environment={"HEADRACE_IO": "carrier-pigeon"})
    assert outcome.error_kind() == "invalid_request"
    assert "carrier-pigeon" in outcome.stderr


def test_a_name_in_a_message_keeps_its_control_characters_from_the_terminal(headrace_once, tmp_path):
    folder = tmp_path / "a\x1b[2J\nb\u009b"
    folder.mkdir()
    outcome = headrace_once("stream", folder)
    assert outcome.error_kind() in {"not_found", "invalid_request"}
    assert "\x1b" not in outcome.stderr and "\u009b" not in outcome.stderr
