#!/usr/bin/env python3
"""How long answers of the example service take, idle and while its model is swapped.

./run build && .venv/bin/python bench/hot_swap.py
.venv/bin/python bench/hot_swap.py --swaps 20 --size 256 --clients 2

Two models of `--size` MiB each lie on tmpfs. Clients with a connection each ask for tensors as fast as they are answered: first
for as long as a round of swaps has taken, with nothing else going on, then while the models are swapped. Prints the quantiles of
both, side by side, in microseconds, and fails if any answer does.

Asking and serving share the machine with loading: on few cores the difference is what loading takes from everybody, not a
wait inside the service.
"""

import argparse
import concurrent.futures
import pathlib
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/cli"), str(ROOT / "tests/examples")]

import checkpoints  # noqa: E402
from service import Service  # noqa: E402

TENSORS = 64
QUANTILES = (("median", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("99.9 %", 0.999), ("longest", 1.0))


def write_models(folder, size):
    """Two of them, `size` MiB each, in `TENSORS` tensors."""
    made = []
    for number in range(2):
        rows = size * 1024 * 1024 // TENSORS // 4096
        block = checkpoints.noise(1 << 20, number)
        data = (block * (rows * 4096 // len(block) + 1))[: rows * 4096]
        tensors = [(f"layers.{layer}.weight", "F32", [rows, 1024], data) for layer in range(TENSORS)]
        made.append(checkpoints.write_single(folder / f"model{number}", tensors))
    return made


def ask_until(over, service, name):
    """The seconds that each answer took."""
    taken = []
    with service.client() as client:
        while not over.is_set():
            began = time.perf_counter()
            status, told = client.ask("GET", f"/weights/{name}")
            taken.append(time.perf_counter() - began)
            if status != 200:
                raise SystemExit(f"an answer failed: {status} {told}")
    return taken


def while_asking(service, clients, work):
    """Does `work` while clients ask; gives what their answers took, sorted, and what the work took."""
    over = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(ask_until, over, service, f"layers.{number % TENSORS}.weight") for number in range(clients)]
        began = time.perf_counter()
        try:
            work()
        finally:
            over.set()
        seconds = time.perf_counter() - began
        return sorted(one for job in asking for one in job.result()), seconds


def quantile(ordered, part):
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", metavar="FOLDER")
    parser.add_argument("--swaps", type=int, default=20, metavar="N")
    parser.add_argument("--size", type=int, default=256, metavar="MIB", help="of each model (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=1, metavar="N")
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("/dev/shm"), metavar="FOLDER")
    arguments = parser.parse_args()
    program = arguments.build / "examples/http_service"
    if not program.exists():
        raise SystemExit(f"{program} is not there: ./run build makes it")

    with tempfile.TemporaryDirectory(prefix="headrace-hot-swap-", dir=arguments.dir) as scratch:
        models = write_models(pathlib.Path(scratch), arguments.size)

        with Service(program, models[1]) as service:

            def swap():
                for number in range(arguments.swaps):
                    status, told = service.load(models[number % 2])
                    if status != 200:
                        raise SystemExit(f"a load failed: {status} {told}")

            swap()  # warm
            swapping, seconds = while_asking(service, arguments.clients, swap)
            idle, _ = while_asking(service, arguments.clients, lambda: time.sleep(seconds))

    print(f"{arguments.swaps} swaps of {arguments.size} MiB in {seconds:.1f} s, {arguments.clients} clients; microseconds an answer")
    print(f"\n| | idle | swapping |\n|---|---:|---:|\n| answers | {len(idle)} | {len(swapping)} |")
    for name, part in QUANTILES:
        print(f"| {name} | {quantile(idle, part) * 1e6:.0f} | {quantile(swapping, part) * 1e6:.0f} |")


if __name__ == "__main__":
    main()
