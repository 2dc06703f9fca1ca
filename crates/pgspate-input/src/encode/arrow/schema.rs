//! Chooses the columns of a table that `--create` creates for an Arrow schema.

use arrow_schema::{DataType, Field, Schema};

use super::{EXTENSION, PARQUET_INTERVAL, array, is_uuid};

/// Returns name and SQL type of each column of a table for `schema`. Each SQL type can hold all
/// values of its Arrow type, except values that no PostgreSQL type can hold (dates out of its
/// range).
pub fn schema_types(schema: &Schema) -> Vec<(String, String)> {
    schema.fields().iter().map(|field| (field.name().clone(), sql_type(field))).collect()
}

fn sql_type(field: &Field) -> String {
    use DataType as D;
    let extension = field.metadata().get(EXTENSION).map(String::as_str);
    let name = match field.data_type() {
        D::Boolean => "boolean",
        D::Int8 | D::Int16 | D::UInt8 => "smallint",
        D::Int32 | D::UInt16 => "integer",
        D::Int64 | D::UInt32 => "bigint",
        D::UInt64 => "numeric(20,0)",
        D::Float16 | D::Float32 => "real",
        D::Float64 => "double precision",
        D::Decimal32(precision, scale)
        | D::Decimal64(precision, scale)
        | D::Decimal128(precision, scale)
        | D::Decimal256(precision, scale) => return numeric_type(*precision, *scale),
        D::Date32 => "date",
        // Some programs store times of day in this type, too.
        D::Date64 => "timestamp",
        D::Time32(_) | D::Time64(_) => "time",
        D::Timestamp(_, Some(_)) => "timestamptz",
        D::Timestamp(_, None) => "timestamp",
        D::Duration(_) | D::Interval(_) => "interval",
        D::FixedSizeBinary(12) if extension == Some(PARQUET_INTERVAL) => "interval",
        D::FixedSizeBinary(_) if is_uuid(field) => "uuid",
        D::Binary | D::LargeBinary | D::BinaryView | D::FixedSizeBinary(_) => "bytea",
        D::Utf8 | D::LargeUtf8 | D::Utf8View if extension == Some("arrow.json") => "jsonb",
        D::Utf8 | D::LargeUtf8 | D::Utf8View | D::Null => "text",
        D::Dictionary(_, values) => {
            return sql_type(&field.clone().with_data_type(values.as_ref().clone()));
        }
        D::RunEndEncoded(_, values) => return sql_type(values),
        D::Struct(_) | D::Map(..) | D::Union(..) => "jsonb",
        list => match array::child(list) {
            // A PostgreSQL array must be rectangular. A list of lists need not be rectangular.
            Some(child) if is_scalar(child.data_type()) => return format!("{}[]", sql_type(child)),
            _ => "jsonb",
        },
    };
    name.to_owned()
}

fn is_scalar(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => is_scalar(values),
        DataType::RunEndEncoded(_, values) => is_scalar(values.data_type()),
        other => !other.is_nested(),
    }
}

/// Returns numeric with precision and scale. PostgreSQL supports negative scales only since version
/// 15, so a negative scale becomes a larger precision.
fn numeric_type(precision: u8, scale: i8) -> String {
    let precision = i32::from(precision);
    let scale = i32::from(scale);
    match scale {
        ..0 => format!("numeric({},0)", precision - scale),
        _ => format!("numeric({},{scale})", precision.max(scale)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_schema::TimeUnit;

    use super::*;

    #[test]
    fn each_arrow_type_has_an_sql_type() {
        let item = |data_type| Arc::new(Field::new("item", data_type, true));
        for (data_type, sql) in [
            (DataType::Int8, "smallint"),
            (DataType::UInt32, "bigint"),
            (DataType::UInt64, "numeric(20,0)"),
            (DataType::Decimal128(15, 2), "numeric(15,2)"),
            (DataType::Decimal128(5, -3), "numeric(8,0)"),
            (DataType::Decimal256(3, 5), "numeric(5,5)"),
            (DataType::Timestamp(TimeUnit::Nanosecond, None), "timestamp"),
            (DataType::Timestamp(TimeUnit::Second, Some("UTC".into())), "timestamptz"),
            (DataType::List(item(DataType::Float32)), "real[]"),
            (DataType::List(item(DataType::List(item(DataType::Int8)))), "jsonb"),
            (DataType::Dictionary(DataType::Int8.into(), DataType::Utf8.into()), "text"),
            (DataType::Null, "text"),
        ] {
            let schema = Schema::new(vec![Field::new("c", data_type.clone(), true)]);
            assert_eq!(schema_types(&schema), [("c".to_owned(), sql.to_owned())], "{data_type}");
        }
    }
}
