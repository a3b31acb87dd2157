"""One model over https, from a real server. Runs where `./run test` has loaded the servers' fixtures."""

import os
import shutil
import subprocess

import checkpoints
import pytest


@pytest.fixture
def site(request, large):
    try:
        server = request.getfixturevalue("tls_nginx")
    except pytest.FixtureLookupError:
        pytest.skip("without -p server_fixtures there is no server")
    shutil.copytree(large, server.root / "model")
    return server


@pytest.fixture(autouse=True)
def _no_authorities_of_ours(monkeypatch):
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


def expected(folder) -> list:
    return sorted(checkpoints.expected_digests(folder).items())


def test_a_model_is_streamed_over_https(headrace, site, large):
    outcome = headrace("stream", f"{site.url}/model", "--digest", "--ca-file", site.ca_file)
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    assert checkpoints.parse_digests(outcome.stdout) == expected(large)


def test_a_host_is_checked_by_name_too(headrace_once, site, large):
    location = site.url.replace("127.0.0.1", "localhost") + "/model"
    outcome = headrace_once("stream", location, "--digest", "--ca-file", site.ca_file)
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    assert checkpoints.parse_digests(outcome.stdout) == expected(large)


def test_the_authorities_come_from_variables(headrace_once, site, large, tmp_path):
    folder = tmp_path / "authorities"
    folder.mkdir()
    hashed = subprocess.run(
        ["openssl", "x509", "-hash", "-noout", "-in", site.ca_file], capture_output=True, text=True, check=True
    ).stdout.strip()
    shutil.copy(site.ca_file, folder / f"{hashed}.0")
    for variables in (
        {"SSL_CERT_FILE": str(site.ca_file)},
        {"SSL_CERT_DIR": f"{tmp_path / 'nowhere'}:{folder}"},
        {"HEADRACE_CA_FILE": str(site.ca_file), "SSL_CERT_FILE": str(tmp_path / "nothing.pem")},
    ):
        outcome = headrace_once("stream", f"{site.url}/model", "--digest", environment=variables)
        assert (outcome.status, outcome.stderr) == (0, ""), outcome
        assert checkpoints.parse_digests(outcome.stdout) == expected(large)


def test_an_unknown_authority_is_an_error_that_says_what_to_do(headrace, site):
    outcome = headrace("stream", f"{site.url}/model")
    assert outcome.error_kind() == "tls_error"
    assert "--ca-file" in outcome.stderr and "SSL_CERT_FILE" in outcome.stderr


def test_a_file_of_authorities_that_is_none_is_named(headrace_once, site, tmp_path):
    (tmp_path / "empty.pem").write_text("")
    for path, why in ((tmp_path / "absent.pem", "No such file"), (tmp_path / "empty.pem", "certificate")):
        outcome = headrace_once("ls", f"{site.url}/model", "--ca-file", path)
        assert outcome.error_kind() == "invalid_request"
        assert os.fspath(path) in outcome.stderr and why in outcome.stderr


def test_https_to_a_server_without_tls_says_so(headrace_once, site, request):
    plain = request.getfixturevalue("nginx")
    outcome = headrace_once("stream", plain.url.replace("http:", "https:") + "/model")
    assert outcome.error_kind() == "tls_error"
    assert "http://" in outcome.stderr
