//! What the inputs are, and how they become chunks and rows.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_schema::{Field, SchemaRef};
use serde_json::{Map, Value};

use super::watch::Watch;
use super::{Options, program, sample};
use crate::copy::Job;
use crate::format::arrow::{ArrowCutter, ArrowFile, ArrowStreamCutter};
use crate::format::batches::{BatchColumn, BatchesEncoder};
use crate::format::delimited::{
    self, CutOptions, DelimitedCutter, DelimitedEncoder, Dialect, Eol, Family, Layout, MapFields,
    first_line, parse_records,
};
use crate::format::json::{CutLimits, JsonColumn, JsonCutter, JsonEncoder, JsonInput, JsonOptions};
use crate::format::memory::{Batches, BatchesCutter};
use crate::format::parquet::{ParquetCutter, ParquetFile};
use crate::format::sniff::{Format, Sniffed, sniff};
use crate::format::{ChainCutter, ChunkEncoder, Cutter, OpenCutter, infer};
use crate::plan::{InputFacts, Plan, Route, match_fields};
use crate::source::Input;
use crate::target::{PgType, Table};
use crate::{Error, Kind, Result};

/// The inputs and what was found out about them.
#[derive(Clone)]
pub(super) struct Reading {
    pub(super) inputs: Arc<[Input]>,
    /// What they are, from the first one.
    pub(super) sniffed: Sniffed,
    shape: Shape,
    /// The columns that `--create` would make.
    pub(super) inferred: Vec<(String, String)>,
    header_overridden: bool,
    /// The first input's header as it stands there.
    header_line: Vec<u8>,
}

/// How records are found and read.
#[derive(Clone)]
enum Shape {
    /// `header` is the names as they stand in the input.
    Delimited {
        dialect: Dialect,
        names: Option<Vec<String>>,
        header: Option<Vec<String>>,
    },
    Json {
        keys: Vec<String>,
    },
    Columns {
        schema: SchemaRef,
        origin: Origin,
    },
}

/// Where record batches come from.
#[derive(Clone)]
enum Origin {
    /// A file that is read at random.
    File,
    /// A stream of Arrow IPC.
    Stream,
    /// The program.
    Program(Arc<dyn Batches>),
}

impl Reading {
    /// Looks at the first input that tells what they are. `known` are the columns of the table, if
    /// there is one already; `decode` turns names in the input's encoding into text.
    pub(super) fn of(
        inputs: Vec<Input>,
        known: Option<&[String]>,
        options: &Options,
        decode: &dyn Fn(&[u8]) -> Result<String>,
    ) -> Result<Reading> {
        let inputs: Arc<[Input]> = inputs.into();
        if let Some(batches) = &options.batches {
            return Ok(Reading::of_program(inputs, batches, options));
        }
        let Some((input, sample)) = sample::telling(&inputs)? else {
            return Err(Error::new(Kind::Source, "all inputs are empty"));
        };
        look(&inputs, input, &sample, known, options, decode)
    }

    /// What a program gives is what it says it is.
    fn of_program(inputs: Arc<[Input]>, batches: &Arc<dyn Batches>, options: &Options) -> Reading {
        let schema = batches.schema();
        let mut sniffed = Sniffed::of(Format::Arrow);
        let columns = schema.fields().len();
        let s = if columns == 1 { "" } else { "s" };
        sniffed.evidence.push(format!("{}: {columns} column{s}", batches.name()));
        Reading {
            inputs,
            sniffed,
            inferred: batches.types(),
            shape: Shape::Columns { schema, origin: Origin::Program(Arc::clone(batches)) },
            header_overridden: options.columns.is_some(),
            header_line: Vec::new(),
        }
    }

