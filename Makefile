# Each target sets up .venv by itself; only Python 3.11 or newer and make are needed.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test mutants reproduce programs gossip coverage trackers selfcheck fuzz faults lint bench dist lock lowest docs site
help:  ## show this list
	@grep -hE '^[a-z]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 8

demo: $(VENV)/.ready  ## record a run on real faces, attack it, show what came out
	$(BIN)/leakaudit demo

test: $(VENV)/.ready  ## every test that is not slow, on all cores
	$(BIN)/pytest -n auto --dist worksteal -m "not slow and not browser"

coverage: $(VENV)/.ready  ## make test, with the share of lines and branches that it runs; fails below the limit
	$(BIN)/pytest -n auto --dist worksteal -m "not slow and not browser" --cov --cov-report=term:skip-covered

# Flower needs an older rich than constraints.txt names, so only torch, torchvision and numpy are pinned.
programs:  ## the tests that run programs of Flower, NVFlare, Opacus and others, in .venv-programs
	$(PYTHON) -m venv .venv-programs
	grep -E '^(torch|torchvision|numpy)==' constraints.txt > .venv-programs/pinned.txt
	.venv-programs/bin/pip install -q -c .venv-programs/pinned.txt -e ".[dev,flower,nvflare,text]" \
		"flwr[simulation]" "jax>=0.10" "opacus>=1.6" "accelerate>=1.15" "lightning>=2.6" transformers
	.venv-programs/bin/pytest tests/programs --ignore tests/programs/test_p2pfl.py

# p2pfl 0.4.4 imports the extra 'dp' in any case, and fails with newer versions of these libraries.
gossip:  ## the tests that run p2pfl programs, in .venv-gossip
	$(PYTHON) -m venv .venv-gossip
	grep -E '^torch(vision)?==' constraints.txt > .venv-gossip/pinned.txt
	.venv-gossip/bin/pip install -q -c .venv-gossip/pinned.txt -e ".[dev]" "p2pfl[dp]==0.4.4" \
		"lightning<2.6" "torchmetrics<2" "huggingface_hub<1" "pyarrow<18"
	.venv-gossip/bin/pytest tests/programs/test_p2pfl.py

# MLflow and wandb bring web servers and clients that nothing else here needs.
trackers:  ## the tests that send results to TensorBoard, MLflow and wandb, in .venv-trackers
	$(PYTHON) -m venv .venv-trackers
	.venv-trackers/bin/pip install -q -c constraints.txt -e ".[dev,tensorboard,mlflow,wandb]"
	.venv-trackers/bin/pytest -k loggers tests/programs/test_loggers.py tests/contract/test_docs.py

selfcheck: $(VENV)/.ready  ## the estimators on null data, and the red team's tests on cases nobody has seen
	$(BIN)/leakaudit doctor --statistics
	LEAKAUDIT_FRESH_SEED=$${LEAKAUDIT_FRESH_SEED:-$$(date +%s)} LEAKAUDIT_FRESH_CASES=$${LEAKAUDIT_FRESH_CASES:-200} \
		$(BIN)/pytest -n auto --maxprocesses 4 tests/adversarial

fuzz: $(VENV)/.ready  ## mutated files for every reader, FUZZ_SECONDS (default 60) long, from FUZZ_SEED on
	$(BIN)/python tests/fuzz/fuzzing.py

mutants: $(VENV)/.ready  ## bugs planted one after the other; fails where the tests catch too few of them
	$(BIN)/python tests/mutants.py

reproduce: $(VENV)/.ready  ## every published figure, table and theorem at the small scale; leakaudit-out/reproduce/index.html has the verdicts
	$(BIN)/leakaudit reproduce --all -o leakaudit-out/reproduce

faults: $(VENV)/.ready  ## every command that writes, broken in nine ways, FAULT_RUNS (default 20) times each
	$(BIN)/python tests/fuzz/faults.py --page docs/reliability.md

lint: $(VENV)/.ready  ## ruff, spelling, imports between packages, mypy strict
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md docs $(wildcard */*.py) leakaudit tests examples
	$(BIN)/python tests/vocabulary.py
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy
	$(BIN)/mypy tests $(wildcard bench/*.py)

bench: $(VENV)/.ready  ## every figure in at most 25 minutes, as a table and leakaudit-out/bench.json
	@$(BIN)/python bench/_all.py -o leakaudit-out/bench.json

dist: $(VENV)/.ready  ## sdist and wheel in dist/, the same bytes for everyone who builds this commit
	$(BIN)/python .ci/dist

# torch and torchvision are left out: their files differ with the build (CPU, CUDA) that a machine needs.
lock: constraints.txt  ## requirements.lock: the versions of constraints.txt with their hashes; needs uv
	printf 'torch\ntorchvision\n' > $(VENV)/left-out.txt
	uv pip compile -q pyproject.toml --extra dev -c constraints.txt --excludes $(VENV)/left-out.txt \
		--universal --generate-hashes --no-annotate --custom-compile-command "make lock" -o requirements.lock

# The floors of pyproject.toml are honest; only torch and torchvision stay at the versions of constraints.txt.
lowest:  ## make test with the oldest versions that pyproject.toml allows, in .venv-lowest; needs uv
	$(PYTHON) -m venv .venv-lowest
	grep -E '^torch(vision)?==' constraints.txt > .venv-lowest/torch.txt
	uv pip install -q --python .venv-lowest --resolution lowest-direct --override .venv-lowest/torch.txt -e ".[dev]"
	.venv-lowest/bin/pytest -n auto --dist worksteal -m "not slow and not browser"

docs: site  ## the site, and every command and code block in it run
	$(BIN)/pytest -q tests/contract/test_docs.py tests/contract/test_docs_complete.py tests/contract/test_readme.py

site: $(VENV)/.docs  ## docs/_build/index.html; a warning is an error
	$(BIN)/sphinx-build -W --keep-going -n -q -b html docs docs/_build

$(VENV)/.ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "leakaudit needs Python 3.11 or newer; name it: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -c constraints.txt -e ".[dev]"
	@touch $@

$(VENV)/.docs: $(VENV)/.ready
	$(BIN)/pip install -c constraints.txt -e ".[docs]"
	@touch $@
