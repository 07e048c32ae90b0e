"""The job of examples/nvflare with two more lines, which record its clients and its server.

python nvflare_recorded.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "nvflare"))

import job

from leakaudit.capture.tap.nvflare.filters import RecordMessages

if __name__ == "__main__":
    job.save()
    recipe = job.build()
    recipe.add_client_output_filter(RecordMessages("client.tap"))
    recipe.add_server_input_filter(RecordMessages("server.tap"))
    job.run(recipe)
