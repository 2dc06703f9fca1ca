"""Texts of the engine, which name the command's flags, in the words of Python."""

from __future__ import annotations

import pickle

import pytest

import pgspate
from pgspate._python_words import in_python, report_in_python

TEXTS = {
    # Values.
    "Use fewer lanes with `--lanes`.": "Use fewer lanes with `lanes=`.",
    "A load with `--lanes 1` is one.": "A load with `lanes=1` is one.",
    "`--commit=chunk`": '`commit="chunk"`',
    "`--rebuild-indexes never`": '`rebuild_indexes="never"`',
    "`--generation 2026-11-22`": '`generation="2026-11-22"`',
    "`--rejects FILE`": "`rejects=...`",
    "`--columns a,b,...`": "`columns=...`",
    "`--encoding WIN1252`": '`encoding="WIN1252"`',
    "`--header no`, or `--header yes`": "`header=False`, or `header=True`",
    "`--comment '#'`": '`comment="#"`',
    "`--null '\\N'`": "`null='\\\\N'`",
    "`--table 'schema.\"the name\"'`": "`table='schema.\"the name\"'`",
    "`--replace truncate`": '`replace="truncate"`',
    # Options with a value for each key.
    "`--type 'price=numeric(10,2)'`": '`types={"price": "numeric(10,2)"}`',
    "`--type`": "`types=`",
    "`--map 'shop.*=public.*'`": '`map={"shop.*": "public.*"}`',
    "`--set tenant=...`": '`set={"tenant": ...}`',
    "`--source-option unframed=allow`": '`source_option={"unframed": "allow"}`',
    "`--date-format COLUMN=FORMAT`": '`date_format={"COLUMN": "FORMAT"}`',
    "`--date-format %d/%m/%Y`": '`date_format="%d/%m/%Y"`',
    # Options without a value.
    "`--restart` loads all of it again": "`restart=True` loads all of it again",
    "`--type` needs `--create` or `--add-columns`":
        "`types=` needs `create=True` or `add_columns=True`",
    "Leave out `--lanes` or `--vacuum`.": "Leave out `lanes=` or `vacuum=`.",
    "Leave `--snapshot` out.": "Leave `snapshot=` out.",
    "Without `--atomic`, it does not wait.": "Without `atomic=`, it does not wait.",
    "Load without `--replace`.": "Load without `replace=`.",
    # Several flags.
    "a new stream with `--stream NAME --snapshot`": "a new stream with `stream=..., snapshot=True`",
    "with `--vacuum --transactions 2` or more": "with `vacuum=True, transactions=2` or more",
    # Flags without backquotes, and those of the parser.
    "3 rows rejected; --max-rejects allows 2": "3 rows rejected; max_rejects= allows 2",
    "set it with --memory": "set it with memory=",
    "invalid value 'x' for '--lanes <N>': expected a number":
        "invalid value 'x' for `lanes=`: expected a number",
    "the argument '--atomic' cannot be used with '--replace[=<HOW>]'":
        "the argument `atomic=True` cannot be used with `replace=`",
    "unexpected argument '--non-sense' found": "unexpected argument `non_sense=` found",
    # Commands.
    "`pgspate load --vacuum` vacuums": "`pgspate.load(..., vacuum=True)` vacuums",
    "`pgspate doctor --watch 60s`": '`pgspate.doctor(watch="60s")`',
    "`pgspate doctor --storage`": "`pgspate.doctor(storage=...)`",
    "`pgspate tune --revert`": "`pgspate.tune(revert=True)`",
    "`pgspate sync` and `--replace`": "`pgspate.sync` and `replace=True`",
    "`load --into-shards` writes": "`pgspate.load(..., into_shards=True)` writes",
    "Run the same command again.": "Make the same call again.",
    "the same command, run again, loads it": "the same call, made again, loads it",
    "Run the command with `--snapshot` again.": "Make the call with `snapshot=True` again.",
}

