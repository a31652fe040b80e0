# make demo   install and run the main job          make test   install, lint, type-check, run every test
# make bench  measure everything against its peers   make format  let ruff rewrite the files
# make interrupts  interrupt 20,000 steps of all rules at random moments
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test bench interrupts format clean

demo: $(READY)
	$(BIN)/samphire reproduce

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

bench: $(READY)
	for one in step batched rules probes images hessian; do $(BIN)/python benchmarks/$$one.py || exit 1; done

interrupts: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/interrupts.py 20000

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
