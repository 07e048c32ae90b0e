#!/bin/sh
# A comparison with breaching 0.1.2 (Geiping et al.), from the package index into an environment of its own; optional, about 2 GB.
#   sh bench/_breaching.sh [FOLDER]        then: python bench/_all.py --only attacks --breaching FOLDER/bin/python
set -e
here=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-/tmp/leakaudit-breaching}
[ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder"
cd "$here"
"$folder/bin/pip" install -q -c constraints.txt -e . breaching==0.1.2
OMP_NUM_THREADS=1 "$folder/bin/python" bench/_breaching.py
