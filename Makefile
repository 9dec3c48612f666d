# Every target first sets up .venv (Python 3.11 or 3.12, exact versions from constraints.txt); that is a no-op once done.

READY := .venv/.ready
BIN := .venv/bin
UV = $(shell command -v uv || echo .uv/bin/uv)

.PHONY: demo test lint bench venv

demo: $(READY)  ## shards -> training -> evaluation on this machine, in minutes
	$(BIN)/mmrl demo $(ARGS)

# One torch thread a worker: workers that each start as many threads as there are cores only wait for one another.
test: $(READY)  ## the whole suite; `make test ARGS="tests/eval -k wilson"` runs a part
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist loadgroup $(ARGS)

lint: $(READY)  ## style, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## every scripts/bench_*.py, one after the other
	@set -e; for script in scripts/bench_*.py; do \
		test -e "$$script" || { echo "no scripts/bench_*.py"; exit 1; }; \
		echo "== $$script"; $(BIN)/python "$$script"; done

venv: $(READY)

$(READY): pyproject.toml constraints.txt overrides.txt
	@command -v uv >/dev/null || test -x .uv/bin/uv || { python3 -m venv .uv && .uv/bin/python -m pip install -q uv; }
	@test -x $(BIN)/python || $(UV) venv -q --python '>=3.11,<3.13' .venv
	$(UV) pip install -q --python $(BIN)/python -c constraints.txt --override overrides.txt -e '.[dev]'
	@touch $@
