//! Detects the format and columns of inputs from their first bytes.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use arrow_schema::SchemaRef;

use super::hints::hint_pattern;
use super::later_input::GuessedDialect;
use super::options::{InputOrigin, ReadingOptions};
use super::partition_columns::warn_of_partition_folders;
use super::{BatchOrigin, RecordShape, SniffedInputs, raw_names, sample, with_input_name};
use crate::format::arrow::{ArrowFile, ArrowStreamCutter};
use crate::format::delimited::{CopyFormat, Dialect, Eol, first_line, parse_records};
use crate::format::keyed::KeyedFormat;
use crate::format::memory::ProgramBatches;
use crate::format::parquet::ParquetFile;
use crate::format::sniff::{Format, SniffedFormat, sniff};
use crate::format::{RowForm, infer};
use crate::plan::{are_fields, constant_names};
use crate::source::Input;
use crate::{Error, ErrorKind, Result};
use pgspate_base::{is_alike, truncate_ident};

impl SniffedInputs {
    /// Detects the format and columns from the first input with enough data. `table_columns` are
    /// the names of the table's columns, if the table exists. `decode` converts names from the
    /// input's encoding to UTF-8.
    ///
    /// # Errors
    /// [`ErrorKind::Source`] if all inputs are empty, or an input cannot be read.
    /// [`ErrorKind::Format`] if the format cannot be detected.
    pub(crate) fn sniff(
        inputs: Vec<Input>,
        table_columns: Option<&[String]>,
        options: &ReadingOptions,
        decode: &dyn Fn(&[u8]) -> Result<String>,
    ) -> Result<SniffedInputs> {
        let inputs: Arc<[Input]> = inputs.into();
        if let InputOrigin::Batches(batches) = &options.origin {
            return Ok(SniffedInputs::of_program_batches(inputs, batches, options));
        }
        let began = Instant::now();
        let Some((input, bytes)) = sample::choose_sample(&inputs)? else {
            return Err(Error::new(ErrorKind::Source, "all inputs are empty"));
        };
        let sample = InputSample { began, input, bytes: &bytes, table_columns, options };
        sample.sniff(&inputs, decode)
    }

    /// Returns the inputs of a program that calls pgspate with record batches. The batches have a
    /// schema, so nothing is detected.
    fn of_program_batches(
        inputs: Arc<[Input]>,
        batches: &Arc<dyn ProgramBatches>,
        options: &ReadingOptions,
    ) -> SniffedInputs {
        let schema = batches.schema();
        let mut sniffed = SniffedFormat::of(Format::Arrow);
        let columns = schema.fields().len();
        let s = if columns == 1 { "" } else { "s" };
        sniffed.evidence.push(format!("{}: {columns} column{s}", batches.name()));
        let origin = BatchOrigin::Program(Arc::clone(batches));
        let shape = RecordShape::Columns { schema, origin };
        let names_warning = warn_of_other_order(&shape, options);
        let header_overridden = renames_fields(&shape, options);
        SniffedInputs {
            inputs,
            began: batches.began().unwrap_or_else(Instant::now),
            sniffed,
            inferred: new_columns(batches.types(), &shape, options),
            snake_case: options.rows.snake_case,
            shape,
            header_overridden,
            makes_columns: false,
            header_line: Vec::new(),
            skipped: None,
            unused_options: Vec::new(),
            guessed: GuessedDialect::default(),
            names_warning,
            folders_warning: None,
        }
    }
}

/// The first bytes of an input, and what the user and the table say about its columns.
struct InputSample<'a> {
    /// When the sample was begun.
    began: Instant,
    input: &'a Input,
    bytes: &'a [u8],
    /// The names of the table's columns, if the table exists.
    table_columns: Option<&'a [String]>,
    options: &'a ReadingOptions,
}

/// How the records of an input are read, and the columns of a table for them.
struct SniffedRecords {
    shape: RecordShape,
    /// Names and types.
    columns: Vec<(String, String)>,
    header_line: Vec<u8>,
}

