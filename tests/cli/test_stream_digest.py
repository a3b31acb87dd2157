"""`headrace stream --digest`: right bytes, in the right form."""

import re

import checkpoints
import pytest
from model_server import ModelServer


def assert_digests(outcome, folder):
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    expected = checkpoints.expected_digests(folder)
    assert checkpoints.parse_digests(outcome.stdout) == sorted(expected.items(), key=lambda entry: entry[0].encode())


def test_every_dtype_has_the_bytes_that_the_reference_reads(headrace, tmp_path):
    folder = checkpoints.write_single(tmp_path / "model", checkpoints.every_dtype())
    assert_digests(headrace("stream", folder, "--digest"), folder)


def test_awkward_names_are_quoted_and_others_are_not(headrace, tmp_path):
    tensors = [checkpoints.tensor(name, "U8", [5]) for name in checkpoints.AWKWARD_NAMES]
    folder = checkpoints.write_single(tmp_path / "model", tensors)
    outcome = headrace("stream", folder, "--digest")
    assert_digests(outcome, folder)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", outcome.stdout)


def test_lines_are_sorted_by_the_bytes_of_names(headrace_once, tmp_path):
    names = ["b", "a.10", "a.2", "a", "B", "é", "z", "￿", "🙂"]
    folder = checkpoints.write_single(tmp_path / "model", [checkpoints.tensor(name, "I64", [2]) for name in names])
    outcome = headrace_once("stream", folder, "--digest")
    assert [name for name, _ in checkpoints.parse_digests(outcome.stdout)] == sorted(names, key=str.encode)


def test_a_sharded_checkpoint_is_streamed_by_its_index(headrace, tmp_path):
    shards = [[checkpoints.tensor(f"layers.{shard}.{n}", "BF16", [64, 100]) for n in range(4)] for shard in range(5)]
    folder = checkpoints.write_sharded(tmp_path / "model", shards)
    assert_digests(headrace("stream", folder, "--digest"), folder)


def test_files_without_an_index_are_all_streamed(headrace_once, tmp_path):
    folder = tmp_path / "model"
    checkpoints.write_single(folder, [checkpoints.tensor("one", "F32", [3])], name="a.safetensors")
    checkpoints.write_single(folder, [checkpoints.tensor("two", "F32", [4])], name="b.safetensors")
    assert_digests(headrace_once("stream", folder, "--digest"), folder)


def test_a_single_file_and_a_file_uri_work_as_well(headrace_once, small):
    expected = headrace_once("stream", small, "--digest")
    assert_digests(expected, small)
    assert headrace_once("stream", small / "model.safetensors", "--digest") == expected
    assert headrace_once("stream", f"file://{small}", "--digest") == expected


@pytest.mark.parametrize("sharded", [False, True])
def test_http_directories_are_streamed(headrace, tmp_path, sharded):
    tensors = [checkpoints.tensor(f"layers.{number}.weight", "F32", [200, 300]) for number in range(8)]
    folder = tmp_path / "model"
    if sharded:
        checkpoints.write_sharded(folder, [tensors[:3], tensors[3:]])
    else:
        checkpoints.write_single(folder, tensors)
    with ModelServer(tmp_path) as server:
        assert_digests(headrace("stream", f"{server.url}/model", "--digest", "--chunk-size", "128K"), folder)


def test_a_single_object_over_http_is_streamed(headrace, tmp_path, large):
    with ModelServer(large) as server:
        assert_digests(headrace("stream", f"{server.url}/model.safetensors", "--digest"), large)


def test_a_server_that_ignores_ranges_gives_the_right_bytes(headrace, small):
    with ModelServer(small, ranges=False) as server:
        assert_digests(headrace("stream", f"{server.url}/model.safetensors", "--digest"), small)


def test_small_chunks_and_little_memory_give_the_same_bytes(headrace, large):
    assert_digests(headrace("stream", large, "--digest", "--chunk-size", "64KiB", "--memory-limit", "64KiB"), large)


def test_without_digest_nothing_is_printed(headrace, small):
    outcome = headrace("stream", small)
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, "", "")


def test_a_model_without_tensors_streams(headrace_once, tmp_path):
    folder = checkpoints.write_single(tmp_path / "model", [])
    outcome = headrace_once("stream", folder, "--digest")
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, "", "")
