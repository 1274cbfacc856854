"""Files of arrays from anybody: both formats are read alike, and what is not plain numbers is refused unread."""

import base64
import io
import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch

from harness.base.errors import UsageError
from harness.judging.capture import read_capture
from harness.results.arrays import StoredArrays

# What safetensors 0.8.0 made of layer.weight [[1.5, -2], [0.25, 3]], half [1.5, -2] (bfloat16) and count 7 (int64).
BY_THE_LIBRARY = base64.b64decode(
    "4AAAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJtYWRlIjoiYnkgdGhlIGxpYnJhcnkifSwiY291bnQiOnsiZHR5cGUiOiJJNjQiLCJzaGFwZSI6W10sImRh"
    "dGFfb2Zmc2V0cyI6WzAsOF19LCJsYXllci53ZWlnaHQiOnsiZHR5cGUiOiJGMzIiLCJzaGFwZSI6WzIsMl0sImRhdGFfb2Zmc2V0cyI6WzgsMjRdfSwi"
    "aGFsZiI6eyJkdHlwZSI6IkJGMTYiLCJzaGFwZSI6WzJdLCJkYXRhX29mZnNldHMiOlsyNCwyOF19fQcAAAAAAAAAAADAPwAAAMAAAIA+AABAQMA/AMA="
)


def tensors(values: bytes = b"", **described: Any) -> bytes:
    """A .safetensors file, whatever its header says."""
    header = json.dumps(described).encode()
    return len(header).to_bytes(8, "little") + header + values


def one(dtype: str = "F32", shape: list[Any] | None = None, offsets: list[int] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [2] if shape is None else shape, "data_offsets": offsets or [0, 8]}


def packed(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array)
    return buffer.getvalue()


def test_both_formats_are_read(tmp_path: Path) -> None:
    (tmp_path / "one.safetensors").write_bytes(BY_THE_LIBRARY)
    np.savez(tmp_path / "two.npz", count=7, half=np.float16([1.5, -2]), **{"layer.weight": [[1.5, -2], [0.25, 3]]})
    for name in ("one.safetensors", "two.npz"):
        found = StoredArrays(tmp_path / name)
        assert found.shapes == {"count": (), "half": (2,), "layer.weight": (2, 2)}
        assert found["count"] == 7 and found["half"].tolist() == [1.5, -2.0]
        assert found["layer.weight"].tolist() == [[1.5, -2.0], [0.25, 3.0]]


class Runs:
    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('it was loaded')",)


def saved() -> bytes:
    buffer = io.BytesIO()
    torch.save({"weight": torch.ones(2)}, buffer)
    return buffer.getvalue()