impl InputSample<'_> {
    /// Detects the format and columns of `inputs`; the sample is of one of them.
    fn sniff(
        &self,
        inputs: &Arc<[Input]>,
        decode: &dyn Fn(&[u8]) -> Result<String>,
    ) -> Result<SniffedInputs> {
        let InputSample { input, bytes, options, .. } = *self;
        if bytes.is_empty() && options.read.format.is_none() {
            let hint = "Name the format with `--format` to load an empty input as no rows. A table \
                        cannot be created from it.";
            return Err(with_input_name(
                Error::new(ErrorKind::Source, "the input is empty").hint(hint),
                input,
            ));
        }
        let (is_complete, expected_names) = (self.is_complete(), self.expected_names());
        let lines = &*without_skipped_lines(bytes, options.comment, options.skip_blank_lines);
        let sniffed = sniff(input.name(), lines, is_complete, expected_names, &options.read)
            .map_err(|error| hint_pattern(with_input_name(error, input), input, inputs))?;
        let header_warning = judge_header_doubt(&sniffed, self.table_columns, options)
            .map_err(|error| with_input_name(error, input))?;
        let SniffedRecords { shape, columns, header_line } = match sniffed.format.rows() {
            RowForm::Delimited => self.sniff_fields(&sniffed, lines, decode)?,
            RowForm::Keyed(format) => {
                self.sniff_keys(format).map_err(|error| with_input_name(error, input))?
            }
            RowForm::Columnar => self.sniff_schema(sniffed.format)?,
        };
        let names_warning = header_warning.or_else(|| warn_of_other_order(&shape, options));
        let folders_warning =
            warn_of_partition_folders(inputs, &shape, self.table_columns, options);
        let inferred = new_columns(columns, &shape, options);
        let header_overridden = renames_fields(&shape, options);
        let is_tsv = sniffed.format == Format::Tsv;
        Ok(SniffedInputs {
            inputs: Arc::clone(inputs),
            began: self.began,
            sniffed,
            shape,
            inferred,
            header_overridden,
            snake_case: options.rows.snake_case,
            makes_columns: self.makes_columns(),
            header_line,
            skipped: None,
            unused_options: Vec::new(),
            guessed: GuessedDialect {
                header: options.read.header.is_none(),
                quote: options.read.quote.is_none() && is_tsv,
                null: options.read.null.is_none(),
                escape: options.read.escape.is_none(),
                known_names: expected_names.map(<[String]>::to_vec),
                sampled: inputs.iter().position(|it| std::ptr::eq(it, input)).unwrap_or_default(),
            },
            names_warning,
            folders_warning,
        })
    }

    /// Returns whether the sample is the whole input.
    fn is_complete(&self) -> bool {
        self.bytes.len() < sample::SAMPLE_BYTES
    }

    /// Returns the names that make the first line a header. Names from `--columns` come first.
    fn expected_names(&self) -> Option<&[String]> {
        self.options.rows.columns.as_deref().or(self.table_columns)
    }

    /// Returns whether columns of the table are made from the sample.
    fn makes_columns(&self) -> bool {
        self.table_columns.is_none() || self.options.rows.add_columns
    }

    /// Reads the header and the first rows of delimited text. `lines` is the sample without lines
    /// that are skipped.
    fn sniff_fields(
        &self,
        sniffed: &SniffedFormat,
        lines: &[u8],
        decode: &dyn Fn(&[u8]) -> Result<String>,
    ) -> Result<SniffedRecords> {
        let dialect = dialect(sniffed, self.options);
        let eol = Eol::from(sniffed.line_end);
        let body = &lines[sniffed.mark_bytes.min(lines.len())..];
        // The header alone is enough if the table exists.
        let limit = if self.makes_columns() { sample::SAMPLE_ROWS_MAX } else { 1 };
        let mut rows = parse_records(&dialect, eol, body, self.is_complete(), limit);
        let (mut names, mut header, mut header_line) = (None, None, Vec::new());
        if sniffed.header && !rows.is_empty() {
            first_line(&dialect, eol, body).clone_into(&mut header_line);
            if !header_line.ends_with(eol.bytes()) {
                header_line.extend_from_slice(eol.bytes());
            }
            let mut first = rows.remove(0);
            first.truncate(first.len() - usize::from(dialect.trailing_delimiter));
            let first: Vec<_> = first.into_iter().map(Option::unwrap_or_default).collect();
            header = Some(infer::column_names(raw_names(&first)));
            let decoded: Result<Vec<_>> = first.iter().map(|name| decode(name)).collect();
            names = Some(infer::column_names(decoded?));
        }
        let (user_names, dates) =
            (self.options.rows.columns.as_deref(), &self.options.rows.date_formats);
        let columns = sample::infer_columns(names.as_deref(), &rows, user_names, dates);
        let shape = RecordShape::Delimited { dialect, names, header };
        Ok(SniffedRecords { shape, columns, header_line })
    }

    /// Reads the keys of the first records, such as JSON objects.
    fn sniff_keys(&self, format: &'static KeyedFormat) -> Result<SniffedRecords> {
        let columns = (format.columns)(self.bytes, &self.options.rows.date_formats);
        let mut keys: Vec<_> = columns.iter().map(|column| column.name.clone()).collect();
        if keys.is_empty() && is_broken_object(self.bytes) {
            let message = "could not read the first record: it is not valid JSON, or too long";
            return Err(Error::new(ErrorKind::Format, message).hint(
                "JSON has no NaN and no Infinity: write null. Keys and strings need double \
                 quotes. The first record may have up to 1 MiB.",
            ));
        }
        if !self.bytes.contains(&b'{') && keys.is_empty() {
            keys.push(any_column(self.expected_names())?);
        }
        let keys = (!(format.is_by_position)(self.bytes)).then_some(keys);
        let columns = columns.iter().map(|it| (it.name.clone(), it.ty.sql().to_owned())).collect();
        let shape = RecordShape::Keyed { format, keys };
        Ok(SniffedRecords { shape, columns, header_line: Vec::new() })
    }

    /// Reads the schema of record batches.
    fn sniff_schema(&self, format: Format) -> Result<SniffedRecords> {
        let is_stream = format == Format::Arrow && !is_arrow_file(self.bytes);
        let origin = if is_stream { BatchOrigin::Stream } else { BatchOrigin::File };
        let schema = read_schema(self.input, self.bytes, format)?;
        let columns = crate::encode::arrow::schema_types(&schema);
        let shape = RecordShape::Columns { schema, origin };
        Ok(SniffedRecords { shape, columns, header_line: Vec::new() })
    }
}

