#!/usr/bin/env python3
"""Generates the checkpoints that `./run bench` streams: always the same, within seconds.

    make_checkpoint.py {qwen2-1.5b,tiny-tensors,many-shards} FOLDER

A folder that already holds the checkpoint, complete and of the same parameters, is left as it is.
"""

import argparse
import dataclasses
import json
import os
import random
import shutil
import struct
import sys

GENERATOR_VERSION = 1
MARKER = ".headrace-bench.json"
INDEX = "model.safetensors.index.json"

# Divides no chunk size: a chunk in the place of another changes the tensor's digest. Even: it holds
# whole bf16 values.
BLOCK_SIZE = (1 << 20) + 8_218


@dataclasses.dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        elements = 1
        for extent in self.shape:
            elements *= extent
        return 2 * elements  # every tensor here is bf16


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    shards: list[list[Tensor]]
    config: dict | None = None

    def file_names(self) -> list[str]:
        count = len(self.shards)
        if count == 1:
            return ["model.safetensors"]
        return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def qwen2_1_5b() -> Checkpoint:
    """The shapes of Qwen2-1.5B, its head tied to its embedding: 3.09 GB, one tensor of 0.47 GB."""
    layers, hidden, intermediate, vocabulary = 28, 1536, 8960, 151_936
    heads, key_value_heads, head_size = 12, 2, 128
    queries, keys = heads * head_size, key_value_heads * head_size
    tensors = [Tensor("model.embed_tokens.weight", (vocabulary, hidden))]
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        tensors += [
            Tensor(prefix + "self_attn.q_proj.weight", (queries, hidden)),
            Tensor(prefix + "self_attn.q_proj.bias", (queries,)),
            Tensor(prefix + "self_attn.k_proj.weight", (keys, hidden)),
            Tensor(prefix + "self_attn.k_proj.bias", (keys,)),
            Tensor(prefix + "self_attn.v_proj.weight", (keys, hidden)),
            Tensor(prefix + "self_attn.v_proj.bias", (keys,)),
            Tensor(prefix + "self_attn.o_proj.weight", (hidden, queries)),
            Tensor(prefix + "mlp.gate_proj.weight", (intermediate, hidden)),
            Tensor(prefix + "mlp.up_proj.weight", (intermediate, hidden)),
            Tensor(prefix + "mlp.down_proj.weight", (hidden, intermediate)),
            Tensor(prefix + "input_layernorm.weight", (hidden,)),
            Tensor(prefix + "post_attention_layernorm.weight", (hidden,)),
        ]
    tensors.append(Tensor("model.norm.weight", (hidden,)))
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "model_type": "qwen2",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": key_value_heads,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": vocabulary,
    }
    return Checkpoint(split(tensors, 4), config)


def tiny_tensors() -> Checkpoint:
    """20,000 tensors of 1 KiB in one file: what a tensor costs, not what a byte costs."""
    return Checkpoint([[Tensor(f"layers.{number}.scale", (16, 32)) for number in range(20_000)]])


def many_shards() -> Checkpoint:
    """200 shards of 1 MB, four tensors each: what a file costs."""
    return Checkpoint(
        [
            [Tensor(f"layers.{4 * shard + part}.weight", (125, 1000)) for part in range(4)]
            for shard in range(200)
        ]
    )


CHECKPOINTS = {"qwen2-1.5b": qwen2_1_5b, "tiny-tensors": tiny_tensors, "many-shards": many_shards}


def split(tensors: list[Tensor], count: int) -> list[list[Tensor]]:
    """Splits into `count` shards of about one size, keeping the order."""
    total = sum(tensor.size for tensor in tensors)
    shards: list[list[Tensor]] = [[] for _ in range(count)]
    seen = 0
    for tensor in tensors:
        # The shard that the middle of the tensor falls into.
        shards[(2 * seen + tensor.size) * count // (2 * total)].append(tensor)
        seen += tensor.size
    return shards


def make_block(seed: int) -> bytes:
    """Pseudo-random finite bf16 values, between about 2^-7 and 2 in magnitude."""
    block = bytearray(random.Random(seed).randbytes(BLOCK_SIZE))
    # The high byte is the sign and seven bits of the exponent: keep the sign and the lowest bits.
    block[1::2] = block[1::2].translate(
        bytes((byte & 0x80) | 0x3C | (byte & 0x03) for byte in range(256))
    )
    return bytes(block)


def make_header(tensors: list[Tensor]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.size],
        }
        offset += tensor.size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_shard(path: str, tensors: list[Tensor], blocks: memoryview, first_number: int) -> None:
    """`blocks` is the block twice over: a whole one can be taken from any place in the first."""
    with open(path, "wb", buffering=0) as raw:
        # Small tensors are gathered into one write, large ones are written from the block itself.
        pending = bytearray(make_header(tensors))
        for number, tensor in enumerate(tensors, first_number):
            position = (
                number * 7_894 % BLOCK_SIZE
            )  # even: whole values; a different place for each tensor
            left = tensor.size
            if left < 1 << 16:
                pending += blocks[position : position + left]
                left = 0
            if pending and (left or len(pending) > 1 << 20):
                write_all(raw, pending)
                pending.clear()
            while left:
                piece = min(left, BLOCK_SIZE)
                write_all(raw, blocks[position : position + piece])
                left -= piece
        write_all(raw, pending)


