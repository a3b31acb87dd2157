"""`headrace credentials`, and AWS keys from each place that the program looks in."""

import http.server
import json
import shlex
import sys
import threading

import checkpoints
import pytest

KEYS = {"AccessKeyId": "AKIDOFTHETEST1234", "SecretAccessKey": "hunter2hunter2", "Token": "hunter2-token"}
EXPIRES = "2099-01-31T12:34:56Z"


class KeyServer:
    """Answers every GET with `answer`, and keeps the paths and tokens that came."""

    def __init__(self, answer: dict, status: int = 200):
        self.requests: list[tuple[str, str | None]] = []
        seen = self.requests

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                seen.append((self.path, self.headers.get("Authorization")))
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "KeyServer":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def process_of(tmp_path, keys: dict) -> str:
    """A `credential_process` that writes these keys, and noise where nobody should see it."""
    script = tmp_path / "keys of mine.py"
    script.write_text(f"import sys\nprint('hunter2', file=sys.stderr)\nprint({json.dumps(keys)!r})\n")
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}"


def described(outcome) -> dict:
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    assert "hunter2" not in outcome.stdout
    return json.loads(outcome.stdout)


def test_keys_of_the_variables_are_told_without_secrets(headrace):
    environment = {
        "AWS_ACCESS_KEY_ID": KEYS["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": KEYS["SecretAccessKey"],
        "AWS_REGION": "eu-west-1",
    }
    outcome = headrace("credentials", "s3://bucket/model", environment=environment)
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    assert outcome.stdout.splitlines() == [
        "source: the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        "identity: …1234",
        "region: eu-west-1",
        "endpoint: https://bucket.s3.eu-west-1.amazonaws.com",
    ]
    found = described(headrace("credentials", "s3://bucket/model", "--json", environment=environment))
    assert found == {
        "source": "the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        "identity": "…1234",
        "expires": None,
        "details": {"region": "eu-west-1", "endpoint": "https://bucket.s3.eu-west-1.amazonaws.com"},
    }


def test_keys_of_a_container_are_told_with_their_end(headrace):
    with KeyServer({**KEYS, "Expiration": EXPIRES}) as server:
        environment = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{server.url}/keys",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN": "hunter2-pod",
        }
        found = described(headrace("credentials", "s3://bucket/model", "--json", environment=environment))
    assert server.requests == [("/keys", "hunter2-pod")]
    assert found["expires"] == EXPIRES
    assert "AWS_CONTAINER_CREDENTIALS_FULL_URI" in found["source"]


def test_a_profile_by_option_beats_the_variables(headrace_once, tmp_path):
    config = tmp_path / "config"
    command = process_of(tmp_path, {"Version": 1, **KEYS, "SessionToken": "t", "Expiration": EXPIRES})
    config.write_text(f"[profile mine]\nregion = eu-central-1\ncredential_process = {command}\n")
    environment = {"AWS_CONFIG_FILE": str(config), "AWS_ACCESS_KEY_ID": "other", "AWS_SECRET_ACCESS_KEY": "hunter2"}
    arguments = ["credentials", "s3://bucket/model", "--json"]
    found = described(headrace_once(*arguments, "--profile", "mine", environment=environment))
    assert found["source"] == f"profile 'mine' in {config}, credential_process"
    assert found["details"]["region"] == "eu-central-1"
    assert described(headrace_once(*arguments, environment=environment))["source"].startswith("the variables")


def test_no_keys_at_all_is_no_error_and_says_where_they_were_looked_for(headrace_once):
    found = described(headrace_once("credentials", "s3://bucket/model", "--json"))
    assert found["source"].startswith("none: no keys were found")
    assert found["identity"] == ""
    assert "AWS_ACCESS_KEY_ID" in found["details"]["note"]
    anonymous = described(headrace_once("credentials", "s3://bucket/model", "--json", "--anonymous"))
    assert "storage.anonymous" in anonymous["source"]


