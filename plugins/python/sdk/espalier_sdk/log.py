"""Lines in the rollout's log, with further fields by name: ``log.warn("no action", turn=3)``.

``print`` and :mod:`logging` write to the same log.
"""

import sys
from typing import Any

from . import schema, source, wit


def debug(text: str, **fields: Any) -> None:
    """For the plugin's author."""
    _write("DEBUG", text, fields)


def info(text: str, **fields: Any) -> None:
    """What happened."""
    _write("INFO", text, fields)


def warn(text: str, **fields: Any) -> None:
    """Something odd that did no harm."""
    _write("WARN", text, fields)


def error(text: str, **fields: Any) -> None:
    """Something failed."""
    _write("ERROR", text, fields)


def _write(level: str, text: str, fields: dict[str, Any]) -> None:
    # Outside of a component, as in the author's tests, lines are printed.
    if not wit.is_component():
        print(f"{level} {text}", *(f"{name}={value!r}" for name, value in fields.items()), file=sys.stderr)
        return
    wit.log.write(wit.log.Level[level], source.plain(str(text)), schema.to_json(fields) if fields else None)


def forward_logging() -> None:
    """Has :mod:`logging` write here, where the author's files use it."""
    logging: Any = sys.modules.get("logging")
    if logging is None or logging.getLogger().handlers:
        return

    class Handler(logging.Handler):  # type: ignore[misc]
        def emit(self, record: Any) -> None:
            levels = [(logging.ERROR, error), (logging.WARNING, warn), (logging.INFO, info)]
            write = next((write for least, write in levels if record.levelno >= least), debug)
            write(self.format(record))

    logging.getLogger().addHandler(Handler())
    # Threads are not there, and the author's file and line need no search for them.
    logging.getLogger().setLevel(logging.DEBUG)