    /// What plans depend on.
    pub(super) fn facts(&self) -> InputFacts {
        let (names, types) = match &self.shape {
            Shape::Delimited { names, .. } => (names.clone(), None),
            Shape::Json { keys } => (Some(keys.clone()), None),
            Shape::Columns { schema, origin } => {
                let fields = schema.fields().iter();
                let names = fields.clone().map(|field| field.name().clone()).collect();
                let types: Vec<Field> = fields.map(|field| field.as_ref().clone()).collect();
                let by_position =
                    matches!(origin, Origin::Program(batches) if !batches.has_names());
                ((!by_position).then_some(names), Some(types))
            }
        };
        InputFacts {
            names: if self.header_overridden { None } else { names },
            types,
            is_stream: self.is_stream(),
            is_fleeting: !self.inputs.iter().all(Input::is_lasting),
            is_delimited: matches!(self.shape, Shape::Delimited { .. }),
            is_csv: matches!(&self.shape, Shape::Delimited { dialect, .. }
                if dialect.family == Family::Csv),
            stored_bytes: self.stored_bytes(),
        }
    }

    pub(super) fn is_stream(&self) -> bool {
        self.inputs.iter().any(Input::is_stream)
    }

    pub(super) fn stored_bytes(&self) -> Option<u64> {
        self.inputs.iter().map(Input::stored_bytes).sum()
    }

    /// The cutter over all inputs, from the start.
    pub(super) fn cutter(&self, plan: &Plan, watch: &Arc<Watch>) -> Box<dyn Cutter> {
        let (reading, watch) = (self.clone(), Arc::clone(watch));
        let chunk_bytes = plan.chunk_bytes;
        let map = self.mapping(plan);
        let types = self.types(plan);
        let names = match &self.shape {
            Shape::Columns { schema, .. } => program::Names::of(schema, plan),
            _ => program::Names::default(),
        };
        let open: OpenCutter = Box::new(move |nth| {
            let input = &reading.inputs[nth];
            let cutter = match &reading.shape {
                Shape::Columns { origin: Origin::Program(batches), .. } => {
                    let cutter = |it| BatchesCutter::new(names.tell(it), nth).of_program();
                    batches.open(&types).map(|it| Box::new(cutter(it)) as _)
                }
                _ => reading.open(nth, chunk_bytes, &map, &watch),
            };
            cutter.map_err(|error| named(error, input))
        });
        Box::new(ChainCutter::new(self.inputs.len(), open))
    }

    pub(super) fn open(
        &self,
        nth: usize,
        chunk_bytes: usize,
        map: &MapFields,
        watch: &Watch,
    ) -> Result<Box<dyn Cutter>> {
        let input = &self.inputs[nth];
        self.check_format(input)?;
        let reader = || {
            let reader = input.reader()?;
            watch.follow(reader.progress());
            Ok::<_, Error>(Box::new(reader))
        };
        Ok(match &self.shape {
            Shape::Delimited { dialect, .. } => {
                let (dialect, header, map) = (dialect.clone(), self.sniffed.header, map.clone());
                let options = CutOptions { dialect, header, chunk_bytes, map };
                Box::new(DelimitedCutter::open(input.name(), reader()?, options)?)
            }
            Shape::Json { .. } => {
                let one = JsonInput { name: input.name().to_owned(), reader: reader()? };
                let limits = CutLimits { chunk_bytes, ..CutLimits::default() };
                Box::new(JsonCutter::new(vec![one], limits))
            }
            Shape::Columns { schema, origin: Origin::Stream } => {
                let cutter = ArrowStreamCutter::open(input.name(), reader()?, nth)?;
                same_schema(schema, &cutter.schema())?;
                Box::new(cutter)
            }
            Shape::Columns { schema, .. } => {
                let ranges = input.ranges()?;
                if self.sniffed.format == Format::Parquet {
                    let file = ParquetFile::open(input.name(), ranges)?;
                    same_schema(schema, file.schema())?;
                    Box::new(ParquetCutter::new(Arc::new(file), nth, None))
                } else {
                    let file = ArrowFile::open(input.name(), ranges)?;
                    same_schema(schema, file.schema())?;
                    Box::new(ArrowCutter::new(Arc::new(file), nth))
                }
            }
        })
    }

    /// The type of the table's column that each column of record batches goes to.
    fn types(&self, plan: &Plan) -> Vec<Option<PgType>> {
        let Shape::Columns { schema, .. } = &self.shape else { return Vec::new() };
        let mut types = vec![None; schema.fields().len()];
        for column in &plan.columns {
            if let Some(ty) = types.get_mut(column.field) {
                *ty = Some(column.ty.clone());
            }
        }
        types
    }

