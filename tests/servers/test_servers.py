"""The servers that other tests stand on, and the signer that fills them."""

import http.client
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from child_process import ServerError
from nginx import Nginx
from seaweedfs import SeaweedFS
from uploader import S3Client, S3Error, authorize, canonical_query


def get(url: str, path: str, headers: dict | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    try:
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def listening_addresses(pid: int) -> set[str]:
    """The local TCP addresses on which the process listens, as the kernel writes them: hexadecimal, without ports."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(descriptor)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                addresses.add(fields[1].split(":")[0])
    return addresses


def test_signs_as_the_example_in_the_documentation_of_s3():
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    headers = {
        "host": "examplebucket.s3.amazonaws.com",
        "range": "bytes=0-9",
        "x-amz-content-sha256": empty,
        "x-amz-date": "20130524T000000Z",
    }
    authorization = authorize(
        "GET",
        "/test.txt",
        "",
        headers,
        empty,
        "AKIAIOSFODNN7EXAMPLE",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "us-east-1",
    )
    assert authorization.endswith("Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41")


def test_orders_and_escapes_a_query():
    assert canonical_query({"prefix": "a b/c", "list-type": "2"}) == "list-type=2&prefix=a%20b%2Fc"


def test_gives_back_what_was_put_whole_and_by_range(seaweedfs, tmp_path):
    client = seaweedfs.client()
    client.create_bucket("round-trip")
    client.create_bucket("round-trip")
    body = os.urandom(5_000_000)
    file = tmp_path / "body"
    file.write_bytes(body)
    assert client.put_object("round-trip", "a folder/ä+b~.bin", file)
    assert client.get_object("round-trip", "a folder/ä+b~.bin") == body
    assert client.get_object("round-trip", "a folder/ä+b~.bin", (4_999_990, 4_999_999)) == body[-10:]
    client.delete_object("round-trip", "a folder/ä+b~.bin")
    with pytest.raises(S3Error) as missing:
        client.get_object("round-trip", "a folder/ä+b~.bin")
    assert missing.value.status == 404


def test_refuses_wrong_keys_and_strangers(seaweedfs):
    seaweedfs.client().create_bucket("private")
    seaweedfs.client().put_object("private", "a", b"secret")
    with pytest.raises(S3Error) as wrong:
        S3Client(seaweedfs.endpoint, seaweedfs.access_key, "wrong").get_object("private", "a")
    assert wrong.value.status == 403
    assert get(seaweedfs.endpoint, "/private/a")[0] == 403


def test_lets_anyone_read_a_public_bucket(seaweedfs):
    seaweedfs.client().put_object("public", "a", b"for all")
    assert get(seaweedfs.endpoint, "/public/a") == (200, b"for all")


def test_keeps_what_was_put_into_a_stand_in_for_google(fake_gcs):
    fake_gcs.create_bucket("round-trip")
    fake_gcs.create_bucket("round-trip")
    first = fake_gcs.put_object("round-trip", "a b/ä+%.bin", b"0123456789")
    second = fake_gcs.put_object("round-trip", "a b/ä+%.bin", b"9876543210")
    path = "/round-trip/a%20b/%C3%A4%2B%25.bin"
    assert get(fake_gcs.url, path, {"Range": "bytes=3-5"}) == (206, b"654")
    # What pins rely on: an overwritten generation is not there any more.
    assert get(fake_gcs.url, f"{path}?generation={second}")[0] == 200
    assert get(fake_gcs.url, f"{path}?generation={first}")[0] == 404


def test_listens_on_loopback_only(seaweedfs, nginx, fake_gcs):
    assert listening_addresses(seaweedfs.pid) == {"0100007F"}
    assert listening_addresses(fake_gcs.pid) == {"0100007F"}
    assert listening_addresses(nginx.pid) == {"0100007F"}


def test_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    server = SeaweedFS()
    server.start()
    pid, address = server.pid, server.endpoint.removeprefix("http://").split(":")
    server.stop()
    assert not list(tmp_path.iterdir())
    assert not Path(f"/proc/{pid}").exists()
    with socket.socket() as probe:
        assert probe.connect_ex((address[0], int(address[1]))) != 0


def test_says_why_it_did_not_start(tmp_path):
    with pytest.raises(ServerError, match="unknown directive"):
        Nginx(tmp_path, extra="nonsense on;").start()


def test_serves_a_folder_by_ranges(nginx, tmp_path):
    (nginx.root / "dir").mkdir()
    (nginx.root / "dir" / "file").write_bytes(b"0123456789")
    assert get(nginx.url, "/dir/file") == (200, b"0123456789")
    assert get(nginx.url, "/dir/file", {"Range": "bytes=3-5"}) == (206, b"345")
    assert get(nginx.url, "/missing")[0] == 404
    assert get(nginx.url, "/dir/")[0] == 403
    nginx.stop()
    assert " 206 " in (tmp_path / "access.log").read_text()


def test_runs_a_command_between_servers(tmp_path):
    script = (
        "import os, urllib.request\n"
        "root, url = os.environ['HEADRACE_TEST_HTTP_ROOT'], os.environ['HEADRACE_TEST_HTTP_URL']\n"
        "open(root + '/a', 'w').write('served')\n"
        "assert urllib.request.urlopen(url + '/a').read() == b'served'\n"
        "raise SystemExit(7)\n"
    )
    command = [Path(__file__).parent / "with_servers.py", "--http", tmp_path / "new", "--", sys.executable, "-c", script]
    assert subprocess.run([sys.executable, *command], check=False).returncode == 7