@pytest.mark.parametrize("uri", ["/a/folder", "file:///a/folder", "http://127.0.0.1:1/model"])
def test_stores_without_credentials_say_so(headrace_once, uri):
    assert described(headrace_once("credentials", uri, "--json"))["source"].startswith("none")


@pytest.mark.parametrize(
    "environment, words",
    [
        ({"AWS_ACCESS_KEY_ID": "hunter2"}, ["AWS_SECRET_ACCESS_KEY"]),
        ({"AWS_PROFILE": "nobody"}, ["AWS_PROFILE", "nobody"]),
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/no/token", "AWS_ROLE_ARN": "arn:x"}, ["/no/token"]),
        ({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://example.com/"}, ["AWS_CONTAINER_CREDENTIALS_FULL_URI"]),
    ],
)
def test_what_is_wrong_is_named(headrace_once, environment, words):
    outcome = headrace_once("credentials", "s3://bucket/model", environment=environment)
    assert outcome.error_kind() == "invalid_request"
    for word in words:
        assert word in outcome.stderr
    assert "hunter2" not in outcome.stderr


@pytest.fixture(scope="module")
def bucket(request):
    try:
        server = request.getfixturevalue("seaweedfs")
    except pytest.FixtureLookupError:
        pytest.skip("without -p server_fixtures there is no S3 server")
    server.client().create_bucket("credentials")
    return server


@pytest.fixture(scope="module")
def location(bucket):
    return {name: value for name, value in bucket.environment().items() if not name.endswith(("KEY_ID", "ACCESS_KEY"))}


def test_a_real_store_takes_the_keys_of_each_place(headrace, bucket, location, small, tmp_path):
    bucket.client().put_folder("credentials", "model", small)
    keys = {"AccessKeyId": bucket.access_key, "SecretAccessKey": bucket.secret_key}
    file = tmp_path / "credentials"
    file.write_text(f"[mine]\naws_access_key_id = {bucket.access_key}\naws_secret_access_key = {bucket.secret_key}\n")
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = {process_of(tmp_path, {'Version': 1, **keys})}\n")
    with KeyServer(keys) as server:
        for place in (
            {"AWS_SHARED_CREDENTIALS_FILE": str(file), "AWS_PROFILE": "mine"},
            {"AWS_CONFIG_FILE": str(config)},
            {"AWS_CONTAINER_CREDENTIALS_FULL_URI": server.url},
        ):
            outcome = headrace("stream", "s3://credentials/model", "--digest", environment={**location, **place})
            assert (outcome.status, outcome.stderr) == (0, ""), outcome
            assert checkpoints.parse_digests(outcome.stdout) == sorted(checkpoints.expected_digests(small).items())
    assert len(server.requests) == 1


def test_an_unsigned_request_that_is_refused_says_where_keys_were_looked_for(headrace_once, bucket, location):
    outcome = headrace_once("stream", "s3://credentials/model", environment=location)
    assert outcome.error_kind() == "access_denied"
    assert "AWS_ACCESS_KEY_ID" in outcome.stderr and "AWS_PROFILE" in outcome.stderr


@pytest.mark.parametrize("prefix", ["a b", "a+b", "a%20b", "ünï/重み", "a&b=c", "tilde~'()*!"])
def test_odd_prefixes_are_read_from_a_real_store(headrace_once, bucket, small, prefix):
    bucket.client().put_folder("credentials", prefix, small)
    outcome = headrace_once("stream", f"s3://credentials/{prefix}", "--digest", environment=bucket.environment())
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    assert checkpoints.parse_digests(outcome.stdout) == sorted(checkpoints.expected_digests(small).items())


def test_a_real_listing_of_2500_objects_is_read_to_its_end(headrace_once, bucket, small):
    client = bucket.client()
    folder = small / "model.safetensors"
    for number in range(2500):
        client.put_object("credentials", f"many/{number:05}.txt", b"")
    client.put_object("credentials", "many/zzz.safetensors", folder.read_bytes())
    outcome = headrace_once("ls", "s3://credentials/many", environment=bucket.environment())
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    assert outcome.stdout.split()[1] == "zzz.safetensors"
