"""Through a real proxy. Runs where `./run test` has loaded the servers' fixtures."""

import shutil

import checkpoints
import pytest

from headrace_program import Outcome


@pytest.fixture
def proxy(request):
    try:
        return request.getfixturevalue("tinyproxy")
    except pytest.FixtureLookupError:
        pytest.skip("without -p server_fixtures there is no proxy")


@pytest.fixture
def site(request, proxy, large):
    """A web server with the model `large` in `model/`."""
    server = request.getfixturevalue("nginx")
    shutil.copytree(large, server.root / "model")
    return server


def without_password(outcome: Outcome) -> Outcome:
    for secret in ("hunter2", "dXNlcjpodW50ZXIy", "wrong-word"):
        assert secret not in outcome.stdout + outcome.stderr
    return outcome


def test_a_model_is_streamed_through_a_proxy(headrace, proxy, site, large):
    before = proxy.log().count(f"GET {site.url}/model/model.safetensors")
    outcome = headrace("stream", f"{site.url}/model", "--digest", environment={"http_proxy": proxy.url})
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    assert checkpoints.parse_digests(outcome.stdout) == sorted(checkpoints.expected_digests(large).items())
    assert proxy.log().count(f"GET {site.url}/model/model.safetensors") > before


def test_a_bucket_is_streamed_through_a_proxy(headrace, proxy, request, small):
    store = request.getfixturevalue("seaweedfs")
    store.client().put_folder("public", "cli-proxy", small)
    environment = {**store.environment(), "NO_PROXY": "", "no_proxy": "", "ALL_PROXY": proxy.url}
    outcome = headrace("stream", "s3://public/cli-proxy", "--digest", environment=environment)
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    assert checkpoints.parse_digests(outcome.stdout) == sorted(checkpoints.expected_digests(small).items())
    assert f"{store.endpoint}/public/cli-proxy" in proxy.log()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_wants_another_password_is_named(headrace, proxy, site, scheme):
    uri = f"{scheme}://{site.url.removeprefix('http://')}/model"
    variable = f"{scheme}_proxy"
    address = f"http://127.0.0.1:{proxy.port}"
    outcome = headrace("stream", uri, environment={variable: address})
    assert outcome.error_kind() == "access_denied"
    assert f"write {variable} as http://user:password@127.0.0.1:{proxy.port}" in outcome.stderr
    outcome = headrace("stream", uri, environment={variable: address.replace("://", "://user:wrong-word@")})
    assert without_password(outcome).error_kind() == "access_denied"
    if scheme == "https":  # tinyproxy says 401 here: for http, that could be the origin's
        assert f"the proxy {address} ({variable}) refuses the user and password" in outcome.stderr


@pytest.fixture
def secure_site(request, proxy, large):
    """A web server with TLS and the model `large` in `model/`."""
    try:
        server = request.getfixturevalue("tls_nginx")
    except pytest.FixtureLookupError:
        pytest.skip("there is no server with TLS")
    shutil.copytree(large, server.root / "model")
    return server


def test_a_model_is_streamed_over_https_through_a_tunnel(headrace, proxy, secure_site, large):
    arguments = ["stream", f"{secure_site.url}/model", "--digest", "--ca-file", secure_site.ca_file]
    outcome = headrace(*arguments, environment={"https_proxy": proxy.url})
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    assert checkpoints.parse_digests(outcome.stdout) == sorted(checkpoints.expected_digests(large).items())
    assert f"CONNECT {secure_site.url.removeprefix('https://')}" in proxy.log()


def test_a_proxy_may_be_behind_tls_itself(headrace, secure_site, large, tmp_path):
    from nginx import make_certificate
    from tls_proxy import TlsProxy

    certificate, key = make_certificate(tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.read_bytes() + secure_site.ca_file.read_bytes())
    stream = ["stream", f"{secure_site.url}/model", "--digest", "--ca-file"]
    with TlsProxy(certificate, key, user="user", password="hunter2") as outer:
        outcome = headrace(*stream, both, environment={"https_proxy": outer.url})
        assert (outcome.status, outcome.stderr) == (0, ""), outcome
        assert checkpoints.parse_digests(outcome.stdout) == sorted(checkpoints.expected_digests(large).items())
        assert outer.requests and all(head.startswith("CONNECT ") for head in outer.requests)

        wrong = {"https_proxy": outer.url.replace("hunter2", "wrong-word")}
        assert without_password(headrace(*stream, both, environment=wrong)).error_kind() == "access_denied"

        # Authorities of the origin alone: the proxy is not trusted, and is what is named.
        outcome = headrace(*stream, secure_site.ca_file, environment={"https_proxy": outer.url})
        assert without_password(outcome).error_kind() == "tls_error"
        assert "the proxy https://127.0.0.1:" in outcome.stderr


def test_a_port_that_a_proxy_does_not_connect_to_is_refused_at_once(headrace, site, request):
    strict_tinyproxy = request.getfixturevalue("strict_tinyproxy")
    uri = site.url.replace("http://", "https://") + "/model"
    outcome = headrace("stream", uri, environment={"HTTPS_PROXY": strict_tinyproxy.url})
    assert without_password(outcome).error_kind() == "connect_error"
    assert "refuses a connection" in outcome.stderr and "status 403" in outcome.stderr
    assert "attempt" not in outcome.stderr


def test_no_proxy_leads_around_it(headrace, proxy, site):
    broken = {"http_proxy": "http://user:hunter2@127.0.0.1:1"}
    around = {**broken, "no_proxy": "example.com, 127.0.0.0/8"}
    assert headrace("stream", f"{site.url}/model", "-q", environment=around).status == 0
    outcome = headrace("stream", f"{site.url}/model", "--retries", "0", environment=broken)
    assert without_password(outcome).error_kind() == "connect_error"
    assert "the proxy http://127.0.0.1:1 (http_proxy)" in outcome.stderr


@pytest.mark.parametrize(
    "value, kind", [("socks5h://user:hunter2@127.0.0.1:1080", "unsupported"), ("http://user:hunter2@:x", "invalid_request")]
)
def test_a_variable_that_names_no_http_proxy_is_named(headrace_once, proxy, site, value, kind):
    outcome = headrace_once("stream", f"{site.url}/model", environment={"ALL_PROXY": value})
    assert without_password(outcome).error_kind() == kind
    assert "ALL_PROXY" in outcome.stderr
