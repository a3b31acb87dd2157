"""One model in a real S3 server. Runs where `./run test` has loaded the servers' fixtures."""

import checkpoints
import pytest


@pytest.fixture(scope="module")
def bucket(request):
    try:
        server = request.getfixturevalue("seaweedfs")
    except pytest.FixtureLookupError:
        pytest.skip("without -p server_fixtures there is no S3 server")
    server.client().create_bucket("cli")
    return server


def test_a_bucket_is_streamed(headrace, bucket, tmp_path):
    shards = [[checkpoints.tensor(f"layers.{shard}.{n}", "BF16", [300, 300]) for n in range(3)] for shard in range(3)]
    folder = checkpoints.write_sharded(tmp_path / "model", shards)
    bucket.client().put_folder("cli", "models/sharded", folder)
    outcome = headrace("stream", "s3://cli/models/sharded", "--digest", environment=bucket.environment())
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    assert checkpoints.parse_digests(outcome.stdout) == sorted(checkpoints.expected_digests(folder).items())


def test_options_lead_to_a_store_as_variables_do(headrace_once, bucket, small):
    bucket.client().put_folder("public", "cli-small", small)
    environment = {"NO_PROXY": "127.0.0.1"}
    options = ["--endpoint", bucket.endpoint, "--region", bucket.region, "--anonymous", "--path-style"]
    outcome = headrace_once("ls", "s3://public/cli-small", *options, environment=environment)
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    variables = {"HEADRACE_ENDPOINT": bucket.endpoint, "HEADRACE_REGION": bucket.region, "HEADRACE_ANONYMOUS": "1"}
    assert headrace_once("ls", "s3://public/cli-small", environment={**environment, **variables}) == outcome


@pytest.mark.parametrize(
    "uri, kind",
    [("s3://cli/no/such/prefix", "not_found"), ("s3://cli/", "invalid_request"), ("s3://no-such-bucket/x", "not_found")],
)
def test_what_is_not_in_the_store(headrace, bucket, uri, kind):
    outcome = headrace("stream", uri, environment=bucket.environment())
    assert outcome.error_kind() == kind
    if uri.startswith("s3://cli/no"):
        assert "No files found" in outcome.stderr and uri in outcome.stderr


def test_wrong_keys_are_denied_and_not_told(headrace, bucket):
    environment = {**bucket.environment(), "AWS_SECRET_ACCESS_KEY": "hunter2hunter2"}
    outcome = headrace("stream", "s3://cli/models", environment=environment)
    assert outcome.error_kind() == "access_denied"
    assert "hunter2" not in outcome.stderr
