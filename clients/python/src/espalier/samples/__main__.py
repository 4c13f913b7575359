"""`python -m espalier.samples check FILE`: exit 0 when every invariant holds, 1 when one is broken, 2 when the file
cannot be opened."""

from __future__ import annotations

import argparse
import json
import sys
from typing import List, Optional

from .check import check_file


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m espalier.samples",
        description="Works on groups exported by Espalier.",
        epilog="example: python -m espalier.samples check samples.msgpack",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check",
        help="verify every invariant of group/v1",
        description="Verifies every invariant of group/v1. Exit code: 0 all hold, 1 one is broken, 2 no such file.",
    )
    check.add_argument("file", nargs="+", help="an export in either form: group-msgpack or group-jsonl")
    check.add_argument("--json", action="store_true", help="one JSON object a file, for machines")
    check.add_argument("--most", type=int, default=20, metavar="N", help="findings shown of a file (default 20)")
    options = parser.parse_args(arguments)

    worst = 0
    for path in options.file:
        try:
            report = check_file(path)
        except OSError as error:
            print(f"{path}: {error.strerror or error}", file=sys.stderr)
            worst = 2
            continue
        if report.findings:
            worst = max(worst, 1)
        if options.json:
            print(json.dumps({"file": str(path), **report.as_dict()}))
            continue
        for finding in report.findings[: options.most]:
            print(f"{path}: {finding}")
        if len(report.findings) > options.most:
            print(f"{path}: and {len(report.findings) - options.most} more")
        sums = report.sums
        verdict = f"{len(report.findings)} broken" if report.findings else "all invariants hold"
        print(
            f"{path}: {verdict}; {report.groups} groups, {report.trajectories} trajectories, "
            f"{report.segments} segments; {sums.sampled} sampled = {sums.trained} trained + {sums.masked} masked "
            f"+ {sums.dropped} dropped" + (f"; {report.images} images in rows" if report.images else "")
        )
    return worst


if __name__ == "__main__":
    sys.exit(main())
