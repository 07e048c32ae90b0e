#!/bin/sh
# A comparison with the code of DAGER (Petrov et al. 2024), in an environment of its own; optional.
#   git clone https://github.com/insait-institute/dager-gradient-inversion CHECKOUT
#   sh bench/_dager.sh CHECKOUT [FOLDER] [arguments of bench/dager.py]
# transformers is the version that DAGER's environment.yml names; a newer one lacks what it imports.
set -e
here=$(cd "$(dirname "$0")/.." && pwd)
checkout=$(cd "$1" && pwd)
folder=${2:-/tmp/leakaudit-dager}
shift $(($# < 2 ? $# : 2))
[ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder"
cd "$here"
"$folder/bin/pip" install -q -c constraints.txt -e '.[text]' transformers==4.45.1
OMP_NUM_THREADS=1 "$folder/bin/python" bench/dager.py --dager "$checkout" "$@"
