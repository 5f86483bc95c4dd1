#!/bin/sh
# Trains, exports and evaluates the demo models in an environment of their own (.venv-export).
# Arguments go to the recipe; `--out batchgen/demo/models --examples examples` replaces what ships.
set -eu
cd "$(dirname "$0")/.."

venv=.venv-export
wanted=$(cksum < requirements/export.txt)
if [ "$(cat "$venv/installed" 2>/dev/null)" != "$wanted" ]; then
    "${PYTHON:-python3}" -m venv --clear "$venv"
    # torch with its own dependencies first. The rest without any: optimum-intel asks for
    # torchvision, which text models do not need and which would replace this torch.
    "$venv/bin/pip" install --quiet "$(grep '^torch==' requirements/export.txt)"
    "$venv/bin/pip" install --quiet --no-deps --requirement requirements/export.txt
    echo "$wanted" > "$venv/installed"
fi

# One thread: sums over several threads do not repeat to the bit.
OMP_NUM_THREADS=1 PYTHONPATH=. exec "$venv/bin/python" -m "${RECIPE:-batchgen.demo.recipe}" "$@"
