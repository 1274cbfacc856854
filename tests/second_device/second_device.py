"""Devices "cuda:0" and "cuda:1" on a machine without a GPU: a plugin for pytest, see ``.ci/second_device``.

The extension beside this file is compiled once for each version of torch, its source and Python (about 30 seconds), and
kept in the folder that SECOND_DEVICE_CACHE names, or in torch's own for extensions. It leans on torch's internals, so
it is built for the version of torch that ``.ci/second_device`` installs. ``SECOND_DEVICE_COUNT`` says how many devices
there are (2), ``SECOND_DEVICE_LIMIT`` how many bytes each holds.
"""

import hashlib
import importlib.util
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

SOURCE = Path(__file__).with_name("device.cpp")
#: Operators of which CUDA takes an index on the CPU.
_CPU_INDEX = [
    "aten::index.Tensor", "aten::index.Tensor_out", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_",
    "aten::_unsafe_index.Tensor", "aten::_unsafe_index_put",
]  # fmt: skip
_extension: Any = None


def install() -> Any:
    """Makes the devices available in this process, before its first backward pass; returns the extension.

    Raises:
        RuntimeError: the extension cannot be built with this torch.
    """
    global _extension
    if _extension is None:
        count = int(os.environ.get("SECOND_DEVICE_COUNT", "2"))
        with _quiet_torch():
            _extension = _built()
            _extension.install(_strict_operators(), _CPU_INDEX, count)
        if limit := os.environ.get("SECOND_DEVICE_LIMIT"):
            _extension.set_limit(int(limit))
        _replace_cuda(_extension, count)
        _replace_storages()
    return _extension


def pytest_configure() -> None:
    install()


def _kept() -> Path:
    """Where what belongs to this source, this torch and this Python is kept."""
    from torch.utils.cpp_extension import get_default_build_root

    told = f"{torch.__version__} {sys.version}".encode() + SOURCE.read_bytes()
    root = os.environ.get("SECOND_DEVICE_CACHE", get_default_build_root())
    kept = Path(root) / f"second_device_{hashlib.sha256(told).hexdigest()[:16]}"
    kept.mkdir(parents=True, exist_ok=True)
    return kept


def _built() -> ModuleType:
    from torch.utils import cpp_extension

    kept = _kept()
    library = kept / f"{kept.name}.so"
    if not library.exists():
        cpp_extension.load(
            kept.name, [str(SOURCE)], build_directory=str(kept), extra_cflags=["-O1", "-g0"], is_python_module=False
        )
    found = importlib.util.spec_from_file_location(kept.name, library)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def _strict_operators() -> list[str]:
    """Operators of which CUDA demands that all tensors, those without dimensions too, are on one device."""
    import torchgen
    from torchgen.gen import parse_native_yaml
    from torchgen.model import DeviceCheckType

    kept = _kept() / "strict.json"
    if kept.exists():
        return json.loads(kept.read_text())
    base = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
    parsed = parse_native_yaml(str(base / "native_functions.yaml"), str(base / "tags.yaml"))
    functions = {str(one.func.name): one for one in parsed.native_functions}
    strict = []
    for name, one in functions.items():
        leader = one if one.structured_delegate is None else functions[str(one.structured_delegate)]
        if one.device_check == leader.device_check == DeviceCheckType.ExactSame:
            strict.append(f"aten::{name}")
    kept.write_text(json.dumps(sorted(set(strict) - set(_CPU_INDEX))))
    return json.loads(kept.read_text())


@contextmanager
def _quiet_torch() -> Any:
    """torch tells on stderr, from C++, that kernels are replaced."""
    nowhere, saved = os.open(os.devnull, os.O_WRONLY), os.dup(2)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def _replace_cuda(extension: Any, count: int) -> None:
    """What Python asks of ``torch.cuda`` is answered by the extension."""

    def number(device: Any = None) -> int:
        if device is None:
            return extension.current()
        found = device if isinstance(device, int) else torch.device(device).index
        return extension.current() if found is None else found

    def exchanged(index: int) -> int:
        before = extension.current()
        if index >= 0:
            extension.use(index)
        return before

    answers: dict[str, Any] = {
        "is_available": lambda: True, "device_count": lambda: count, "current_device": extension.current,
        "set_device": lambda device: extension.use(number(device)), "_lazy_init": lambda: None, "init": lambda: None,
        "is_initialized": lambda: False, "synchronize": lambda device=None: None, "empty_cache": lambda: None,
        "get_device_name": lambda device=None: "emulated device",
        "get_device_capability": lambda device=None: (9, 0),
        "mem_get_info": lambda device=None: (extension.limit() - extension.held(number(device)), extension.limit()),
        "memory_reserved": lambda device=None: extension.held(number(device)),
        "memory_allocated": lambda device=None: extension.held(number(device)),
        "max_memory_allocated": lambda device=None: extension.peak(number(device)),
        "reset_peak_memory_stats": lambda device=None: extension.reset_peak(number(device)),
        "_exchange_device": exchanged, "_maybe_exchange_device": exchanged,
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    torch.cuda.memory._host_memory_stats = dict
    torch.backends.cudnn.enabled = False


def _replace_storages() -> None:
    """Storages that Python makes by itself would ask torch's CUDA library for its allocator."""
    base = torch.storage._StorageBase
    usual_clone, usual_to = base.clone, base.to

    def made(size: int, device: Any) -> Any:
        return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()

    def clone(self: Any) -> Any:
        return made(self.nbytes(), self.device).copy_(self) if self.device.type == "cuda" else usual_clone(self)

    def to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        device = torch.device(device)
        if device.type != "cuda":
            return usual_to(self, device=device, non_blocking=non_blocking)
        return self if self.device == device else made(self.nbytes(), device).copy_(self)

    base.clone, base.to = clone, to


if __name__ == "__main__":  # a command of harness on these devices
    install()
    from harness.cli import run

    sys.exit(run(sys.argv[1:]))