/// Returns whether the first object of a sample has something in it, so that it should have keys.
fn is_broken_object(sample: &[u8]) -> bool {
    let Some(at) = sample.iter().position(|byte| *byte == b'{') else { return false };
    !sample[at + 1..].trim_ascii_start().starts_with(b"}")
}

/// Returns a column for an input without records, which is written as no rows, and for records that
/// are refused one by one.
fn any_column(names: Option<&[String]>) -> Result<String> {
    names.and_then(<[String]>::first).cloned().ok_or_else(|| {
        let message = "the input has no objects, so the columns of the table are not known";
        Error::new(ErrorKind::Format, message).hint("Create the table first, and load into it.")
    })
}

/// Refuses a first line that may be a header or a row, if a wrong guess would lose a row or write a
/// header as a row. Returns a guess that the user must know of, in words: the names of a new table.
fn judge_header_doubt(
    sniffed: &SniffedFormat,
    table_columns: Option<&[String]>,
    options: &ReadingOptions,
) -> Result<Option<String>> {
    let rows = &options.rows;
    let Some(doubt) = sniffed.header_doubt else {
        // With `--columns`, nothing else compares the names of the first line.
        let is_unknown = sniffed.header && options.read.header.is_none() && !sniffed.has_known_name;
        if let (true, Some(_), Some((_, fields))) = (is_unknown, &rows.columns, sniffed.title) {
            let doubt = format!("it has 1 field, and most other lines have {fields}");
            return Err(header_doubt_error(&doubt));
        }
        return Ok((is_unknown && rows.columns.is_some()).then(|| {
            "the first line was taken for names of columns, although it has none of the names of \
             `--columns`; if it is a row, load with `--header no`, and if not, with `--header yes`"
                .to_owned()
        }));
    };
    let ignores_names = rows.columns.is_some() || rows.add_columns || rows.ignore_unknown;
    match (sniffed.header, table_columns) {
        (true, None) if rows.columns.is_none() => Ok(Some(format!(
            "the first line was taken for the names of the columns, although {doubt}; if it is a \
             row, load with `--header no`"
        ))),
        // The table's columns do not have these names, so the plan refuses them.
        (true, Some(_)) if !ignores_names => Ok(None),
        _ => Err(header_doubt_error(doubt)),
    }
}

fn header_doubt_error(doubt: &str) -> Error {
    let message = format!("could not tell whether the first line names the columns: {doubt}");
    Error::new(ErrorKind::Format, message)
        .hint("Say so with `--header yes`, or `--header no` if it is a row.")
}

/// Returns the warning that `--columns` gives a field the column of another field's name. Fields go
/// by their order then, except those of records with keys.
fn warn_of_other_order(shape: &RecordShape, options: &ReadingOptions) -> Option<String> {
    if matches!(shape, RecordShape::Keyed { .. }) {
        return None;
    }
    if !renames_fields(shape, options) {
        return None;
    }
    let (names, columns) = (shape.names()?, options.rows.columns.as_ref()?);
    let is_misplaced = |(name, column): &(&String, &String)| {
        !is_alike(name, column) && columns.iter().any(|other| is_alike(other, name))
    };
    let (name, column) = names.iter().zip(columns).find(is_misplaced)?;
    Some(format!(
        "field \"{name}\" is loaded into column \"{column}\", because `--columns` goes by the \
         order of the fields; to go by their names, leave `--columns` out"
    ))
}