def write_all(file, data) -> None:
    written = 0
    with memoryview(data) as view:
        while written < len(view):
            written += file.write(view[written:])


def write_json(path: str, value: object) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.write("\n")


def describe(name: str, checkpoint: Checkpoint) -> dict:
    """What the marker file holds: what decides the bytes, and what the files must look like."""
    files = {
        file: len(make_header(sorted_shard(shard))) + sum(tensor.size for tensor in shard)
        for file, shard in zip(checkpoint.file_names(), checkpoint.shards, strict=True)
    }
    sizes = [tensor.size for shard in checkpoint.shards for tensor in shard]
    return {
        "generator_version": GENERATOR_VERSION,
        "checkpoint": name,
        "block_size": BLOCK_SIZE,
        "tensors": len(sizes),
        "tensor_bytes": sum(sizes),
        "largest_tensor_bytes": max(sizes),
        "files": files,
    }


def sorted_shard(shard: list[Tensor]) -> list[Tensor]:
    """The order in a file: of one dtype, the reference implementation sorts by name."""
    return sorted(shard, key=lambda tensor: tensor.name)


def is_complete(folder: str, description: dict) -> bool:
    try:
        with open(os.path.join(folder, MARKER), encoding="utf-8") as file:
            if json.load(file) != description:
                return False
        return all(
            os.stat(os.path.join(folder, name)).st_size == size
            for name, size in description["files"].items()
        )
    except (OSError, ValueError):
        return False


def make(name: str, folder: str) -> dict:
    """Makes the checkpoint unless the folder holds it already. Returns its description."""
    checkpoint = CHECKPOINTS[name]()
    description = describe(name, checkpoint)
    if is_complete(folder, description):
        return description
    if (
        os.path.isdir(folder)
        and os.listdir(folder)
        and not os.path.exists(os.path.join(folder, MARKER))
    ):
        raise FileExistsError(
            f"{folder} holds something that is not a generated checkpoint; remove it first"
        )
    os.makedirs(folder, exist_ok=True)
    needed = sum(description["files"].values())
    for entry in os.listdir(folder):
        # The marker stays: it says whose folder this is, and from here on that it is incomplete.
        if entry != MARKER:
            os.unlink(os.path.join(folder, entry))
    marker = os.path.join(folder, MARKER)
    write_json(marker, {"checkpoint": name, "complete": False})
    free = shutil.disk_usage(folder).free
    if free < needed + (64 << 20):
        raise OSError(f"{folder} needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")

    block = make_block(seed=len(name))
    blocks = memoryview(block + block)
    weight_map = {}
    number = 0
    for file, shard in zip(checkpoint.file_names(), checkpoint.shards, strict=True):
        tensors = sorted_shard(shard)
        write_shard(os.path.join(folder, file), tensors, blocks, number)
        number += len(tensors)
        weight_map.update((tensor.name, file) for tensor in tensors)
    if len(checkpoint.shards) > 1:
        metadata = {"total_size": description["tensor_bytes"]}
        write_json(os.path.join(folder, INDEX), {"metadata": metadata, "weight_map": weight_map})
    if checkpoint.config is not None:
        write_json(os.path.join(folder, "config.json"), checkpoint.config)
    write_json(marker + ".new", description)
    os.replace(marker + ".new", marker)
    return description


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", choices=CHECKPOINTS)
    parser.add_argument("folder")
    arguments = parser.parse_args()
    try:
        print(json.dumps(make(arguments.checkpoint, arguments.folder)))
    except OSError as error:
        print(f"make_checkpoint: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
