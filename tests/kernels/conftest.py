import gc
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from kernel_selector.kernels.matmul import cublaslt, cublaslt_library
from kernel_selector.kernels.runtime import nvrtc

# importlib mode puts no test folder on the path: the helpers are loaded by file
for _name in (
    "compiled_whole",
    "cublaslt_twin",
    "made_devices",
    "parameter_storage",
    "planted",
    "programs",
    "twins",
    "recurrent_whole",  # which needs twins
):
    _spec = importlib.util.spec_from_file_location(_name, Path(__file__).parent / "helpers" / f"{_name}.py")
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


@pytest.fixture
def compilations(pytestconfig, monkeypatch):
    """Where compiled kernels stay from run to run, named by source, options and the compiler's version."""
    kept = pytestconfig.rootpath / ".cache"
    monkeypatch.setenv("KERNEL_SELECTOR_CACHE", str(kept / "cuda"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(kept / "triton"))
    nvrtc.compiled.cache_clear()
    yield
    nvrtc.compiled.cache_clear()


@pytest.fixture
def lt(monkeypatch):
    """A twin of cuBLASLt in its place, which takes the CPU's tensors; see `cublaslt_twin`."""
    twin = sys.modules["cublaslt_twin"].in_place(monkeypatch)
    yield twin
    cublaslt._plans.clear()
    if twin.created != twin.destroyed:
        gc.collect()  # what a traceback holds is to be destroyed in the twin too
    for cached in (cublaslt_library.context, cublaslt_library._matmul):
        cached.cache_clear()
