"""Tensors as they arrive: right bytes, dtypes and shapes, without a copy."""

import gc

import checkpoints
import headrace
import numpy
import pytest
import safetensors.torch
import torch

TORCH_NAMES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "U16": torch.uint16, "F16": torch.float16,
    "BF16": torch.bfloat16, "I32": torch.int32, "U32": torch.uint32, "F32": torch.float32, "C64": torch.complex64,
    "F64": torch.float64, "I64": torch.int64, "U64": torch.uint64, "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.float8_e8m0fnu, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "F4": torch.float4_e2m1fn_x2,
}  # fmt: skip


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


def every_dtype_of_torch():
    return [made for made in checkpoints.every_dtype() if made[1] in TORCH_NAMES]


def test_every_dtype_of_torch_arrives_with_its_bytes(tmp_path):
    made = every_dtype_of_torch()
    folder = checkpoints.write_single(tmp_path, made)
    found = dict(headrace.ModelStreamer(folder).stream_sync())
    assert sorted(found) == sorted(name for name, _, _, _ in made)
    for name, dtype, shape, data in made:
        assert found[name].dtype == TORCH_NAMES[dtype], name
        expected = [*shape[:-1], shape[-1] // 2] if dtype == "F4" else shape
        assert list(found[name].shape) == expected, name
        assert raw(found[name]) == data, name


@pytest.mark.parametrize("dtype", ["F6_E2M3", "F6_E3M2"])
def test_a_dtype_that_torch_lacks_is_an_error_that_names_it_and_the_tensor(tmp_path, dtype):
    folder = checkpoints.write_single(tmp_path, [checkpoints.tensor("odd one", dtype, [4, 8])])
    with pytest.raises(headrace.UnsupportedError, match=f"'odd one'.*{dtype}"):
        dict(headrace.ModelStreamer(folder).stream_sync())
    (tensor,) = headrace.stream(folder)
    assert bytes(tensor) == checkpoints.noise(24, "odd one")
    with pytest.raises(headrace.UnsupportedError, match=f"'odd one'.*{dtype}"):
        tensor.__dlpack__()
    assert numpy.from_dlpack(tensor.raw).tobytes() == bytes(tensor)


def test_numpy_takes_tensors_without_a_copy(tmp_path):
    folder = checkpoints.write_single(tmp_path, [checkpoints.tensor("a", "F32", [3, 5])])
    (tensor,) = headrace.stream(folder)
    array = numpy.from_dlpack(tensor)
    assert (array.shape, array.dtype) == ((3, 5), numpy.float32)
    assert array.tobytes() == checkpoints.noise(60, "a")
    memoryview(tensor)[0] = memoryview(tensor)[0] ^ 0xFF
    assert array.tobytes() != checkpoints.noise(60, "a")
    assert numpy.from_dlpack(tensor).ctypes.data == array.ctypes.data


def test_what_was_made_of_a_tensor_outlives_it_and_its_stream(tmp_path):
    folder = checkpoints.write_single(tmp_path, [checkpoints.tensor(f"t{n}", "U8", [100_000]) for n in range(20)])
    arrays = {}
    for tensor in headrace.stream(folder):
        arrays[tensor.name] = numpy.from_dlpack(tensor)
    del tensor
    gc.collect()
    # Memory that was given back would be used again here.
    for _ in headrace.stream(folder):
        pass
    for name, array in arrays.items():
        assert array.tobytes() == checkpoints.noise(100_000, name)


def test_torch_takes_tensors_of_the_neutral_stream(small):
    expected = safetensors.torch.load_file(small / "model.safetensors")
    for tensor in headrace.stream(small):
        assert raw(torch.from_dlpack(tensor)) == raw(expected[tensor.name])
        assert tensor.__dlpack_device__() == (1, 0)


def test_dlpack_says_what_it_cannot_do(small):
    tensor = next(iter(headrace.stream(small)))
    with pytest.raises(BufferError, match="no copies"):
        tensor.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="devices"):
        tensor.__dlpack__(dl_device=(2, 0))
    assert "dltensor_versioned" in repr(tensor.__dlpack__(max_version=(1, 0)))
    assert '"dltensor"' in repr(tensor.__dlpack__())


def test_capsules_that_nobody_takes_free_their_tensor(tmp_path):
    folder = checkpoints.write_single(tmp_path, [checkpoints.tensor("a", "U8", [1 << 20])])
    for _ in range(3000):  # 3 GB, were they kept
        for tensor in headrace.stream(folder):
            tensor.__dlpack__()
            tensor.__dlpack__(max_version=(1, 1))
    resident = int(open("/proc/self/statm").read().split()[1]) * 4096
    assert resident < 2 << 30


def test_a_tensor_describes_itself(small):
    tensors = {tensor.name: tensor for tensor in headrace.stream(small)}
    tensor = tensors["layers.1.weight"]
    assert repr(tensor) == "Tensor(name='layers.1.weight', dtype='BF16', shape=(8, 8), nbytes=128)"
    assert (tensor.dtype, tensor.shape, tensor.nbytes) == ("BF16", (8, 8), 128)
    assert (tensor.raw.dtype, tensor.raw.shape) == ("U8", (128,))


def test_names_of_any_kind_come_through(tmp_path):
    folder = checkpoints.write_single(tmp_path, [checkpoints.tensor(name, "U8", [3]) for name in checkpoints.AWKWARD_NAMES])
    streamer = headrace.ModelStreamer(folder)
    assert sorted(dict(streamer.stream_sync())) == sorted(checkpoints.AWKWARD_NAMES)
    for name in checkpoints.AWKWARD_NAMES:
        assert raw(streamer.get_slice(name)) == checkpoints.noise(3, name)