F4 = npy(np.ones(2, "<f4"))
DAMAGED: dict[str, tuple[str, bytes, str]] = {
    "pickle by its name": ("a.pkl", pickle.dumps(Runs()), "may run code"),
    "pickle in disguise": ("a.npz", pickle.dumps(Runs()), "damaged"),
    "what torch.save wrote": ("a.npz", saved(), "may run code; where you trust it, convert it"),
    "an array of objects": ("a.npz", packed({"x.npy": npy(np.array([Runs()]))}), "pickled objects"),
    "text": ("a.npz", packed({"x.npy": npy(np.array(["a"]))}), "no numbers"),
    "bfloat16": ("a.npz", packed({"x.npy": npy(np.ones(2, "V2"))}), "becomes in .npz: turn it into float32 first"),
    "complex": ("a.npz", packed({"x.npy": npy(np.array([1j]))}), "no numbers"),
    "empty file": ("a.npz", b"", "damaged"),
    "cut off": ("a.npz", packed({"x.npy": F4})[:-30], "damaged"),
    "more claimed than there": ("a.npz", packed({"x.npy": F4.replace(b"(2,)", b"(9,)")}), "claims (9,) values"),
    "a negative shape": ("a.npz", packed({"x.npy": F4.replace(b"(2,), }      ", b"(-1, -2), }  ")}), "claims"),
    "a header that is code": ("a.npz", packed({"x.npy": F4.replace(b"(2,)", b"f()")}), "damaged"),
    "no array": ("a.npz", packed({"../../x.sh": b"rm"}), "'../../x.sh', no plain array"),
    "lines in a name": ("a.npz", packed({"a\nb": b""}), r"'a\nb'"),
    "no header": ("a.safetensors", b"", "not complete JSON"),
    "an endless header": ("a.safetensors", b"\xff" * 64, "claims a header"),
    "a header that is cut": ("a.safetensors", (10**6).to_bytes(8, "little") + b"{", "not complete JSON"),
    "a header nested": ("a.safetensors", (9000).to_bytes(8, "little") + b"[" * 9000, "JSON"),
    "a list": ("a.safetensors", (2).to_bytes(8, "little") + b"[]", "no object"),
    "an unknown type": ("a.safetensors", tensors(bytes(8), x=one("F8_E5M2")), "'F8_E5M2', which is not read"),
    "a field too much": ("a.safetensors", tensors(bytes(8), x=one() | {"y": 1}), "damaged"),
    "a shape below zero": ("a.safetensors", tensors(bytes(8), x=one(shape=[-2])), "damaged"),
    "a shape of fractions": ("a.safetensors", tensors(bytes(8), x=one(shape=[2.0])), "damaged"),
    "a huge shape": ("a.safetensors", tensors(bytes(8), x=one(shape=[2**40, 2**40])), "does not lie where"),
    "two in one place": ("a.safetensors", tensors(bytes(8), x=one(), y=one()), "does not lie where"),
    "a gap": ("a.safetensors", tensors(bytes(16), x=one(offsets=[8, 16])), "does not lie where"),
    "values beyond the end": ("a.safetensors", tensors(bytes(4), x=one()), "has 4 bytes of values"),
    "values nobody claims": ("a.safetensors", tensors(bytes(12), x=one()), "has 12 bytes of values"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "problem"), DAMAGED.values(), ids=DAMAGED.keys())
def test_what_is_no_plain_archive_is_one_line(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError) as error:
        StoredArrays(tmp_path / name)
    assert problem in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["a.npz", "a.safetensors"])
def test_what_is_not_finite_is_told_when_it_is_read(tmp_path: Path, name: str, value: float) -> None:
    values = np.array([1, value], "<f4")
    content = packed({"x.npy": npy(values)}) if name == "a.npz" else tensors(values.tobytes(), x=one())
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match="NaN or infinity"):
        StoredArrays(tmp_path / name)["x"]


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors"])
def test_gigabytes_take_no_memory_until_they_are_asked_for(tmp_path: Path, name: str) -> None:
    """A sparse file of 3 GB, and an archive that unpacks to 64 MB."""
    if name == "a.npz":
        np.savez_compressed(tmp_path / name, x=np.zeros(2**23))
    else:
        size = 3 * 10**9
        content = tensors(x={"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]})
        (tmp_path / name).write_bytes(content)
        with (tmp_path / name).open("r+b") as stream:
            stream.truncate(len(content) + size)
    tracemalloc.start()
    try:
        found = StoredArrays(tmp_path / name)
        assert len(found) == 1 and tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_a_capture_is_of_either_format_and_not_of_both(tmp_path: Path) -> None:
    facts = {"model": "mlp", "image_shape": [1, 8, 8], "classes": 10, "learning_rate": 0.1, "batch_size": 1}
    (tmp_path / "capture.json").write_text(json.dumps(facts))
    np.savez(tmp_path / "before.npz", x=1.0)
    (tmp_path / "update.safetensors").write_bytes(BY_THE_LIBRARY)
    kept = read_capture(tmp_path)
    assert kept.kind == "update" and set(kept.before) == {"x"} and kept.moved["count"] == 7 and kept.truth is None
    np.savez(tmp_path / "update.npz", x=1.0)
    with pytest.raises(UsageError, match=r"holds update\.npz and update\.safetensors; keep one"):
        read_capture(tmp_path)
