# make demo   install and run the main job          make test   install, lint, type-check, run every test
# make bench  measure everything against its peers   make format  let ruff rewrite the files
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test bench format clean

demo: $(READY)
	$(BIN)/samphire reproduce

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

bench: $(READY)
	for one in step batched rules probes images hessian llm; do $(BIN)/python benchmarks/$$one.py || exit 1; done

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps timm  # without torchvision
	touch $(READY)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
