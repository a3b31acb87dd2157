#!/usr/bin/env python3
"""Fetches files over HTTPS by obstore (Rust object_store), in the ranges that the ceiling asks for.

obstore_ranges.py [--connections N] [--chunk-size BYTES] https://HOST:PORT/FILE...

As many ranges at once as there are connections; each is dropped on arrival. The certificate is not
checked, as the ceiling does not. One line of JSON on stdout, as `ceiling` writes it. Runs in a
virtual environment of its own, which the driver makes.
"""

import argparse
import concurrent.futures
import json
import resource
import time
import urllib.parse
from importlib.metadata import version

import obstore
from obstore.store import HTTPStore


def fetch(store: HTTPStore, names: list[str], chunk: int, connections: int) -> dict:
    sizes = {name: obstore.head(store, name)["size"] for name in names}
    ranges = [
        (name, begin, min(begin + chunk, size))
        for name, size in sizes.items()
        for begin in range(0, size, chunk)
    ]

    def get(wanted: tuple[str, int, int]) -> int:
        name, begin, end = wanted
        return len(obstore.get_range(store, name, start=begin, end=end))

    with concurrent.futures.ThreadPoolExecutor(connections) as workers:
        start = time.monotonic()
        received = sum(workers.map(get, ranges))
        seconds = time.monotonic() - start
    return {"bytes": received, "seconds": seconds, "requests": len(ranges)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--chunk-size", type=int, default=16 << 20)
    parser.add_argument("urls", nargs="+")
    arguments = parser.parse_args()
    parts = [urllib.parse.urlsplit(url) for url in arguments.urls]
    if len({(part.scheme, part.netloc) for part in parts}) != 1:
        parser.error("all URLs must name one server")
    store = HTTPStore(
        f"{parts[0].scheme}://{parts[0].netloc}",
        client_options={"allow_invalid_certificates": True, "timeout": "170s"},
    )
    names = [part.path.lstrip("/") for part in parts]
    stats = fetch(store, names, arguments.chunk_size, arguments.connections)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    stats["gbps"] = stats["bytes"] / stats["seconds"] / 1e9
    stats["cpu_seconds"] = usage.ru_utime + usage.ru_stime
    stats["peak_rss_bytes"] = usage.ru_maxrss * 1024
    stats["obstore"] = version("obstore")
    print(json.dumps(stats))


if __name__ == "__main__":
    main()
