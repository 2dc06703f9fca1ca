//! Reads inputs: finds the sources, detects the format, and cuts and encodes the records.
//!
//! The first megabyte tells the format, the columns and their types. Then the inputs are cut into
//! chunks and encoded as the plan of rows says. `load` and `sync` fill a table or a stage from
//! them, and `apply` the tables of a slot's initial copy.
//!
//! An input is cut in the same way each time it is read. All inputs have the format and the columns
//! of the first input. An input that changes during the run is an error. Nothing is sent to the
//! server or committed here.

mod column_names;
mod input_digests;
mod options;
mod sample;
mod sniff_inputs;
mod survey;
mod watch;

use std::sync::Arc;

use arrow_schema::{Field, SchemaRef};
use serde_json::{Map, Value};
use tokio_postgres::error::SqlState;

pub use options::{InputOrigin, ReadingOptions};
pub use sample::SAMPLE_BYTES;
pub use sniff_inputs::{dialect, schema};
pub(crate) use survey::{Survey, is_lock_error, missing_table_error, name_lock_holder, parse_name};
pub use watch::LoadWatch;

use crate::format::arrow::{ArrowCutter, ArrowFile, ArrowStreamCutter};
use crate::format::batches::{BatchColumn, BatchesEncoder};
use crate::format::delimited::{
    self, CopyFormat, CutOptions, DelimitedCutter, DelimitedEncoder, Dialect, Eol, MapFields,
    RecordLayout,
};
use crate::format::keyed::{KeyedColumn, KeyedFormat, KeyedInput, KeyedOptions};
use crate::format::memory::{BatchesCutter, ProgramBatches};
use crate::format::parquet::{ParquetCutter, ParquetFile};
use crate::format::sniff::{Format, SniffedFormat};
use crate::format::{ChainCutter, ChunkEncoder, Cutter, OpenCutter, infer};
use crate::plan::{ColumnRoute, InputFacts, RowPlan, match_fields};
use crate::source::Input;
use crate::{Error, ErrorKind, Result};
use pgspate_target::{PgType, TargetTable};

/// Inputs, and the format and columns that were detected.
#[derive(Clone)]
pub(crate) struct SniffedInputs {
    pub(crate) inputs: Arc<[Input]>,
    /// The format, detected from the first input.
    pub(crate) sniffed: SniffedFormat,
    shape: RecordShape,
    /// The columns that `--create` would make: names and types.
    pub(crate) inferred: Vec<(String, String)>,
    header_overridden: bool,
    /// The header line of the first input, byte for byte.
    header_line: Vec<u8>,
}

/// A function that makes an encoder for a lane.
pub(crate) type MakeEncoder = Box<dyn Fn() -> Box<dyn ChunkEncoder> + Send + Sync>;

/// How records are found and read.
#[derive(Clone)]
enum RecordShape {
    /// `header` are the names as bytes of the input; `names` are the same as text.
    Delimited {
        dialect: Dialect,
        names: Option<Vec<String>>,
        header: Option<Vec<String>>,
    },
    Keyed {
        format: &'static KeyedFormat,
        keys: Vec<String>,
    },
    Columns {
        schema: SchemaRef,
        origin: BatchOrigin,
    },
}

/// Where record batches come from.
#[derive(Clone)]
enum BatchOrigin {
    /// A file with random access.
    File,
    /// An Arrow IPC stream.
    Stream,
    /// The calling program.
    Program(Arc<dyn ProgramBatches>),
}

