import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from kernel_selector.kernels.recurrent.persistent import nvrtc

# importlib mode puts no test folder on the path: the helpers are loaded by file
for _name in ("planted", "programs", "twins"):
    _spec = importlib.util.spec_from_file_location(_name, Path(__file__).with_name(f"{_name}.py"))
    _module = importlib.util.module_from_spec(_spec)
    sys.modules[_name] = _module
    _spec.loader.exec_module(_module)


@pytest.fixture(autouse=True)
def exact_float32():
    """Peers compute in float32, not in TF32, which torch lets cuDNN take: its errors would hide ours."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where compiled CUDA sources are kept: empty, and nothing is remembered from another folder."""
    monkeypatch.setenv("KERNEL_SELECTOR_CACHE", str(tmp_path))
    nvrtc.compiled.cache_clear()
    yield tmp_path
    nvrtc.compiled.cache_clear()
