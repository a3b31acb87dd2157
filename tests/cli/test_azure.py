"""Models in Azure's emulator. Runs where `./run test` has loaded the servers' fixtures."""

import checkpoints
import pytest
from interposer import Interposer

CONTAINER = "cli"


@pytest.fixture(scope="module")
def server(request):
    try:
        running = request.getfixturevalue("azurite")
    except pytest.FixtureLookupError:
        pytest.skip("without -p server_fixtures there is no Azure server")
    running.client().create_container(CONTAINER)
    return running


@pytest.fixture(scope="module")
def sharded(server, tmp_path_factory):
    """The folder of a model that lies at az://cli/models/sharded."""
    shards = [[checkpoints.tensor(f"layers.{shard}.{n}", "BF16", [300, 300]) for n in range(3)] for shard in range(3)]
    folder = checkpoints.write_sharded(tmp_path_factory.mktemp("azure") / "model", shards)
    server.client().put_folder(CONTAINER, "models/sharded", folder)
    return folder


def with_key(server) -> dict[str, str]:
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": server.account,
        "AZURE_STORAGE_ACCOUNT_KEY": server.key,
        "HEADRACE_ENDPOINT": server.endpoint,
        "NO_PROXY": "127.0.0.1",
    }


def with_sas(server, **options) -> dict[str, str]:
    return {
        "AZURE_STORAGE_SAS_TOKEN": server.client().sas_token(**options),
        "HEADRACE_ENDPOINT": server.endpoint,
        "NO_PROXY": "127.0.0.1",
    }


def with_connection_string(server) -> dict[str, str]:
    return {"AZURE_STORAGE_CONNECTION_STRING": server.connection_string(), "NO_PROXY": "127.0.0.1"}


def assert_streamed(outcome, folder) -> None:
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    expected = checkpoints.expected_digests(folder)
    assert checkpoints.parse_digests(outcome.stdout) == sorted(expected.items(), key=lambda entry: entry[0].encode())


@pytest.mark.parametrize("credentials", [with_key, with_sas, with_connection_string])
def test_a_container_is_streamed(headrace, server, sharded, credentials):
    outcome = headrace("stream", f"az://{CONTAINER}/models/sharded", "--digest", environment=credentials(server))
    assert_streamed(outcome, sharded)


def test_a_uri_may_name_the_account(headrace_once, server, sharded):
    uri = f"abfss://{CONTAINER}@{server.account}.dfs.core.windows.net/models/sharded"
    assert_streamed(headrace_once("stream", uri, "--digest", environment=with_connection_string(server)), sharded)


def test_a_real_model_has_the_bytes_that_its_package_has(headrace, server, minilm):
    server.client().put_folder(CONTAINER, "minilm", minilm)
    outcome = headrace("stream", f"az://{CONTAINER}/minilm", "--digest", environment=with_connection_string(server))
    assert_streamed(outcome, minilm)


@pytest.mark.parametrize("prefix", ["a b/ä+c", "100%/50%25", "UPPER/q?x", "重み/#1"])
@pytest.mark.parametrize("credentials", [with_key, with_sas])
def test_names_are_taken_literally(headrace_once, server, tmp_path, prefix, credentials):
    folder = checkpoints.write_single(tmp_path / "model", [checkpoints.tensor("w", "F32", [9])], name="a +%.safetensors")
    server.client().put_folder(CONTAINER, prefix, folder)
    outcome = headrace_once("stream", f"az://{CONTAINER}/{prefix}", "--digest", environment=credentials(server))
    assert_streamed(outcome, folder)


def test_what_lies_deeper_and_directories_are_not_listed(headrace_once, server):
    client = server.client()
    content = checkpoints.encode([checkpoints.tensor("w", "F32", [9])])
    for name in ("listing/b.safetensors", "listing/a.safetensors", "listing/deeper/c.safetensors", "listing-other/d.safetensors"):
        client.put_blob(CONTAINER, name, content)
    client.put_blob(CONTAINER, "listing/folder.safetensors", b"", {"hdi_isfolder": "true"})
    outcome = headrace_once("ls", f"az://{CONTAINER}/listing", environment=with_key(server))
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    assert [line.split()[-1] for line in outcome.stdout.splitlines()] == ["a.safetensors", "b.safetensors"]