impl SniffedInputs {
    /// Returns the facts on which plans depend.
    pub(crate) fn facts(&self) -> InputFacts {
        let (names, types) = match &self.shape {
            RecordShape::Delimited { names, .. } => (names.clone(), None),
            RecordShape::Keyed { keys, .. } => (Some(keys.clone()), None),
            RecordShape::Columns { schema, origin } => {
                let fields = schema.fields().iter();
                let names = fields.clone().map(|field| field.name().clone()).collect();
                let types: Vec<Field> = fields.map(|field| field.as_ref().clone()).collect();
                let by_position =
                    matches!(origin, BatchOrigin::Program(batches) if !batches.has_names());
                ((!by_position).then_some(names), Some(types))
            }
        };
        InputFacts {
            names: if self.header_overridden { None } else { names },
            types,
            is_stream: self.is_stream(),
            is_one_time: !self.inputs.iter().all(Input::is_persistent),
            is_delimited: matches!(self.shape, RecordShape::Delimited { .. }),
            is_csv: matches!(&self.shape, RecordShape::Delimited { dialect, .. }
                if dialect.format == CopyFormat::Csv),
            stored_bytes: self.stored_bytes(),
        }
    }

    /// Checks whether an input can be read only once.
    pub(crate) fn is_stream(&self) -> bool {
        self.inputs.iter().any(Input::is_stream)
    }

    /// Returns the stored bytes of all inputs, if known.
    pub(crate) fn stored_bytes(&self) -> Option<u64> {
        self.inputs.iter().map(Input::stored_bytes).sum()
    }

    /// Returns a cutter over all inputs, from their start.
    pub(crate) fn cutter(&self, plan: &RowPlan, watch: &Arc<LoadWatch>) -> Box<dyn Cutter> {
        let (reading, watch) = (self.clone(), Arc::clone(watch));
        let chunk_bytes = plan.chunk_bytes;
        let map = self.field_mapping(plan);
        let types = self.types(plan);
        let names = match &self.shape {
            RecordShape::Columns { schema, .. } => column_names::ColumnNames::of(schema, plan),
            _ => column_names::ColumnNames::default(),
        };
        let open: OpenCutter = Box::new(move |nth| {
            let input = &reading.inputs[nth];
            let cutter = match &reading.shape {
                RecordShape::Columns { origin: BatchOrigin::Program(batches), .. } => {
                    let cutter =
                        |it| BatchesCutter::new(names.rename_in_errors(it), nth).of_program();
                    batches.open(&types).map(|it| Box::new(cutter(it)) as _)
                }
                _ => reading.open_cutter(nth, chunk_bytes, &map, &watch),
            };
            cutter.map_err(|error| with_input_name(error, input))
        });
        Box::new(ChainCutter::new(self.inputs.len(), open))
    }

    /// Opens the cutter of one input.
    pub(crate) fn open_cutter(
        &self,
        nth: usize,
        chunk_bytes: usize,
        map: &MapFields,
        watch: &LoadWatch,
    ) -> Result<Box<dyn Cutter>> {
        let input = &self.inputs[nth];
        self.check_format(input)?;
        let reader = || {
            let reader = input.reader()?;
            watch.follow_input(reader.progress());
            Ok::<_, Error>(Box::new(reader))
        };
        Ok(match &self.shape {
            RecordShape::Delimited { dialect, .. } => {
                let (dialect, header, map) = (dialect.clone(), self.sniffed.header, map.clone());
                let options = CutOptions { dialect, header, chunk_bytes, map };
                Box::new(DelimitedCutter::open(input.name(), reader()?, options)?)
            }
            RecordShape::Keyed { format, .. } => {
                let one = KeyedInput { name: input.name().to_owned(), reader: reader()? };
                (format.cutter)(one, chunk_bytes)
            }
            RecordShape::Columns { schema, origin: BatchOrigin::Stream } => {
                let cutter = ArrowStreamCutter::open(input.name(), reader()?, nth)?;
                check_same_schema(schema, &cutter.schema())?;
                Box::new(cutter)
            }
            RecordShape::Columns { schema, .. } => {
                let ranges = input.ranges()?;
                if self.sniffed.format == Format::Parquet {
                    let file = ParquetFile::open(input.name(), ranges)?;
                    check_same_schema(schema, file.schema())?;
                    Box::new(ParquetCutter::new(Arc::new(file), nth))
                } else {
                    let file = ArrowFile::open(input.name(), ranges)?;
                    check_same_schema(schema, file.schema())?;
                    Box::new(ArrowCutter::new(Arc::new(file), nth))
                }
            }
        })
    }

