"""What is imported at build because functions import it."""

import sys
from pathlib import Path

import pytest

from espalier_sdk import preload


def test_imports_of_functions_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "late_main.py": "from collections import Counter\n\ndef f():\n    from late_other import g\n    import no_such_module\n",
        "late_other.py": "def g():\n    import colorsys\n    import subprocess\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("late_main", "late_other", "colorsys", "heapq", "subprocess"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    __import__("late_main")
    preload.load(lambda file: file.startswith(str(tmp_path)))
    assert {"late_other", "colorsys", "heapq"} <= set(sys.modules)
    assert "subprocess" not in sys.modules
