"""Makes what is made: `sync` of `aio` in `sandbox`, `delivery` and `tasks`, and `docs/python.md` from the package's docstrings.

`python generate.py` writes them; `python generate.py --check` says which are not current (a test does that).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Dict

HERE = Path(__file__).resolve().parent
PACKAGES = [HERE / "src/espalier/sandbox", HERE / "src/espalier/delivery", HERE / "src/espalier/tasks"]
REFERENCE = HERE.parent.parent / "docs/python.md"

#: Written by hand on both sides: what asyncio and threads do not have in common.
BY_HAND = {"__init__.py", "io.py", "forward.py"}

HEADER = "# Made of aio/{name} by clients/python/generate.py; change that, not this.\n"

REPLACED = [
    (r"\basync (def|with|for) ", r"\1 "),
    (r"\bawait ", ""),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAsync([A-Z]\w*)", r"\1"),
    (r"\b__a(iter|next|enter|exit)__", r"__\1__"),
    (r"\baclose\b", "close"),
    (r"\bsandbox\.aio\b", "sandbox.sync"),
]


def sync(name: str, text: str) -> str:
    """The same module for threads."""
    for pattern, replacement in REPLACED:
        text = re.sub(pattern, replacement, text)
    return HEADER.format(name=name) + text


def synchronous() -> Dict[Path, str]:
    """The modules for threads, with their text."""
    made = {}
    for package in PACKAGES:
        names = sorted(path.name for path in (package / "aio").glob("*.py") if path.name not in BY_HAND)
        made.update({package / "sync" / name: sync(name, (package / "aio" / name).read_text()) for name in names})
    return made


def documented() -> Dict[Path, str]:
    """The reference, which reads the modules for threads."""
    import reference

    return {REFERENCE: reference.text()}


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = False
    for files in (synchronous, documented):
        for path, text in files().items():
            if path.exists() and path.read_text() == text:
                continue
            stale = True
            print(f"{path.relative_to(HERE.parent.parent)}: {'not current; run generate.py' if check else 'written'}")
            if not check:
                path.write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
