"""Loads a file of predictions as SWE-bench's harness does, and says whose they are.

    python predictions.py FILE

Run by an interpreter that has `swebench` (without its dependencies: those that only its other parts use are stood in for).
"""

import sys

import standin

standin.install()

from swebench.harness.utils import get_predictions_from_file  # noqa: E402
from unidiff import PatchSet  # noqa: E402

for prediction in get_predictions_from_file(sys.argv[1], "none", "test"):
    if len(PatchSet(prediction["model_patch"])) == 0:
        sys.exit(f"{prediction['instance_id']}: no patch that unidiff reads")
    print(prediction["instance_id"], prediction["model_name_or_path"])
