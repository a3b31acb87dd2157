"""Models in a stand-in for Google Cloud Storage. Runs where `./run test` has loaded the servers' fixtures."""

import checkpoints
import pytest


@pytest.fixture(scope="module")
def bucket(request):
    try:
        server = request.getfixturevalue("fake_gcs")
    except pytest.FixtureLookupError:
        pytest.skip("without -p server_fixtures there is no such server")
    server.create_bucket("cli")
    return server


def assert_digests(outcome, folder):
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    assert checkpoints.parse_digests(outcome.stdout) == sorted(checkpoints.expected_digests(folder).items())


def test_a_bucket_is_streamed(headrace, bucket, tmp_path):
    shards = [[checkpoints.tensor(f"layers.{shard}.{n}", "BF16", [300, 300]) for n in range(3)] for shard in range(3)]
    folder = checkpoints.write_sharded(tmp_path / "model", shards)
    bucket.put_folder("cli", "models/sharded", folder)
    outcome = headrace("stream", "gs://cli/models/sharded", "--digest", environment=bucket.environment())
    assert_digests(outcome, folder)


def test_a_bucket_without_an_index_is_listed(headrace, bucket, tmp_path):
    folder = tmp_path / "model"
    for number in range(3):
        tensors = [checkpoints.tensor(f"part {number}", "F32", [100, 100])]
        checkpoints.write_single(folder, tensors, name=f"part+{number} ä%20.safetensors")
    bucket.put_folder("cli", "models/a b+c/listed", folder)
    bucket.put_object("cli", "models/a b+c/listed/deeper/other.safetensors", b"not a model")
    bucket.put_object("cli", "models/a b+c/listed-too/other.safetensors", b"not a model")
    outcome = headrace("stream", "gs://cli/models/a b+c/listed/", "--digest", environment=bucket.environment())
    assert_digests(outcome, folder)


def test_one_object_is_streamed_at_an_endpoint_of_ones_own(headrace_once, bucket, large):
    bucket.put_object("cli", "single.safetensors", large / "model.safetensors")
    environment = {"NO_PROXY": "127.0.0.1"}
    options = ["--endpoint", bucket.url, "--anonymous"]
    outcome = headrace_once("stream", "gs://cli/single.safetensors", "--digest", *options, environment=environment)
    assert_digests(outcome, large)


@pytest.mark.parametrize(
    "uri, kind",
    [("gs://cli/no/such/prefix", "not_found"), ("gs://cli/", "invalid_request"), ("gs://cli/x.safetensors", "not_found")],
)
def test_what_is_not_in_the_store(headrace, bucket, uri, kind):
    outcome = headrace("stream", uri, environment=bucket.environment())
    assert outcome.error_kind() == kind
    if uri.startswith("gs://cli/no"):
        assert "No files found" in outcome.stderr and uri in outcome.stderr
