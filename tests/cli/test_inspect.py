"""`headrace inspect` and `headrace ls`."""

import json
import re

import checkpoints
import pytest
from model_server import ModelServer


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    shards = [
        [checkpoints.tensor("embed.weight", "BF16", [1000, 32]), checkpoints.tensor("scale", "F32", [])],
        [checkpoints.tensor("head.weight", "F8_E4M3", [32, 7]), checkpoints.tensor("nothing", "I64", [0, 3])],
    ]
    return checkpoints.write_sharded(tmp_path_factory.mktemp("sharded"), shards)


def inspected(outcome) -> dict:
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    return json.loads(outcome.stdout)


def test_json_has_everything_of_the_headers(headrace, sharded):
    found = inspected(headrace("inspect", sharded, "--json"))
    assert list(found) == ["files", "tensors", "total_bytes"]
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    for file in found["files"]:
        content = (sharded / file["name"]).read_bytes()
        assert file == {
            "name": file["name"],
            "bytes": len(content),
            "header_bytes": 8 + int.from_bytes(content[:8], "little"),
            "metadata": {"format": "pt"},
        }
    assert [file["name"] for file in found["files"]] == [first, second]
    assert sorted(found["tensors"], key=lambda tensor: tensor["name"]) == [
        {"name": "embed.weight", "dtype": "BF16", "shape": [1000, 32], "file": first, "begin": 0, "end": 64000},
        {"name": "head.weight", "dtype": "F8_E4M3", "shape": [32, 7], "file": second, "begin": 0, "end": 224},
        {"name": "nothing", "dtype": "I64", "shape": [0, 3], "file": second, "begin": 224, "end": 224},
        {"name": "scale", "dtype": "F32", "shape": [], "file": first, "begin": 64000, "end": 64004},
    ]
    assert found["total_bytes"] == 64228


def test_json_is_exact_with_awkward_names_and_metadata(headrace_once, tmp_path):
    tensors = [checkpoints.tensor(name, "U8", [1]) for name in checkpoints.AWKWARD_NAMES]
    metadata = {"": "empty", 'a"\\\n\x1b\u009b': "重み\x00\x7f"}
    checkpoints.write_single(tmp_path, tensors, metadata)
    outcome = headrace_once("inspect", tmp_path, "--json")
    found = inspected(outcome)
    assert sorted(tensor["name"] for tensor in found["tensors"]) == sorted(checkpoints.AWKWARD_NAMES)
    assert found["files"][0]["metadata"] == metadata
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", outcome.stdout)


def test_json_keeps_large_numbers_exact(headrace_once, tmp_path):
    big = 2**63 + 1
    checkpoints.write_single(tmp_path, [("none", "U8", [0, big], b"")])
    assert inspected(headrace_once("inspect", tmp_path, "--json"))["tensors"][0]["shape"] == [0, big]


def test_the_table_shows_tensors_totals_and_metadata(headrace_once, sharded):
    outcome = headrace_once("inspect", sharded)
    assert (outcome.status, outcome.stderr) == (0, "")
    lines = outcome.stdout.splitlines()
    assert lines[0].split() == ["NAME", "DTYPE", "SHAPE", "BYTES", "FILE"]
    embed = next(line for line in lines if line.startswith("embed.weight "))
    assert re.fullmatch(r"embed\.weight +BF16 +\[1000, 32\] +64000  model-00001-of-00002\.safetensors", embed)
    assert any(line.startswith("4 tensors in 2 files, 64,228 bytes") for line in lines)
    assert "format: pt" in outcome.stdout


def test_the_table_keeps_control_characters_from_the_terminal(headrace_once, tmp_path):
    tensors = [checkpoints.tensor(name, "U8", [1]) for name in checkpoints.AWKWARD_NAMES]
    checkpoints.write_single(tmp_path, tensors, {"key\x1b": "value\u009b\n"})
    outcome = headrace_once("inspect", tmp_path)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", outcome.stdout)


def test_a_long_name_does_not_move_the_other_columns(headrace_once, tmp_path):
    checkpoints.write_single(tmp_path, [checkpoints.tensor("n" * 5000, "U8", [1]), checkpoints.tensor("short", "U8", [1])])
    outcome = headrace_once("inspect", tmp_path)
    assert len(next(line for line in outcome.stdout.splitlines() if line.startswith("short"))) < 200


def test_inspect_reads_headers_and_no_weights(headrace, large):
    with ModelServer(large) as server:
        found = inspected(headrace("inspect", f"{server.url}/model.safetensors", "--json"))
        assert found["total_bytes"] == 24_000_000
        for _, _, wanted in server.requests:
            first, last = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted).groups()
            assert int(last) - int(first) < 2**17


def test_ls_lists_the_files(headrace, sharded):
    outcome = headrace("ls", sharded)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert outcome.stdout == "".join(
        f"{(sharded / name).stat().st_size}  {name}\n"
        for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    )


def test_ls_quotes_a_name_that_a_line_cannot_hold(headrace_once, tmp_path):
    name = 'a"\n\x1b\u009b.safetensors'
    checkpoints.write_single(tmp_path, [checkpoints.tensor("a", "U8", [1])], name=name)
    outcome = headrace_once("ls", tmp_path)
    assert (outcome.status, outcome.stderr) == (0, "")
    size, _, written = outcome.stdout.partition("  ")
    assert (int(size), json.loads(written)) == ((tmp_path / name).stat().st_size, name)
