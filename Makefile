# make demo   install and run the main job          make test       install, lint, type-check, run every test
# make bench  measure everything against its peers   make test-fast  lint, and the tests of the core without the slow
# make format  let ruff rewrite the files                            ones: for the inner loop
# make docs   build the documentation into site/, without a network
# By hand, each some minutes: make fuzz (2,000 damaged inputs), make kills (a sweep of 200 jobs whose processes are
# killed, and one whose Ray nodes are), make interrupts (20,000 steps of all rules, interrupted at random moments),
# make lowest (the oldest versions that pyproject.toml allows, with the tests of the core; PYTHON=python3.10 for the
# oldest Python, after removing .venv-lowest).
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
READY := .venv/ready

.PHONY: demo test types every-test test-fast bench docs fuzz kills interrupts lowest format clean

demo: $(INSTALLED)
	$(BIN)/samphire reproduce

SAY = @printf '\n== %s\n'
CORE := tests/test_*.py tests/optim tests/models tests/probes tests/landscape tests/mechanisms tests/baselines

test: $(READY)
	$(SAY) "1 of 2: ruff, the style (seconds)"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(SAY) "2 of 2: mypy, the types, and beside it pytest, every test (minutes; it collects them before the first dot)"
	@$(MAKE) --no-print-directory -j 2 types every-test

types: $(READY)
	$(BIN)/mypy

every-test: $(READY)
	$(BIN)/pytest

test-fast: $(READY)
	$(SAY) "1 of 2: ruff, the style"
	$(BIN)/ruff check .
	$(SAY) "2 of 2: pytest, the core without what is marked slow; make test has the rest"
	$(BIN)/pytest $(CORE) -m "not slow"

bench: $(READY)
	for one in step batched rules probes images worker hessian llm comparison; do $(BIN)/python benchmarks/$$one.py || exit 1; done

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

fuzz: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/fuzz.py 2000

kills: $(READY)
	$(BIN)/python tests/sweep/kills.py 200
	$(BIN)/python tests/sweep/kills.py 200 ray

interrupts: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/interrupts.py 20000

LOWEST := $(shell sed -n '/^dependencies/,/^\]/s/ *"\(.*\)>=\(.*\)",/\1==\2/p' pyproject.toml)
OLDEST := tests/test_tree.py tests/test_checks.py tests/test_restore.py tests/optim/test_hostile.py \
	tests/optim/test_rules.py tests/optim/test_extremes.py

lowest:
	test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet $(LOWEST) pytest pytest-xdist scikit-learn
	.venv-lowest/bin/python -m pip install --quiet --no-deps -e .
	.venv-lowest/bin/python -m pytest -n 0 $(OLDEST)
	.venv-lowest/bin/samphire rules

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Two marks: installed to be used, and ready to be worked on. Only the second has the tools and peers of the tests.
INSTALL = test -x $(BIN)/python || $(PYTHON) -m venv .venv; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e

$(INSTALLED): pyproject.toml constraints.txt
	$(SAY) "installing into .venv (a minute or two, in silence; torch is the largest part)"
	$(INSTALL) .
	touch $(INSTALLED)

$(READY): pyproject.toml constraints.txt
	$(SAY) "installing into .venv, with the tools and peers of the tests (some minutes, in silence; torch is the largest part)"
	$(INSTALL) ".[dev]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps timm  # without torchvision
	touch $(READY) $(INSTALLED)

clean:
	rm -rf .venv .venv-lowest site .mypy_cache .ruff_cache .pytest_cache
