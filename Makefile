# make demo   install and run the main job          make test   install, lint, type-check, run every test
# make bench  measure everything against its peers   make format  let ruff rewrite the files
# make docs   build the documentation into site/, without a network
# By hand, each some minutes: make fuzz (2,000 damaged inputs), make kills (a sweep of 200 jobs whose processes are
# killed), make interrupts (20,000 steps of all rules, interrupted at random moments).
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
READY := .venv/ready

.PHONY: demo test bench docs fuzz kills interrupts format clean

demo: $(INSTALLED)
	$(BIN)/samphire reproduce

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

bench: $(READY)
	for one in step batched rules probes images hessian llm comparison; do $(BIN)/python benchmarks/$$one.py || exit 1; done

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

fuzz: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/fuzz.py 2000

kills: $(READY)
	$(BIN)/python tests/sweep/kills.py 200

interrupts: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/interrupts.py 20000

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Two marks: installed to be used, and ready to be worked on. Only the second has the tools and peers of the tests.
INSTALL = test -x $(BIN)/python || $(PYTHON) -m venv .venv; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e

$(INSTALLED): pyproject.toml constraints.txt
	$(INSTALL) .
	touch $(INSTALLED)

$(READY): pyproject.toml constraints.txt
	$(INSTALL) ".[dev]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps timm  # without torchvision
	touch $(READY) $(INSTALLED)

clean:
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache
