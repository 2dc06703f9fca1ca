"""Spark's types: the Arrow type in which Spark passes each, or what to cast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

# Spark's types by the name of their class, and the name of a function of pyarrow.
_PLAIN = {
    "BooleanType": "bool_",
    "ByteType": "int8",
    "ShortType": "int16",
    "IntegerType": "int32",
    "LongType": "int64",
    "FloatType": "float32",
    "DoubleType": "float64",
    "StringType": "string",
    "CharType": "string",
    "VarcharType": "string",
    "BinaryType": "binary",
    "DateType": "date32",
    "NullType": "null",
}
_TIMES = {
    "TimestampType": ("timestamp", "us", "UTC"),
    "TimestampNTZType": ("timestamp", "us"),
    "DayTimeIntervalType": ("duration", "us"),
    "TimeType": ("time64", "ns"),
}
_REFUSED = {
    "VariantType": "Select `to_json({column})` instead.",
    "CalendarIntervalType": "Cast it to a string or to a day-time interval.",
    "YearMonthIntervalType": "Cast it to a string: `{column}::string` is an interval's text.",
    "GeometryType": "Select `st_asbinary({column})` instead.",
    "GeographyType": "Select `st_asbinary({column})` instead.",
}


def arrow_schema(schema: Any) -> pa.Schema:
    """Returns the Arrow schema in which Spark passes rows of a schema.

    Raises:
        UsageError: A column has a type that PostgreSQL cannot take from Spark. The hint says what
            to cast.
    """
    import pyarrow as pa

    names = [one.name for one in schema.fields]
    twice = [name for nth, name in enumerate(names) if name in names[:nth]]
    if twice:
        raise UsageError(f'there are two columns "{twice[0]}"', hint="Rename one of them.")
    return pa.schema([(one.name, _arrow_type(one.dataType, one.name)) for one in schema.fields])


def _arrow_type(data_type: Any, column: str) -> pa.DataType:
    import pyarrow as pa

    # The class of a character type is a subclass of StringType in some versions, so names count.
    name = type(data_type).__name__
    if name in _PLAIN:
        return getattr(pa, _PLAIN[name])()
    if name in _TIMES:
        function, *arguments = _TIMES[name]
        return getattr(pa, function)(*arguments)
    if name == "DecimalType":
        return pa.decimal128(data_type.precision, data_type.scale)
    if name == "ArrayType":
        return pa.list_(_arrow_type(data_type.elementType, column))
    if name == "MapType":
        key = _arrow_type(data_type.keyType, column)
        return pa.map_(key, _arrow_type(data_type.valueType, column))
    if name == "StructType":
        fields = [(one.name, _arrow_type(one.dataType, column)) for one in data_type.fields]
        return pa.struct(fields)
    if hasattr(data_type, "sqlType"):
        # A user-defined type. Spark passes what it is made of.
        return _arrow_type(data_type.sqlType(), column)
    hint = _REFUSED.get(name, "Cast it to a string.").format(column=column)
    message = f'the column "{column}" has the type {data_type.simpleString()}'
    raise UsageError(f"{message}, which cannot be written", hint=hint)
