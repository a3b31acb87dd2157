"""What is known of a checkpoint without its data, parts of its tensors, and the files beside them."""

import asyncio
import pickle

import checkpoints
import headrace
import pytest
import safetensors.torch
import torch
from model_server import ModelServer


def test_keys_and_info_read_headers_alone(large):
    with ModelServer(large) as server:
        streamer = headrace.ModelStreamer(server.url)
        assert streamer.statistics == (0, 0, 0)
        assert sorted(streamer.keys()) == [f"layers.{shard}.{n}.weight" for shard in range(2) for n in range(3)]
        assert streamer.info("layers.1.0.weight") == headrace.TensorInfo(
            "layers.1.0.weight", "F32", (1000, 1000), 4_000_000, "model-00002-of-00002.safetensors"
        )
        assert streamer.statistics.bytes < 200_000
        assert [file.metadata for file in streamer.files()] == [{"format": "pt"}] * 2
    with pytest.raises(KeyError, match="no tensor is called 'nobody'"):
        streamer.info("nobody")


def test_after_open_the_catalogue_is_there_without_waiting(large):
    async def look():
        streamer = await headrace.ModelStreamer(large).open()
        return streamer.keys()

    assert asyncio.run(look()) == headrace.ModelStreamer(large).keys()


@pytest.fixture(scope="module")
def matrix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("matrix")
    tensor = torch.arange(24 * 10 * 6, dtype=torch.int32).reshape(24, 10, 6)
    safetensors.torch.save_file({"t": tensor, "scalar": torch.tensor(5.0)}, folder / "model.safetensors")
    return folder, tensor


@pytest.mark.parametrize(
    "index",
    [
        ..., 0, -1, slice(3, 9), slice(None, None, 5), slice(-4, None), slice(9, 3), slice(2, 2), (5, 3), (5, 3, 1),
        (slice(1, 3), slice(2, 8, 3)), (..., slice(1, 4)), (..., 2), (3, ..., 2), (slice(None), 4), (slice(0, 100), -1), (),
    ],
    ids=str,
)  # fmt: skip
def test_a_slice_is_what_indexing_the_tensor_gives(matrix, index):
    folder, tensor = matrix
    streamer = headrace.ModelStreamer(folder)
    expected = tensor[index]
    for found in (streamer.get_slice("t", index), asyncio.run(streamer.get_slice_async("t", index))):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert torch.equal(found, expected)


def test_slices_say_what_they_cannot_be(matrix):
    streamer = headrace.ModelStreamer(matrix[0])
    assert streamer.get_slice("scalar").item() == 5.0
    with pytest.raises(IndexError, match="out of bounds"):
        streamer.get_slice("t", 24)
    with pytest.raises(IndexError, match="3 dimensions"):
        streamer.get_slice("t", (0, 0, 0, 0))
    with pytest.raises(ValueError, match="positive"):
        streamer.get_slice("t", slice(None, None, -1))
    with pytest.raises(TypeError, match="float"):
        streamer.get_slice("t", 1.0)
    with pytest.raises(KeyError, match="nobody"):
        streamer.get_slice("nobody", 0)


def test_a_slice_fetches_its_block_alone(large):
    with ModelServer(large) as server:
        streamer = headrace.ModelStreamer(server.url)
        found = streamer.get_slice("layers.0.2.weight", slice(500, 510))
        assert found.shape == (10, 1000)
        assert streamer.statistics.bytes < 500_000


def test_packed_tensors_are_cut_as_torch_packs_them(tmp_path):
    folder = checkpoints.write_single(tmp_path, [checkpoints.tensor("a", "F4", [6, 8])])
    streamer = headrace.ModelStreamer(folder)
    data = torch.frombuffer(bytearray(checkpoints.noise(24, "a")), dtype=torch.uint8).reshape(6, 4)
    assert torch.equal(streamer.get_slice("a", (slice(1, 5), slice(1, 3))).view(torch.uint8), data[1:5, 1:3])


