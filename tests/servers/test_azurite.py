"""Azure's emulator, and the signer that fills it."""

import http.client
import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from azure_uploader import AzureClient, AzureError, string_to_sign
from azurite import Azurite, why_not


def get(server: Azurite, path: str) -> int:
    address = urlsplit(server.endpoint)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=10)
    try:
        connection.request("GET", address.path + path)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def test_signs_as_the_example_in_the_documentation_of_azure():
    headers = {"x-ms-date": "Fri, 26 Jun 2015 23:39:12 GMT", "x-ms-version": "2015-02-21"}
    query = {"restype": "container", "comp": "metadata", "timeout": "20"}
    assert string_to_sign("GET", "/mycontainer", query, headers, "myaccount") == (
        "GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2015-02-21\n"
        "/myaccount/mycontainer\ncomp:metadata\nrestype:container\ntimeout:20"
    )


def test_gives_back_what_was_put(azurite, tmp_path):
    client = azurite.client()
    client.create_container("round-trip")
    client.create_container("round-trip")
    body = os.urandom(5_000_000)
    file = tmp_path / "body"
    file.write_bytes(body)
    assert client.put_blob("round-trip", "a folder/ä+b~.bin", file).startswith('"')
    assert client.get_blob("round-trip", "a folder/ä+b~.bin") == body
    with pytest.raises(AzureError) as missing:
        client.get_blob("round-trip", "missing")
    assert missing.value.status == 404


def test_refuses_wrong_keys_and_strangers(azurite):
    azurite.client().create_container("private")
    azurite.client().put_blob("private", "a", b"secret")
    with pytest.raises(AzureError) as wrong:
        AzureClient(azurite.endpoint, azurite.account, "d3Jvbmc=").get_blob("private", "a")
    assert wrong.value.status == 403
    assert get(azurite, "/private/a") == 403
    azurite.client().put_blob("public", "a", b"for all")
    assert get(azurite, "/public/a") == 200


def test_signatures_give_rights_for_a_time(azurite):
    client = azurite.client()
    client.create_container("shared")
    client.put_blob("shared", "a", b"x")
    assert get(azurite, f"/shared/a?{client.sas_token()}") == 200
    assert get(azurite, f"/shared/a?{client.sas_token(permissions='l')}") == 403
    assert get(azurite, f"/shared/a?{client.sas_token(lifetime=-3600)}") == 403


@pytest.mark.skipif(bool(why_not()), reason="Azurite is not installed")
def test_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Azurite() as server:
        pid = server.pid
    assert not list(tmp_path.iterdir())
    assert not Path(f"/proc/{pid}").exists()