    /// All inputs are in the format of the first one, as far as their signatures tell.
    fn check_format(&self, input: &Input) -> Result<()> {
        let expected = self.sniffed.format;
        // A look costs a request where the input is far away; most are named like the first one.
        if input.is_stream() || input.extension() == self.inputs[0].extension() {
            return Ok(());
        }
        let found = match input.peek(8)?.as_slice() {
            [b'P', b'A', b'R', b'1', ..] => Format::Parquet,
            [b'A', b'R', b'R', b'O', b'W', b'1', ..] => Format::Arrow,
            _ => return Ok(()),
        };
        if found == expected {
            return Ok(());
        }
        let (found, expected) = (found.name(), expected.name());
        let message = format!("its format is {found}, that of the first input {expected}");
        Err(Error::new(Kind::Format, message)
            .hint("Load inputs of different formats one after the other."))
    }

    /// From each input's own header to the plan's columns.
    pub(super) fn mapping(&self, plan: &Plan) -> MapFields {
        let trailing = match &self.shape {
            Shape::Delimited { dialect, .. } => usize::from(dialect.trailing_delimiter),
            _ => 0,
        };
        let positions: Vec<usize> = plan.columns.iter().map(|column| column.field).collect();
        let expected = match &self.shape {
            Shape::Delimited { header: Some(header), .. } if !self.header_overridden => {
                Some(header.clone())
            }
            _ => None,
        };
        let fields = expected.as_ref().map_or(positions.len(), Vec::len) + trailing;
        Arc::new(move |header| {
            let field_of = match (&expected, header) {
                (Some(expected), Some(header)) => {
                    let found = infer::column_names(raw_names(header));
                    let matched = match_fields(expected, &found)?;
                    positions.iter().map(|position| matched[*position]).collect()
                }
                _ => positions.clone(),
            };
            Ok((fields, field_of))
        })
    }

    /// Makes encoders for lanes.
    pub(super) fn encoder(
        &self,
        plan: &Plan,
        table: &Table,
        server_version: u32,
        ignore_unknown: bool,
    ) -> Result<Box<dyn Fn() -> Box<dyn ChunkEncoder> + Send + Sync>> {
        match &self.shape {
            Shape::Delimited { dialect, .. } => {
                let dialect = dialect.clone();
                let columns: Vec<_> = plan.columns.iter().map(delimited_column).collect();
                let layout = self.first_layout(plan);
                Ok(Box::new(move || {
                    let (dialect, columns) = (dialect.clone(), columns.clone());
                    let encoder = DelimitedEncoder::new(dialect, columns, server_version);
                    Box::new(encoder.with_records_like(layout.clone()))
                }))
            }
            Shape::Json { keys } => {
                let options = self.json_options(plan, table, keys, ignore_unknown);
                Ok(Box::new(move || Box::new(JsonEncoder::new(options.clone()))))
            }
            Shape::Columns { .. } => {
                let columns = batch_columns(plan)?;
                BatchesEncoder::new(columns.clone())?;
                Ok(Box::new(move || {
                    Box::new(BatchesEncoder::new(columns.clone()).expect("made once already"))
                }))
            }
        }
    }

    /// What a file of records must begin with so that it is loaded as the inputs are.
    pub(super) fn reject_header(&self) -> &[u8] {
        &self.header_line
    }

    /// The format of a file of records: that of the inputs, or JSON in place of record batches.
    pub(super) fn reject_format(&self) -> Format {
        match &self.shape {
            Shape::Delimited { .. } => self.sniffed.format,
            Shape::Json { .. } | Shape::Columns { .. } => Format::Json,
        }
    }

    /// How the first input's records are laid out.
    fn first_layout(&self, plan: &Plan) -> Layout {
        let field_of: Vec<usize> = plan.columns.iter().map(|column| column.field).collect();
        let eol = Eol::from(self.sniffed.line_end);
        Layout { eol, fields: field_of.len(), field_of }
    }

