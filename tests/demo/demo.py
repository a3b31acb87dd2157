"""`./run demo`: a real model from a real S3 server on this machine, each tensor checked.

Starts SeaweedFS on loopback with keys of its own, uploads all-MiniLM-L6-v2, streams it with the headrace program and
compares every tensor's SHA-256 with what the `safetensors` package reads from the file. Then Python loads the model from
there with `load_hf_model` and says how similar two sentences are, as the model that transformers reads from the folder
does. Arguments after `--` go to `headrace stream`.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import safetensors

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "servers"))

from child_process import ServerError  # noqa: E402
from seaweedfs import SeaweedFS  # noqa: E402
from server_fixtures import minilm_folder  # noqa: E402
from uploader import S3Error  # noqa: E402

URI = "s3://models/minilm"


class DemoFailed(Exception):
    """What went wrong, in a line for the user."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run demo", description="Streams a real model from a real S3 server.")
    parser.add_argument("--cli", type=Path, default=Path("build/cli/headrace"), help="the headrace program")
    parser.add_argument("arguments", nargs="*", help="further arguments of `headrace stream`, after --")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        demo(options.cli.absolute(), options.arguments)
    except (DemoFailed, ServerError, S3Error, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def demo(cli: Path, arguments: list[str]) -> None:
    if not os.access(cli, os.X_OK):
        raise DemoFailed(f"{cli} is not there: ./run build makes it")
    model = minilm_folder()
    say("starting an S3 server (SeaweedFS) on loopback")
    with SeaweedFS() as server:
        say(f"  {server.endpoint}, pid {server.pid}")
        client = server.client()
        began = time.monotonic()
        client.create_bucket("models")
        size = client.put_folder("models", "minilm", model)
        say(f"uploaded all-MiniLM-L6-v2 to {URI}: {size / 1e6:.1f} MB in {time.monotonic() - began:.1f} s")
        say(f"headrace stream {URI} --digest")
        digests, stats = stream(cli, arguments, server)
        say(f'load_hf_model("{URI}"), and the similarity of two sentences')
        streamed, reference = similarities(cli, model, server)
    say("stopped the server")
    compare(digests, expected_digests(model))
    say("every tensor equals what the safetensors package reads from the file")
    print_table(stats)
    if streamed != reference:
        raise DemoFailed(f"the streamed model says {streamed!r}, the one from the folder {reference!r}")
    print(f"similarity   {streamed:.6f}, as from the folder")


SENTENCES = ["A headrace leads water to a turbine.", "This channel brings weights to an accelerator."]
SIMILARITY = """
import asyncio, json, sys
import torch
from transformers import AutoModel, AutoTokenizer
from headrace import load_hf_model


def similarity(model, folder, sentences):
    batch = AutoTokenizer.from_pretrained(folder)(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    means = (hidden * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.cosine_similarity(means[0], means[1], dim=0).item()


uri, folder, local_dir, *sentences = sys.argv[1:]
model, local = asyncio.run(load_hf_model(uri, device="cpu", model_class=AutoModel, local_dir=local_dir))
reference = AutoModel.from_pretrained(folder).eval()
print(json.dumps([similarity(model, local, sentences), similarity(reference, folder, sentences)]))
"""


def similarities(cli: Path, model: Path, server: SeaweedFS) -> list[float]:
    """Of the two sentences: by the model that is streamed from the server, and by the one that is read from the folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    package = {"PYTHONPATH": str(cli.parents[1] / "python"), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        done = subprocess.run(
            [sys.executable, "-c", SIMILARITY, URI, str(model), folder, *SENTENCES],
            stdout=subprocess.PIPE,
            text=True,
            env={**kept, **server.environment(), **package},
            check=False,
        )
    if done.returncode != 0:
        raise DemoFailed(f"loading the model in Python ended with status {done.returncode}")
    return json.loads(done.stdout)


def stream(cli: Path, arguments: list[str], server: SeaweedFS) -> tuple[dict[str, str], dict]:
    """Runs the program; its progress bar and messages go to our standard error. Returns digests by name, and figures."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        stats = Path(folder) / "stats.json"
        command = [cli, "stream", URI, "--digest", "--stats", stats, *arguments]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**kept, **server.environment()})
        try:
            output, _ = child.communicate()
        except BaseException as reason:
            # Ctrl-C has reached the program too.
            if not isinstance(reason, KeyboardInterrupt):
                child.terminate()
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            raise
        if child.returncode != 0:
            raise DemoFailed(f"headrace stream ended with status {child.returncode}")
        try:
            figures = json.loads(stats.read_text())
        except (OSError, ValueError) as error:
            raise DemoFailed(f"headrace stream wrote no usable statistics: {error}") from error
    return parse_digests(output), figures


def parse_digests(output: str) -> dict[str, str]:
    digests = {}
    for line in output.splitlines():
        digest, separator, name = line.partition("  ")
        if not separator or len(digest) != 64:
            raise DemoFailed(f"not a digest line: {line!r}")
        # Names with quotes, backslashes or control characters come JSON-quoted.
        digests[json.loads(name) if name.startswith('"') else name] = digest
    return digests


def expected_digests(model: Path) -> dict[str, str]:
    """The SHA-256 of each tensor's bytes, as the safetensors package reads them."""
    digests = {}
    for path in sorted(model.glob("*.safetensors")):
        for name, tensor in safetensors.deserialize(path.read_bytes()):
            digests.setdefault(name, hashlib.sha256(tensor["data"]).hexdigest())
    return digests


def compare(actual: dict[str, str], expected: dict[str, str]) -> None:
    missing = sorted(expected.keys() - actual.keys())
    unexpected = sorted(actual.keys() - expected.keys())
    different = sorted(name for name in expected.keys() & actual.keys() if expected[name] != actual[name])
    complaints = [
        f"{what}: {len(names)}, the first is {names[0]!r}"
        for what, names in (("missing tensors", missing), ("tensors that the file lacks", unexpected), ("tensors with other bytes", different))
        if names
    ]
    if complaints or not expected:
        raise DemoFailed("; ".join(complaints) or "the model has no tensors")


def print_table(stats: dict) -> None:
    rows = [
        ("tensors", f"{stats['tensors']:,}"),
        ("bytes", f"{stats['bytes']:,}"),
        ("GB/s", f"{stats['gbps']:.2f}"),
        ("requests", f"{stats['requests']:,}"),
        ("peak memory", f"{stats['peak_rss_bytes'] / 2**20:.0f} MiB"),
    ]
    width = max(len(value) for _, value in rows)
    print()
    for name, value in rows:
        print(f"  {name:<12} {value:>{width}}")
    print(flush=True)


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