    /// Returns, for each column of the record batches, the type of its table column.
    fn types(&self, plan: &RowPlan) -> Vec<Option<PgType>> {
        let RecordShape::Columns { schema, .. } = &self.shape else { return Vec::new() };
        let mut types = vec![None; schema.fields().len()];
        for column in &plan.columns {
            if let Some(ty) = types.get_mut(column.field) {
                *ty = Some(column.ty.clone());
            }
        }
        types
    }

    /// Checks that an input has the format of the first input, as far as its first bytes tell.
    fn check_format(&self, input: &Input) -> Result<()> {
        let expected = self.sniffed.format;
        // Reading the first bytes costs a request if the input is remote. Inputs with the first
        // one's file extension need no check.
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
        Err(Error::new(ErrorKind::Format, message)
            .hint("Load inputs of different formats one after the other."))
    }

    /// Returns the function that maps an input's header to the plan's columns.
    pub(crate) fn field_mapping(&self, plan: &RowPlan) -> MapFields {
        let trailing = match &self.shape {
            RecordShape::Delimited { dialect, .. } => usize::from(dialect.trailing_delimiter),
            _ => 0,
        };
        let positions: Vec<usize> = plan.columns.iter().map(|column| column.field).collect();
        let expected = match &self.shape {
            RecordShape::Delimited { header: Some(header), .. } if !self.header_overridden => {
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

    /// Returns the function that makes an encoder for each lane.
    pub(crate) fn encoder(
        &self,
        plan: &RowPlan,
        table: &TargetTable,
        server_version: u32,
        ignore_unknown: bool,
    ) -> Result<MakeEncoder> {
        match &self.shape {
            RecordShape::Delimited { dialect, .. } => {
                let dialect = dialect.clone();
                let columns: Vec<_> = plan.columns.iter().map(delimited_column).collect();
                let layout = self.first_layout(plan);
                Ok(Box::new(move || {
                    let (dialect, columns) = (dialect.clone(), columns.clone());
                    let encoder = DelimitedEncoder::new(dialect, columns, server_version);
                    Box::new(encoder.with_output_layout(layout.clone()))
                }))
            }
            RecordShape::Keyed { format, keys } => {
                let options = self.keyed_options(plan, table, keys, ignore_unknown);
                let encoder = format.encoder;
                Ok(Box::new(move || encoder(options.clone())))
            }
            RecordShape::Columns { .. } => {
                let columns = plan_batch_columns(plan)?;
                BatchesEncoder::new(columns.clone())?;
                Ok(Box::new(move || {
                    Box::new(BatchesEncoder::new(columns.clone()).expect("made once already"))
                }))
            }
        }
    }

    /// Returns the header line of a file of rejects. With it the file can be loaded like the
    /// inputs.
    pub(crate) fn reject_header(&self) -> &[u8] {
        &self.header_line
    }

    /// Returns the format of a file of rejects: that of the inputs, or JSON for record batches.
    pub(crate) fn reject_format(&self) -> Format {
        match &self.shape {
            RecordShape::Delimited { .. } | RecordShape::Keyed { .. } => self.sniffed.format,
            RecordShape::Columns { .. } => Format::Json,
        }
    }

    /// Returns the layout of the first input's records.
    fn first_layout(&self, plan: &RowPlan) -> RecordLayout {
        let field_of: Vec<usize> = plan.columns.iter().map(|column| column.field).collect();
        let eol = Eol::from(self.sniffed.line_end);
        RecordLayout { eol, fields: field_of.len(), field_of }
    }

    /// Returns the options of the encoder for records with keys.
    fn keyed_options(
        &self,
        plan: &RowPlan,
        table: &TargetTable,
        keys: &[String],
        ignore_unknown: bool,
    ) -> KeyedOptions {
        let columns = plan.columns.iter().map(|column| KeyedColumn {
            name: column.name.clone(),
            ty: column.ty.clone(),
            field: column.field_encoder(),
        });
        let mut options = KeyedOptions::new(columns.collect());
        // A key may differ from its column in upper and lower case.
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

    /// Returns the options that change rows or chunks, by name. A job is identified by them.
    pub(crate) fn identity(&self) -> Map<String, Value> {
        let mut options = Map::new();
        let mut add = |name: &str, value: Value| options.insert(name.to_owned(), value);
        add("format", self.sniffed.format.name().into());
        if let RecordShape::Delimited { dialect, .. } = &self.shape {
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

    /// Handles an error about a JSON key that names a column but is not in the sample. Adds the key
    /// if the input can be read again. Returns whether the key was added.
    pub(crate) fn learn_key(&mut self, error: &Error) -> bool {
        let key = error.place().and_then(|place| place.column.as_deref());
        let (Some(key), ErrorKind::Plan, false) = (key, error.kind(), self.is_stream()) else {
            return false;
        };
        match &mut self.shape {
            RecordShape::Keyed { keys, .. } if !keys.iter().any(|known| known == key) => {
                keys.push(key.to_owned());
                true
            }
            _ => false,
        }
    }

    /// Returns the inputs' names for messages.
    pub(crate) fn title(&self) -> String {
        match &*self.inputs {
            [only] => format!("\"{}\"", only.name()),
            [first, rest @ ..] => format!("\"{}\" and {} more", first.name(), rest.len()),
            [] => "nothing".to_owned(),
        }
    }

    /// Returns the names of all inputs.
    pub(crate) fn names(&self) -> Vec<String> {
        self.inputs.iter().map(|input| input.name().to_owned()).collect()
    }
}

fn delimited_column(column: &crate::plan::PlannedColumn) -> delimited::DelimitedColumn {
    delimited::DelimitedColumn {
        name: column.name.clone(),
        encoder: column.field_encoder(),
        force_null: column.force_null,
        force_not_null: column.force_not_null,
    }
}

/// Returns the columns of record batches with their encoders.
fn plan_batch_columns(plan: &RowPlan) -> Result<Vec<BatchColumn>> {
    let column = |column: &crate::plan::PlannedColumn| match &column.route {
        ColumnRoute::Batch(encoder) => Ok(BatchColumn {
            name: column.name.clone(),
            index: column.field,
            encoder: encoder.clone(),
        }),
        _ => Err(Error::new(ErrorKind::Bug, "a column of a batch was planned as a field")),
    };
    plan.columns.iter().map(column).collect()
}

/// Checks that an input has the same columns as the first input.
fn check_same_schema(first: &SchemaRef, other: &SchemaRef) -> Result<()> {
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
    Err(Error::new(ErrorKind::Format, message)
        .hint("Load inputs with different columns one after the other."))
}

/// Returns names that can be compared between inputs. In names that are not UTF-8 each byte becomes
/// a character, so that different names stay different.
fn raw_names(names: &[Vec<u8>]) -> Vec<String> {
    let raw = |name: &Vec<u8>| match std::str::from_utf8(name) {
        Ok(name) => name.to_owned(),
        Err(_) => name.iter().copied().map(char::from).collect(),
    };
    names.iter().map(raw).collect()
}

/// Adds the input's name to the place of an error.
fn with_input_name(error: Error, input: &Input) -> Error {
    let mut place = error.place().cloned().unwrap_or_default();
    place.source.get_or_insert_with(|| input.name().to_owned());
    error.at(place)
}

/// Adds a hint about `--encoding` to an error about bytes that are not UTF-8. A zero byte is no
/// such error, because no encoding allows it.
pub(crate) fn hint_encoding(error: Error, plan: &RowPlan) -> Error {
    let is_utf8 = plan.encoding.is_none();
    let is_encoding = is_utf8 && error.sqlstate() == Some(&SqlState::CHARACTER_NOT_IN_REPERTOIRE);
    if !is_encoding || error.to_string().contains("0x00") {
        return error;
    }
    error.hint("Name the encoding of the input with `--encoding`, LATIN1 for example.")
}