    fn json_options(
        &self,
        plan: &Plan,
        table: &Table,
        keys: &[String],
        ignore_unknown: bool,
    ) -> JsonOptions {
        let columns = plan.columns.iter().map(|column| JsonColumn {
            name: column.name.clone(),
            ty: column.ty.clone(),
            field: column.field_encoder(),
        });
        let mut options = JsonOptions::new(columns.collect());
        // A key may differ from its column in case.
        for (nth, column) in plan.columns.iter().enumerate() {
            if let Some(key) = keys.get(column.field).filter(|_| !self.header_overridden) {
                options.keys.insert(key.clone(), nth);
            }
        }
        options.ignore_unknown = ignore_unknown;
        if !self.header_overridden {
            let names = table.columns.iter().map(|column| &column.name);
            let both = names.flat_map(|name| [name.clone(), name.to_lowercase()]);
            options.table_columns = Arc::new(both.collect());
        }
        options.inputs = self.names().into();
        options
    }

    /// What of the reading changes the rows or the chunks, by name.
    pub(super) fn identity(&self) -> Map<String, Value> {
        let mut options = Map::new();
        let mut add = |name: &str, value: Value| options.insert(name.to_owned(), value);
        add("format", self.sniffed.format.name().into());
        if let Shape::Delimited { dialect, .. } = &self.shape {
            let char_of = |byte: u8| char::from(byte).to_string();
            let optional = |byte: Option<u8>| byte.map_or(Value::Null, |it| char_of(it).into());
            add("header", self.sniffed.header.into());
            add("delimiter", char_of(dialect.delimiter).into());
            add("quote", optional(dialect.quote));
            add("escape", char_of(dialect.escape).into());
            add("null", String::from_utf8_lossy(&dialect.null).into());
            add("comment", optional(dialect.comment));
            add("skip-blank-lines", dialect.skip_blank_lines.into());
        }
        options
    }

    /// Takes in a key of JSON that the sample lacks; whether it is new.
    pub(super) fn add_key(&mut self, key: &str) -> bool {
        match &mut self.shape {
            Shape::Json { keys } if !keys.iter().any(|known| known == key) => {
                keys.push(key.to_owned());
                true
            }
            _ => false,
        }
    }

    /// The inputs' names.
    pub(super) fn names(&self) -> Vec<String> {
        self.inputs.iter().map(|input| input.name().to_owned()).collect()
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("binary_sql", &self.binary_sql).finish_non_exhaustive()
    }
}

fn look(
    inputs: &Arc<[Input]>,
    input: &Input,
    sample: &[u8],
    table: Option<&[String]>,
    options: &Options,
    decode: &dyn Fn(&[u8]) -> Result<String>,
) -> Result<Reading> {
    let complete = sample.len() < sample::BYTES;
    if sample.is_empty() && options.read.format.is_none() {
        let hint = "Name the format with `--format` to load an empty input as no rows.";
        return Err(named(Error::new(Kind::Source, "the input is empty").hint(hint), input));
    }
    // Names that the user gives are as good as the table's own.
    let known = options.columns.as_deref().or(table);
    let lines = &*counted_lines(sample, options);
    let sniffed = sniff(input.name(), lines, complete, known, &options.read)
        .map_err(|error| named(error, input))?;
    let wants_columns = table.is_none();
    let mut header_line = Vec::new();
    let (shape, inferred) = match sniffed.format {
        Format::Csv | Format::Tsv | Format::Text => {
            let dialect = dialect(&sniffed, options);
            let eol = Eol::from(sniffed.line_end);
            let body = &lines[sniffed.mark_bytes.min(lines.len())..];
            // A header alone will do where the table is there.
            let limit = if wants_columns { sample::ROWS } else { 1 };
            let mut rows = parse_records(&dialect, eol, body, complete, limit);
            let (mut names, mut header) = (None, None);
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
            let inferred = sample::columns(names.as_deref(), &rows, options.columns.as_deref());
            (Shape::Delimited { dialect, names, header }, inferred)
        }
        Format::Json => {
            let columns = infer::columns_of_json(sample);
            let keys = columns.iter().map(|column| column.name.clone()).collect();
            let inferred = columns.iter().map(|it| (it.name.clone(), it.ty.sql().to_owned()));
            (Shape::Json { keys }, inferred.collect())
        }
        format @ (Format::Parquet | Format::Arrow) => {
            let is_stream = format == Format::Arrow && !is_arrow_file(sample);
            let origin = if is_stream { Origin::Stream } else { Origin::File };
            columnar(&schema(input, sample, format)?, origin)
        }
    };
    let header_overridden = options.columns.is_some();
    let inputs = Arc::clone(inputs);
    Ok(Reading { inputs, sniffed, shape, inferred, header_overridden, header_line })
}

