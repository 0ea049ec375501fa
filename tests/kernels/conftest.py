import importlib.util
import sys
from pathlib import Path

# importlib mode puts no test folder on the path: the helper is loaded by file
_spec = importlib.util.spec_from_file_location("planted", Path(__file__).with_name("planted.py"))
planted = importlib.util.module_from_spec(_spec)
sys.modules["planted"] = planted
_spec.loader.exec_module(planted)
