import importlib.util
import sys
from pathlib import Path

import pytest
import torch

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