/// Returns whether `--columns` gives the fields other names. Of records with a schema it may choose
/// fields by their names.
fn renames_fields(shape: &RecordShape, options: &ReadingOptions) -> bool {
    let Some(columns) = &options.rows.columns else { return false };
    let has_schema = matches!(shape, RecordShape::Columns { .. }) && !options.rows.snake_case;
    !(has_schema && shape.names().is_some_and(|names| are_fields(columns, &names)))
}

/// Returns the columns of a new table: the inferred columns under the user's names, and as text the
/// columns that the input lacks. Names are as the server keeps them.
fn new_columns(
    inferred: Vec<(String, String)>,
    shape: &RecordShape,
    options: &ReadingOptions,
) -> Vec<(String, String)> {
    let mut columns = with_user_names(inferred, shape, options);
    columns.iter_mut().for_each(|(name, _)| *name = truncate_ident(name).to_owned());
    for name in constant_names(&options.rows).map(truncate_ident) {
        if !columns.iter().any(|(column, _)| column == name) {
            columns.push((name.to_owned(), "text".to_owned()));
        }
    }
    columns
}

/// Gives inferred columns the names of `--columns`, or else names in snake case if the options ask
/// for it. If records have keys, `--columns` names keys; those that the sample lacks are text. It
/// may name the fields of a schema, too. A wrong number of names is found by the plan.
fn with_user_names(
    mut columns: Vec<(String, String)>,
    shape: &RecordShape,
    options: &ReadingOptions,
) -> Vec<(String, String)> {
    let chooses_fields = match shape {
        RecordShape::Keyed { keys, .. } => keys.is_some() && !columns.is_empty(),
        RecordShape::Columns { .. } => !renames_fields(shape, options),
        RecordShape::Delimited { .. } => false,
    };
    match &options.rows.columns {
        Some(names) if chooses_fields => {
            let type_of = |name: &String| columns.iter().find(|(key, _)| key == name);
            let column = |name| type_of(name).cloned().unwrap_or((name.clone(), "text".to_owned()));
            return names.iter().map(column).collect();
        }
        Some(names) if names.len() == columns.len() => {
            columns.iter_mut().zip(names).for_each(|(column, name)| name.clone_into(&mut column.0));
        }
        None if options.rows.snake_case => {
            columns.iter_mut().for_each(|column| column.0 = infer::snake_case(&column.0));
        }
        _ => {}
    }
    columns
}

/// Reads the schema of a Parquet or Arrow input that begins with `sample`. Blocks the calling
/// thread.
///
/// # Errors
/// [`ErrorKind::Source`] if the input cannot be read, [`ErrorKind::Format`] if the input does not
/// have the format.
pub fn read_schema(input: &Input, sample: &[u8], format: Format) -> Result<SchemaRef> {
    let name = input.name();
    Ok(match format {
        Format::Parquet => Arc::clone(ParquetFile::open(name, input.ranges()?)?.schema()),
        _ if is_arrow_file(sample) => Arc::clone(ArrowFile::open(name, input.ranges()?)?.schema()),
        _ => {
            let start = Box::new(std::io::Cursor::new(sample.to_vec()));
            ArrowStreamCutter::open(name, start, 0)?.schema()
        }
    })
}

fn is_arrow_file(sample: &[u8]) -> bool {
    sample.starts_with(b"ARROW1")
}

/// Returns the dialect of delimited text: what was detected, and the user's options.
pub fn dialect(sniffed: &SniffedFormat, options: &ReadingOptions) -> Dialect {
    let base = if sniffed.format == Format::Text { Dialect::text() } else { Dialect::csv() };
    let is_text = base.format == CopyFormat::Text;
    Dialect {
        delimiter: sniffed.delimiter,
        quote: if is_text { None } else { sniffed.quote },
        escape: if is_text { base.escape } else { sniffed.escape },
        null: sniffed.null.clone().into_bytes(),
        comment: options.comment,
        skip_blank_lines: options.skip_blank_lines,
        trailing_delimiter: sniffed.trailing_delimiter,
        format: base.format,
    }
}

/// Returns the sample without comment lines and without empty lines, if the options skip them.
pub(super) fn without_skipped_lines(
    sample: &[u8],
    comment: Option<u8>,
    skip_blank_lines: bool,
) -> Cow<'_, [u8]> {
    if comment.is_none() && !skip_blank_lines {
        return Cow::Borrowed(sample);
    }
    let is_kept = |line: &&[u8]| match *line {
        [first, ..] if comment == Some(*first) => false,
        [b'\n' | b'\r'] | b"\r\n" => !skip_blank_lines,
        _ => true,
    };
    let end = if sample.contains(&b'\n') { b'\n' } else { b'\r' };
    Cow::Owned(
        sample.split_inclusive(|byte| *byte == end).filter(is_kept).collect::<Vec<_>>().concat(),
    )
}
