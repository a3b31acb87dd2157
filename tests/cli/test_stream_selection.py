"""`--include` and `--exclude`."""

import checkpoints
import pytest


def names_of(outcome) -> list[str]:
    assert outcome.status == 0, outcome
    return [name for name, _ in checkpoints.parse_digests(outcome.stdout)]


@pytest.mark.parametrize(
    "options, left",
    [
        (["--include", "layers.*"], ["layers.0.weight", "layers.1.weight"]),
        (["--include", "layers.0.*", "--include", "norm.bias"], ["layers.0.weight", "norm.bias"]),
        (["--exclude", "*.weight"], ["norm.bias"]),
        (["--exclude", "layers.0.*", "--exclude", "norm.*"], ["layers.1.weight"]),
        (["--include", "layers.*", "--exclude", "*.[1-9].*"], ["layers.0.weight"]),
        (["--include", "norm.bia?"], ["norm.bias"]),
        (["--include=norm.bias"], ["norm.bias"]),
        (["--exclude", "nothing.like.it"], ["layers.0.weight", "layers.1.weight", "norm.bias"]),
    ],
)
def test_globs_choose_tensors(headrace_once, small, options, left):
    assert names_of(headrace_once("stream", *options, small, "--digest")) == left


def test_a_glob_in_brackets_is_one_glob(headrace_once, tmp_path):
    folder = checkpoints.write_single(tmp_path / "model", [checkpoints.tensor(name, "U8", [3]) for name in "abc,"])
    assert names_of(headrace_once("stream", folder, "--digest", "--include", "[a,b]")) == [",", "a", "b"]


def test_a_star_matches_a_nul(headrace_once, tmp_path):
    folder = checkpoints.write_single(tmp_path / "model", [checkpoints.tensor(name, "U8", [3]) for name in ("a\0b", "a")])
    assert names_of(headrace_once("stream", folder, "--digest", "--include", "a?b")) == ["a\0b"]
    assert names_of(headrace_once("stream", folder, "--digest", "--exclude", "a?*")) == ["a"]


@pytest.mark.parametrize("options", [["--include", "nothing.*"], ["--exclude", "*"]])
def test_nothing_left_is_not_found(headrace_once, small, options):
    outcome = headrace_once("stream", small, "--digest", *options)
    assert outcome.error_kind() == "not_found"
    assert "layers.0.weight" in outcome.stderr
