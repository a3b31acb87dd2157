"""Small checkpoints, written byte by byte: also such as no serializer would write."""

import hashlib
import json
import random
import struct
from pathlib import Path

import safetensors

# Bits of one element.
DTYPES = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip

# Names that a line of output or a terminal cannot hold as they are, and some that it can.
AWKWARD_NAMES = [
    "", " ", "two  spaces", "a\nnewline", "a\rreturn", "a\ttab", "nul\0inside", "\x1b[31mred", "del\x7f", "c1\u009b2J",
    'a"quote', "back\\slash", "größe", "重み", "🙂", "'single'", "line\u2028separator",
]  # fmt: skip


def encode(tensors: list[tuple[str, str, list[int], bytes]], metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors file of (name, dtype, shape, data), in that order."""
    header = {"__metadata__": metadata} if metadata is not None else {}
    offset = 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, ensure_ascii=False).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, _, data in tensors)


def noise(size: int, seed: object) -> bytes:
    return random.Random(str(seed)).randbytes(size)


def tensor(name: str, dtype: str, shape: list[int]) -> tuple[str, str, list[int], bytes]:
    elements = 1
    for extent in shape:
        elements *= extent
    return name, dtype, shape, noise(elements * DTYPES[dtype] // 8, name)


def every_dtype() -> list[tuple[str, str, list[int], bytes]]:
    made = []
    for dtype in DTYPES:
        made.append(tensor(f"{dtype}.matrix", dtype, [3, 8]))
        made.append(tensor(f"{dtype}.empty", dtype, [0, 4]))
        if DTYPES[dtype] >= 8:
            made.append(tensor(f"{dtype}.scalar", dtype, []))
    return made


def write_single(folder: Path, tensors, metadata: dict[str, str] | None = None, name: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(encode(tensors, metadata))
    return folder


def write_sharded(folder: Path, shards: list[list]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_single(folder, tensors, {"format": "pt"}, name)
        weight_map |= {tensor[0]: name for tensor in tensors}
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def expected_digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each tensor, as the safetensors package reads the files."""
    return {
        name: hashlib.sha256(tensor["data"]).hexdigest()
        for path in sorted(folder.glob("*.safetensors"))
        for name, tensor in safetensors.deserialize(path.read_bytes())
    }


def needs_quotes(name: str) -> bool:
    return any(ord(letter) < 0x20 or 0x7F <= ord(letter) <= 0x9F or letter in '"\\' for letter in name)


def parse_digests(output: str) -> list[tuple[str, str]]:
    """(name, digest) of each line, in the order of the lines; checks that exactly the right names are quoted."""
    found = []
    assert output == "" or output.endswith("\n")
    for line in output.split("\n")[:-1]:
        digest, written = line[:64], line[64:]
        assert written.startswith("  "), line
        name = json.loads(written[2:]) if written.startswith('  "') else written[2:]
        assert needs_quotes(name) == written.startswith('  "'), line
        found.append((name, digest))
    return found