KEPT = [
    "Begin with consecutive indexes: `--array=0-99`, without a step.",
    "Build it with `cargo build --features kafka`, or with `--features kafka-tls`.",
    '`eval "$(aws configure export-credentials --profile x --format env)"`',
    "run `pgspate status --restore 7`",
    "run `pgspate fleet nightly --generation 1 --forget`",
    'invalid input syntax for type integer: "--create"',
    "`lanes=1` and `types={\"x\": \"text\"}`",
    "a -- b, x--create and `load`",
]


@pytest.mark.parametrize("text", TEXTS)
def test_flags_become_arguments(text):
    assert in_python(text) == TEXTS[text]
    assert in_python(TEXTS[text]) == TEXTS[text]


@pytest.mark.parametrize("text", KEPT)
def test_other_texts_stay(text):
    assert in_python(text) == text


def test_only_the_texts_of_a_report_are_replaced():
    report = {
        "table": "--create",
        "lanes_reason": "use `--lanes N`",
        "warnings": ["`--restart` loads it again"],
        "findings": [{"object": "--lanes", "advice": None, "remedy": ["pgspate tune --revert"]}],
        "machine": {"cpus": 2, "cpus_from": "assumed; set it with `--cpus`"},
    }
    assert report_in_python(report) == {
        "table": "--create",
        "lanes_reason": "use `lanes=...`",
        "warnings": ["`restart=True` loads it again"],
        "findings": [
            {"object": "--lanes", "advice": None, "remedy": ["pgspate.tune(revert=True)"]}
        ],
        "machine": {"cpus": 2, "cpus_from": "assumed; set it with `cpus=`"},
    }


def test_errors_name_arguments_everywhere():
    error = pgspate.UsageError("`--lanes` and `--transactions` exclude each other",
                               hint="Leave out `--lanes`.")
    assert "`lanes=`" in repr(error) and error.args == (error.message,)
    assert "--" not in str(error) + repr(error)
    again = pickle.loads(pickle.dumps(error))
    assert (again.message, again.hint, again.args) == (error.message, error.hint, error.args)


def test_errors_of_calls_name_arguments(db, dsn, tmp_path):
    db.execute("create table t (id int primary key)")

    def refusal(call, **options):
        with pytest.raises(pgspate.UsageError) as caught:
            call([(1,)], "t", to=dsn, **options)
        assert "--" not in f"{caught.value} {caught.value!r} {caught.value.__cause__}"
        return str(caught.value)

    member = {"fleet": "f", "generation": "1", "members": 2, "member": 0}
    assert "`fleet=` and `create=True` cannot be combined" in (
        refusal(pgspate.load, create=True, **member)
    )
    assert '`rebuild_indexes="always"`' in (
        refusal(pgspate.load, rebuild_indexes="always", **member)
    )
    assert "for `lanes=`" in refusal(pgspate.load, lanes="x")
    assert "`columns=`" in refusal(pgspate.load, columns=["a", "b"])
    assert "`retry_for=`" in refusal(pgspate.load, retry_for="soon")
    assert "`lanes=` and `transactions=`" in (
        refusal(pgspate.sync, scope_by="id", key="id", lanes=2, transactions=2)
    )
    with pytest.raises(pgspate.UsageError, match="unexpected argument `nonsense=`"):
        pgspate.plan([(1,)], "t", to=dsn, nonsense=1)


def test_plans_name_arguments(db, dsn, tmp_path):
    db.execute("create table t (id int); create function f() returns trigger language plpgsql "
               "as 'begin return new; end'; create trigger r before insert on t for each row "
               "execute function f()")
    plan = pgspate.plan([(1,)], "t", to=dsn)
    assert "use `lanes=...`" in plan.lanes_reason and "use `lanes=...`" in str(plan)
    assert "use `--lanes N`" in plan.to_dict()["lanes_reason"]
    assert "use `lanes=...`" in plan._repr_html_()
