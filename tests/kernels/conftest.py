import importlib.util
import sys
from pathlib import Path

# importlib mode puts no test folder on the path: the helpers are loaded by file
for _name in ("planted", "twins"):
    _spec = importlib.util.spec_from_file_location(_name, Path(__file__).with_name(f"{_name}.py"))
    _module = importlib.util.module_from_spec(_spec)
    sys.modules[_name] = _module
    _spec.loader.exec_module(_module)