def test_load_file_is_that_of_safetensors(matrix, large, tmp_path):
    folder, tensor = matrix
    expected = safetensors.torch.load_file(folder / "model.safetensors")
    found = headrace.load_file(folder / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    files = sorted(large.glob("*.safetensors"))
    assert headrace.load_files(files).keys() == headrace.load_file(large).keys()
    with pytest.raises(ValueError, match="is in .* and in a file before it"):
        headrace.load_files([folder, folder])


@pytest.fixture
def model_folder(tmp_path):
    folder = checkpoints.write_single(tmp_path / "model", [checkpoints.tensor("a", "U8", [8])])
    for name in ("config.json", "tokenizer.json", "sub/deeper/config.json", "1_Pooling/config.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"this is {name}")
    for name in ("pytorch_model.bin", "model.gguf", "sub/model.onnx", "sub/other.safetensors", "weights.pth"):
        (folder / name).write_text("weights")
    return folder


def read(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_metadata_is_everything_but_weights_at_any_depth(model_folder, tmp_path):
    local = asyncio.run(headrace.ModelStreamer(model_folder).download_metadata(tmp_path / "new" / "local"))
    assert local == tmp_path / "new" / "local"
    names = ("config.json", "tokenizer.json", "sub/deeper/config.json", "1_Pooling/config.json")
    assert read(local) == {name: f"this is {name}" for name in names}


def test_metadata_of_a_web_server_is_what_models_usually_have(model_folder, tmp_path):
    with ModelServer(model_folder) as server:
        local = asyncio.run(headrace.ModelStreamer(server.url).download_metadata(tmp_path / "local"))
    assert read(local) == {name: f"this is {name}" for name in ("config.json", "tokenizer.json")}


def test_metadata_of_an_s3_store_is_listed_at_any_depth(model_folder, tmp_path, seaweedfs):
    client = seaweedfs.client()
    client.create_bucket("python-metadata")
    client.put_folder("python-metadata", "models/tiny", model_folder)
    options = {"endpoint": seaweedfs.endpoint, "access_key_id": seaweedfs.access_key, "secret_access_key": seaweedfs.secret_key}
    streamer = headrace.ModelStreamer("s3://python-metadata/models/tiny/", storage_options=options)
    assert streamer.path == "s3://python-metadata/models/tiny"
    local = asyncio.run(streamer.download_metadata(tmp_path / "local"))
    assert sorted(read(local)) == ["1_Pooling/config.json", "config.json", "sub/deeper/config.json", "tokenizer.json"]
    assert streamer.read_file("config.json") == b"this is config.json"
    wrong = headrace.ModelStreamer("s3://python-metadata/models/tiny", storage_options={**options, "secret_access_key": "hunter2"})
    with pytest.raises(PermissionError) as refused:
        wrong.keys()
    assert refused.value.kind == "access_denied"
    assert "hunter2" not in str(refused.value) + repr(refused.value)


def test_small_files_are_read_as_they_are(model_folder):
    streamer = headrace.ModelStreamer(model_folder)
    assert streamer.read_file("config.json") == b"this is config.json"
    assert asyncio.run(streamer.read_file_async("sub/deeper/config.json")) == b"this is sub/deeper/config.json"
    with pytest.raises(FileNotFoundError):
        streamer.read_file("nothing.json")


def test_a_streamer_can_be_pickled_and_describes_itself(large):
    streamer = headrace.ModelStreamer(large, chunk_size="1MiB", include=["layers.0.*"])
    assert repr(streamer) == f"ModelStreamer({str(large)!r})"
    streamer.keys()
    assert repr(streamer) == f"ModelStreamer({str(large)!r}, 6 tensors)"
    copied = pickle.loads(pickle.dumps(streamer))
    assert (copied.path, copied.chunk_size, copied.max_concurrency) == (str(large), 1 << 20, 32)
    assert sorted(dict(copied.stream_sync())) == [f"layers.0.{n}.weight" for n in range(3)]
    assert repr(streamer.stream_sync()).startswith("<TensorStream of")
