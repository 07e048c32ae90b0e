"""The job of examples/nvflare with two more lines, which record its clients and its server.

python nvflare_recorded.py
"""

import runpy
import sys
from pathlib import Path

from leakaudit.capture.tap.nvflare.filters import RecordMessages

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "nvflare"

if __name__ == "__main__":
    sys.path.append(str(EXAMPLE))  # for the model
    job = runpy.run_path(str(EXAMPLE / "job.py"))
    job["save"]()
    recipe = job["build"]()
    recipe.add_client_output_filter(RecordMessages("client.tap"))
    recipe.add_server_input_filter(RecordMessages("server.tap"))
    job["run"](recipe)
