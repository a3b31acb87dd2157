"""`--direct-io`: local files past the page cache."""

import checkpoints
import pytest


def digests_of(outcome) -> dict[str, str]:
    assert outcome.status == 0, outcome
    return dict(checkpoints.parse_digests(outcome.stdout))


@pytest.fixture
def awkward(tmp_path):
    """Tensors that begin and end anywhere, some of them larger than what is read at once."""
    tensors = [checkpoints.tensor(f"{number}.{size}", "U8", [size]) for number, size in enumerate((1, 511, 70_001, 3, 5_000_003, 9_000_000, 7))]
    return checkpoints.write_single(tmp_path / "model", tensors)


def test_every_byte_is_the_same(headrace, awkward):
    expected = checkpoints.expected_digests(awkward)
    assert digests_of(headrace("stream", awkward, "--digest", "--direct-io")) == expected
    assert digests_of(headrace("stream", awkward, "--digest", "--direct-io", "--chunk-size", "64KiB")) == expected
    assert digests_of(headrace("stream", awkward, "--digest", "--direct-io", "--include", "4.*", "--repeat", "2")) == {
        name: digest for name, digest in expected.items() if name.startswith("4.")
    }


def test_what_a_file_system_refuses_is_said_once(headrace_once, tmp_path):
    # The kernel makes these files up: there is nothing below them to be read directly.
    folder = tmp_path / "model"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.safetensors").symlink_to("/proc/self/status")
    said = headrace_once("stream", folder, "--direct-io", "-v").stderr
    assert said.count("reading through the page cache after all") == 1
    assert "refuses direct reads" in said
    quiet = headrace_once("stream", folder, "--direct-io")
    assert quiet.error_kind() == "invalid_safetensors"
    assert "page cache" not in headrace_once("stream", folder, "-v").stderr