/// The columns of an input of Parquet or Arrow that begins with `sample`. Blocks.
///
/// # Errors
/// It cannot be read, or is not of this format.
pub fn schema(input: &Input, sample: &[u8], format: Format) -> Result<SchemaRef> {
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

fn columnar(schema: &SchemaRef, origin: Origin) -> (Shape, Vec<(String, String)>) {
    let inferred = crate::encode::arrow::schema_types(schema);
    (Shape::Columns { schema: Arc::clone(schema), origin }, inferred)
}

/// How delimited text is read of which this was found out.
pub fn dialect(sniffed: &Sniffed, options: &Options) -> Dialect {
    let base = if sniffed.format == Format::Text { Dialect::text() } else { Dialect::csv() };
    let is_text = base.family == Family::Text;
    Dialect {
        delimiter: sniffed.delimiter,
        quote: if is_text { None } else { sniffed.quote },
        escape: if is_text { base.escape } else { sniffed.escape },
        null: sniffed.null.clone().into_bytes(),
        comment: options.comment,
        skip_blank_lines: options.skip_blank_lines,
        trailing_delimiter: sniffed.trailing_delimiter,
        family: base.family,
    }
}

fn delimited_column(column: &crate::plan::PlannedColumn) -> delimited::Column {
    delimited::Column {
        name: column.name.clone(),
        encoder: column.field_encoder(),
        force_null: column.force_null,
        force_not_null: column.force_not_null,
    }
}

fn batch_columns(plan: &Plan) -> Result<Vec<BatchColumn>> {
    let column = |column: &crate::plan::PlannedColumn| match &column.route {
        Route::Batch(encoder) => Ok(BatchColumn {
            name: column.name.clone(),
            index: column.field,
            encoder: encoder.clone(),
        }),
        _ => Err(Error::new(Kind::Bug, "a column of a batch was planned as a field")),
    };
    plan.columns.iter().map(column).collect()
}

fn same_schema(first: &SchemaRef, other: &SchemaRef) -> Result<()> {
    let names = |schema: &SchemaRef| -> Vec<_> {
        let fields = schema.fields().iter();
        fields.map(|field| (field.name().clone(), field.data_type().clone())).collect()
    };
    let (first, other) = (names(first), names(other));
    if first == other {
        return Ok(());
    }
    let differs = other.iter().find(|field| !first.contains(field));
    let name = differs.or(first.last()).map_or("", |(name, _)| name.as_str());
    let message = format!("its columns differ from those of the first input: \"{name}\"");
    Err(Error::new(Kind::Format, message)
        .hint("Load inputs with different columns one after the other."))
}

/// Names to compare with those of other inputs: each byte a character where they are no UTF-8, so
/// that different names stay different.
fn raw_names(names: &[Vec<u8>]) -> Vec<String> {
    let raw = |name: &Vec<u8>| match std::str::from_utf8(name) {
        Ok(name) => name.to_owned(),
        Err(_) => name.iter().copied().map(char::from).collect(),
    };
    names.iter().map(raw).collect()
}

/// The sample without lines that are passed over.
fn counted_lines<'a>(sample: &'a [u8], options: &Options) -> Cow<'a, [u8]> {
    if options.comment.is_none() && !options.skip_blank_lines {
        return Cow::Borrowed(sample);
    }
    let is_counted = |line: &&[u8]| match *line {
        [first, ..] if options.comment == Some(*first) => false,
        [b'\n' | b'\r'] | b"\r\n" => !options.skip_blank_lines,
        _ => true,
    };
    let is_cr = !sample.contains(&b'\n');
    let end = if is_cr { b'\r' } else { b'\n' };
    Cow::Owned(
        sample.split_inclusive(|byte| *byte == end).filter(is_counted).collect::<Vec<_>>().concat(),
    )
}

/// Adds the input's name to an error's place.
fn named(error: Error, input: &Input) -> Error {
    let mut place = error.place().cloned().unwrap_or_default();
    place.source.get_or_insert_with(|| input.name().to_owned());
    error.at(place)
}