def test_a_public_container_needs_no_credentials(headrace_once, server, small):
    server.client().put_folder("public", "cli-small", small)
    environment = {"HEADRACE_ENDPOINT": server.endpoint, "HEADRACE_ANONYMOUS": "1", "NO_PROXY": "127.0.0.1"}
    assert_streamed(headrace_once("stream", "az://public/cli-small", "--digest", environment=environment), small)


@pytest.mark.parametrize(
    "uri, kind",
    [
        (f"az://{CONTAINER}/no/such/prefix", "not_found"),
        (f"az://{CONTAINER}/no/such.safetensors", "not_found"),
        (f"az://{CONTAINER}/", "invalid_request"),
        ("az://no-such-container/x", "not_found"),
    ],
)
def test_what_is_not_in_the_store(headrace, server, uri, kind):
    outcome = headrace("stream", uri, environment=with_key(server))
    assert outcome.error_kind() == kind


def test_wrong_keys_and_signatures_are_denied_and_not_told(headrace_once, server, sharded):
    wrong_key = {**with_key(server), "AZURE_STORAGE_ACCOUNT_KEY": "aHVudGVyMg=="}
    run_out = with_sas(server, lifetime=-3600)
    for environment, variable in ((wrong_key, "AZURE_STORAGE_ACCOUNT_KEY"), (run_out, "AZURE_STORAGE_SAS_TOKEN")):
        outcome = headrace_once("stream", f"az://{CONTAINER}/models/sharded", "-vv", environment=environment)
        assert outcome.status == 1
        assert "access_denied" in outcome.stderr and variable in outcome.stderr
        for secret in ("aHVudGVyMg==", "SharedKey", "sig=", server.key):
            assert secret not in outcome.stderr


def test_nothing_secret_is_in_logs_and_traces(headrace_once, server, sharded, tmp_path):
    for credentials in (with_key, with_sas):
        environment = credentials(server)
        trace = tmp_path / "trace.json"
        arguments = ("stream", f"az://{CONTAINER}/models/sharded", "-vv", "--trace", trace)
        outcome = headrace_once(*arguments, environment=environment)
        assert outcome.status == 0, outcome
        for text in (outcome.stdout, outcome.stderr, trace.read_text()):
            assert "sig=" not in text and "SharedKey" not in text and server.key not in text


@pytest.mark.parametrize("arguments", [(), ("az://models/other",)])
def test_a_signature_in_a_uri_is_refused_and_not_shown(headrace_once, arguments):
    outcome = headrace_once("stream", *arguments, "az://models/x?sv=2021-12-02&sig=hunter2")
    assert outcome.status != 0
    assert "az://models/x" in outcome.stderr if arguments else "AZURE_STORAGE_SAS_TOKEN" in outcome.stderr
    assert "hunter2" not in outcome.stderr


def test_a_blob_that_is_overwritten_in_the_middle_has_changed(headrace, server, large):
    content = (large / "model.safetensors").read_bytes()
    client = server.client()
    client.put_folder(CONTAINER, "overwritten", large)
    overwritten = []

    def before(start: int) -> None:
        if start > 0 and not overwritten:
            overwritten.append(start)
            client.put_blob(CONTAINER, "overwritten/model.safetensors", content[:-1] + bytes([content[-1] ^ 1]))

    with Interposer(server.endpoint, before=before) as between:
        environment = {**with_key(server), "HEADRACE_ENDPOINT": between.url}
        outcome = headrace("stream", f"az://{CONTAINER}/overwritten", "--digest", environment=environment)
    assert overwritten
    assert outcome.error_kind() == "object_changed"
