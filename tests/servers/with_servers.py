"""Runs a command with real servers around it, for tests that are programs of their own.

with_servers.py [--s3] [--http FOLDER] -- COMMAND [ARGUMENT...]

--s3 sets AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL_S3 and AWS_REGION, uploads all-MiniLM-L6-v2 to
s3://models/minilm and sets HEADRACE_TEST_MODEL to the folder that it came from. --http serves FOLDER (made if it is not
there) and sets HEADRACE_TEST_HTTP_URL and HEADRACE_TEST_HTTP_ROOT. Ends with the command's exit status.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from nginx import Nginx
from seaweedfs import SeaweedFS
from server_fixtures import minilm_folder


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs a command with real servers around it.")
    parser.add_argument("--s3", action="store_true", help="an S3 server that holds s3://models/minilm")
    parser.add_argument("--http", type=Path, metavar="FOLDER", help="a static server over FOLDER")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    environment = dict(os.environ)
    with contextlib.ExitStack() as running:
        if options.s3:
            server = running.enter_context(SeaweedFS())
            server.client().create_bucket("models")
            server.client().put_folder("models", "minilm", minilm_folder())
            environment |= server.environment()
            environment["HEADRACE_TEST_MODEL"] = str(minilm_folder())
        if options.http:
            options.http.mkdir(parents=True, exist_ok=True)
            site = running.enter_context(Nginx(options.http))
            environment["HEADRACE_TEST_HTTP_URL"] = site.url
            environment["HEADRACE_TEST_HTTP_ROOT"] = str(site.root)
        status = subprocess.run(options.command, env=environment, check=False).returncode
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
