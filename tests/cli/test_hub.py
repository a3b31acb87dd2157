"""Models in a stand-in for the Hugging Face Hub."""

import checkpoints
import pytest
from hub_server import COMMIT, HubServer


def assert_digests(outcome, folder):
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    assert checkpoints.parse_digests(outcome.stdout) == sorted(checkpoints.expected_digests(folder).items())


def environment_of(hub: HubServer, tmp_path, **variables: str) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "HOME": str(tmp_path), "NO_PROXY": "127.0.0.1", **variables}


def sharded(folder):
    shards = [[checkpoints.tensor(f"layers.{shard}.{n}", "BF16", [300, 300]) for n in range(3)] for shard in range(3)]
    return checkpoints.write_sharded(folder, shards)


def test_a_private_repository_is_streamed_and_its_token_stays_at_the_hub(headrace, tmp_path):
    folder = sharded(tmp_path / "org" / "repo")
    with HubServer(tmp_path, token="hf_right") as hub:
        environment = environment_of(hub, tmp_path, HF_TOKEN="hf_right")
        assert_digests(headrace("stream", "hf://org/repo", "--digest", environment=environment), folder)
        assert {authorization for _, authorization in hub.requests} == {"Bearer hf_right"}
        assert len([path for path, _ in hub.requests if "/revision/" in path]) == 1
        assert len(hub.cdn.requests) >= 3


def test_a_folder_of_a_repository_is_listed_page_by_page(headrace, tmp_path):
    folder = tmp_path / "org" / "repo" / "unet"
    for number in range(5):
        tensors = [checkpoints.tensor(f"part {number}", "F32", [100, 100])]
        checkpoints.write_single(folder, tensors, name=f"part-{number}.safetensors")
    (folder / "deeper").mkdir()
    (folder / "config.json").write_text("{}")
    with HubServer(tmp_path, page=2) as hub:
        environment = environment_of(hub, tmp_path)
        assert_digests(headrace("stream", "hf://org/repo@main/unet", "--digest", environment=environment), folder)
        assert len([path for path, _ in hub.requests if "/tree/" in path]) == 4


def test_a_commit_and_one_file_need_no_listing(headrace_once, tmp_path, small):
    folder = checkpoints.write_single(tmp_path / "org" / "repo", [checkpoints.tensor("a", "F32", [10])])
    with HubServer(tmp_path) as hub:
        uri = f"hf://org/repo@{COMMIT}/model.safetensors"
        assert_digests(headrace_once("stream", uri, "--digest", environment=environment_of(hub, tmp_path)), folder)
        assert len(hub.requests) == 1


@pytest.mark.parametrize(
    "uri, variables, kind, advice",
    [
        ("hf://org/none", {"HF_TOKEN": "hf_right"}, "not_found", "HF_TOKEN"),
        ("hf://org/repo", {}, "not_found", "set HF_TOKEN"),
        ("hf://org/repo@other", {"HF_TOKEN": "hf_right"}, "not_found", "no revision 'other'"),
        ("hf://org/repo/none", {"HF_TOKEN": "hf_right"}, "not_found", "not in the repository"),
        ("hf://org", {}, "invalid_request", "hf://org/repo"),
        ("hf://org/repo", {"HF_TOKEN": "hf right"}, "invalid_request", "HF_TOKEN"),
    ],
)
def test_what_cannot_be_read_says_what_to_do(headrace_once, tmp_path, uri, variables, kind, advice):
    sharded(tmp_path / "org" / "repo")
    with HubServer(tmp_path, token="hf_right") as hub:
        outcome = headrace_once("stream", uri, environment=environment_of(hub, tmp_path, **variables))
        assert outcome.error_kind() == kind
        assert advice in outcome.stderr and "hf_right" not in outcome.stderr
