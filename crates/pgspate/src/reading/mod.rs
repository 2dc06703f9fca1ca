//! Reads inputs: finds the sources, detects the format, and cuts and encodes the records.
//!
//! pgspate detects the format, the columns and their types from the first megabyte. Then it cuts
//! the inputs into chunks, and encodes the chunks' records by the [`RowPlan`]. `load` copies the
//! rows into a table, `sync` into a stage, and `apply` into the tables of a slot's initial copy.
//!
//! Each reading of an input cuts the same chunks. All inputs have the format and the columns of the
//! first input. An input that changes during the run is an error. This module sends and commits
//! nothing.

mod batch_columns;
mod column_names;
mod constants;
mod hints;
mod input_digests;
mod later_input;
mod options;
mod partition_columns;
mod sample;
mod sniff_inputs;
mod stage_copy;
mod survey;
mod watch;

use std::sync::Arc;
use std::time::Instant;

use arrow_schema::{Schema, SchemaRef};
use serde_json::{Map, Value};

use batch_columns::BatchSchemas;
pub(crate) use constants::check_constants;
use hints::hint_pattern;
pub(crate) use hints::{
    hint_encoding_name, hint_value, is_exported_infinity, is_json_nan, refused_value,
};
pub use options::{InputOrigin, ReadingOptions};
pub use sample::SAMPLE_BYTES;
pub use sniff_inputs::{dialect, read_schema};
pub(crate) use stage_copy::StageCopy;
pub(crate) use survey::{
    LoadFacts, Survey, is_lock_error, missing_table_error, name_lock_holder, parse_name,
    sniff_inputs,
};
pub use watch::LoadWatch;

use crate::format::arrow::{ArrowCutter, ArrowFile, ArrowStreamCutter};
use crate::format::batches::{BatchesEncoder, PlanColumns};
use crate::format::constants::ConstantColumns;
use crate::format::delimited::{
    self, CopyFormat, CutOptions, DelimitedCutter, DelimitedEncoder, Dialect, Eol, MapFields,
    RecordLayout,
};
use crate::format::keyed::{KeyedColumn, KeyedFormat, KeyedInput, KeyedOptions};
use crate::format::memory::{BatchTarget, BatchesCutter, ProgramBatches};
use crate::format::parquet::{ParquetCutter, ParquetFile};
use crate::format::sniff::{Format, SniffedFormat};
use crate::format::{ChainCutter, ChunkEncoder, Cutter, OpenCutter, infer};
use crate::plan::{InputFacts, RowPlan, RowRequest, check_encoding, constant_names, match_fields};
use crate::source::Input;
use crate::{Error, ErrorKind, Result};
use pgspate_base::is_alike;
use pgspate_target::{TargetColumn, TargetTable};

/// Inputs, and the format and columns that were detected.
#[derive(Clone)]
pub(crate) struct SniffedInputs {
    pub(crate) inputs: Arc<[Input]>,
    /// When reading began: of the first bytes, or of the first rows of a program.
    pub(crate) began: Instant,
    /// The format, detected from the first input.
    pub(crate) sniffed: SniffedFormat,
    shape: RecordShape,
    /// The names and types of the columns that `--create` would create.
    pub(crate) inferred: Vec<(String, String)>,
    /// Whether `--columns` names the columns, so that names from the inputs do not count.
    header_overridden: bool,
    /// Whether the fields' names are converted to snake case.
    snake_case: bool,
    /// Whether columns of the table are made from the sample, by `--create` or `--add-columns`.
    makes_columns: bool,
    /// The header line of the first input, byte for byte.
    header_line: Vec<u8>,
    /// Which files beside the inputs are not read, in words.
    pub(crate) skipped: Option<String>,
    /// Options that have no effect on the table as it is, in words.
    pub(crate) unused_options: Vec<String>,
    /// What was guessed about the dialect of delimited text.
    guessed: later_input::GuessedDialect,
    /// The warning about names in the input, in words.
    pub(crate) names_warning: Option<String>,
    /// The warning about values in the names of folders, in words.
    pub(crate) folders_warning: Option<String>,
}

/// A function that returns a new encoder for each lane.
pub(crate) type MakeEncoder = Box<dyn Fn() -> Box<dyn ChunkEncoder> + Send + Sync>;

/// How the fields of delimited inputs are mapped to columns.
#[derive(Clone)]
pub(crate) struct FieldMapping {
    /// Returns the number of fields in a record, and each column's field, by an input's header.
    map: MapFields,
    /// The names of the columns.
    columns: Arc<[String]>,
    /// The schemas that inputs of record batches may have.
    schemas: Option<Arc<BatchSchemas>>,
}

/// How records are found and read.
#[derive(Clone)]
enum RecordShape {
    /// Delimited text. `header` are the names of the first input's header as [`raw_names`] returns
    /// them, and `names` are these names in UTF-8.
    Delimited { dialect: Dialect, names: Option<Vec<String>>, header: Option<Vec<String>> },
    /// Records with a key for each value, such as JSON objects. With `None`, records have their
    /// values by position, such as JSON arrays.
    Keyed { format: &'static KeyedFormat, keys: Option<Vec<String>> },
    /// Arrow record batches.
    Columns { schema: SchemaRef, origin: BatchOrigin },
}

impl RecordShape {
    /// Returns the fields' names in order, unless fields have positions only.
    fn names(&self) -> Option<Vec<String>> {
        match self {
            RecordShape::Delimited { names, .. } => names.clone(),
            RecordShape::Keyed { keys, .. } => keys.clone(),
            RecordShape::Columns { origin: BatchOrigin::Program(batches), .. }
                if !batches.has_names() =>
            {
                None
            }
            RecordShape::Columns { schema, .. } => {
                Some(schema.fields().iter().map(|field| field.name().clone()).collect())
            }
        }
    }
}

/// Where record batches come from.
#[derive(Clone)]
enum BatchOrigin {
    /// A file that is read at any position.
    File,
    /// An Arrow IPC stream.
    Stream,
    /// The program that calls pgspate.
    Program(Arc<dyn ProgramBatches>),
}

impl SniffedInputs {
    /// Returns the facts on which plans depend.
    pub(crate) fn facts(&self) -> InputFacts {
        let types = match &self.shape {
            RecordShape::Columns { schema, .. } => {
                Some(schema.fields().iter().map(|field| field.as_ref().clone()).collect())
            }
            RecordShape::Delimited { .. } | RecordShape::Keyed { .. } => None,
        };
        let names = self.shape.names().map(|names| {
            let convert = |name: String| match self.snake_case {
                true => infer::snake_case(&name),
                false => name,
            };
            names.into_iter().map(convert).collect()
        });
        InputFacts {
            names: if self.header_overridden { None } else { names },
            types,
            is_stream: self.is_stream(),
            has_file_names: self.inputs.iter().all(Input::has_file_name),
            is_for_this_run_only: !self.inputs.iter().all(Input::is_persistent),
            is_delimited: matches!(self.shape, RecordShape::Delimited { .. }),
            is_csv: matches!(&self.shape, RecordShape::Delimited { dialect, .. }
                if dialect.format == CopyFormat::Csv),
            stored_bytes: self.stored_bytes(),
        }
    }

    /// Returns the names and the types of the columns that the table lacks. Fields without names
    /// are the table's columns.
    pub(crate) fn missing_columns(
        &self,
        table: &TargetTable,
        request: &RowRequest,
    ) -> Vec<(String, String)> {
        let has_names = request.columns.is_some() || self.facts().names.is_some();
        let is_missing = |name: &str| {
            !table.has_column_alike(name)
                && (has_names || constant_names(request).any(|it| it == name))
        };
        self.inferred.iter().filter(|(name, _)| is_missing(name)).cloned().collect()
    }

    /// Adds columns that the user names with their types, and that the sample of an input with keys
    /// lacks. Does nothing if the columns of the table are not made from the input.
    pub(crate) fn name_columns(&mut self, types: &[(String, String)]) {
        let RecordShape::Keyed { keys: Some(keys), .. } = &mut self.shape else { return };
        if !self.makes_columns || self.header_overridden {
            return;
        }
        for (name, _) in types {
            if self.inferred.iter().any(|(known, _)| is_alike(known, name)) {
                continue;
            }
            keys.push(name.clone());
            self.inferred.push((name.clone(), "text".to_owned()));
            self.sniffed.evidence.push(format!(
                "key \"{name}\" is not in the first records; its column has the type of `--type`"
            ));
        }
    }

    /// Records which files are not read, in words.
    pub(crate) fn note_skipped(&mut self, note: Option<String>) {
        self.sniffed.evidence.extend(note.clone());
        self.skipped = note;
    }

    /// Returns what reports warn of: files and values that are not read, options without effect,
    /// and names.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> {
        let options = self.skipped.iter().chain(&self.unused_options);
        options.chain(&self.names_warning).chain(&self.folders_warning).cloned()
    }

    /// Returns whether any input can be read only once.
    pub(crate) fn is_stream(&self) -> bool {
        self.inputs.iter().any(Input::is_stream)
    }

    /// Returns the stored bytes of all inputs, if known.
    pub(crate) fn stored_bytes(&self) -> Option<u64> {
        self.inputs.iter().map(Input::stored_bytes).sum()
    }

    /// Returns a cutter over all inputs, from their start. Cuts up to `side_by_side` inputs that
    /// are read ahead side by side. With 1, the chunks have the order of the inputs.
    pub(crate) fn cutter(
        &self,
        plan: &RowPlan,
        watch: &Arc<LoadWatch>,
        side_by_side: usize,
    ) -> Box<dyn Cutter> {
        let (reading, watch, chunk_bytes) = (self.clone(), Arc::clone(watch), plan.chunk_bytes);
        let mapping = self.field_mapping(plan);
        let targets = self.batch_targets(plan);
        let names = match &self.shape {
            RecordShape::Columns { schema, .. } => column_names::ColumnNames::of(schema, plan),
            _ => column_names::ColumnNames::default(),
        };
        let ahead_bytes = self.inputs.iter().map(Input::bytes_read_ahead).collect();
        let open: OpenCutter = Arc::new(move |index| {
            let input = &reading.inputs[index];
            let cutter = match &reading.shape {
                RecordShape::Columns { origin: BatchOrigin::Program(batches), .. } => {
                    let cutter =
                        |it| BatchesCutter::new(names.rename_in_errors(it), index).of_program();
                    batches.open(&targets).map(|it| Box::new(cutter(it)) as _)
                }
                _ => reading.open_cutter(index, chunk_bytes, &mapping, &watch),
            };
            cutter.map_err(|error| with_input_name(error, input))
        });
        Box::new(ChainCutter::new(ahead_bytes, side_by_side, open))
    }

    /// Opens the cutter of the input at position `index`.
    pub(crate) fn open_cutter(
        &self,
        index: usize,
        chunk_bytes: usize,
        mapping: &FieldMapping,
        watch: &LoadWatch,
    ) -> Result<Box<dyn Cutter>> {
        let input = &self.inputs[index];
        self.check_format(input)?;
        let reader = || {
            let reader = input.reader()?;
            watch.follow_input(reader.progress());
            Ok::<_, Error>(Box::new(reader))
        };
        Ok(match &self.shape {
            RecordShape::Delimited { dialect, .. } => {
                let (dialect, header) = (dialect.clone(), self.sniffed.header);
                let FieldMapping { map, columns, .. } = mapping.clone();
                let options = CutOptions { dialect, header, chunk_bytes, map, columns };
                let cutter = self
                    .check_later_input(index, reader()?)
                    .and_then(|reader| DelimitedCutter::open(input.name(), reader, options));
                Box::new(cutter.map_err(|error| hint_pattern(error, input, &self.inputs))?)
            }
            RecordShape::Keyed { format, .. } => {
                let input = KeyedInput { name: input.name().to_owned(), reader: reader()? };
                (format.cutter)(input, chunk_bytes)
            }
            RecordShape::Columns { origin: BatchOrigin::Stream, .. } => {
                let cutter = ArrowStreamCutter::open(input.name(), reader()?, index)?;
                self.check_schema(index, &cutter.schema(), mapping, watch)?;
                Box::new(cutter)
            }
            RecordShape::Columns { .. } => {
                let ranges = input.ranges()?;
                if self.sniffed.format == Format::Parquet {
                    let file = ParquetFile::open(input.name(), ranges)?;
                    self.check_schema(index, file.schema(), mapping, watch)?;
                    Box::new(ParquetCutter::new(Arc::new(file), index))
                } else {
                    let file = ArrowFile::open(input.name(), ranges)?;
                    self.check_schema(index, file.schema(), mapping, watch)?;
                    Box::new(ArrowCutter::new(Arc::new(file), index))
                }
            }
        })
    }

    /// Checks that the columns of an input can be written. Notes types other than the first
    /// input's.
    fn check_schema(
        &self,
        index: usize,
        schema: &SchemaRef,
        mapping: &FieldMapping,
        watch: &LoadWatch,
    ) -> Result<()> {
        let Some(schemas) = &mapping.schemas else { return Ok(()) };
        schemas.columns_of(schema)?;
        if let Some(other) = schemas.other_type(schema) {
            watch.note_other_type(self.inputs[index].name(), other);
        }
        Ok(())
    }

    /// Returns, for each column of the record batches, its table column.
    fn batch_targets(&self, plan: &RowPlan) -> Vec<Option<BatchTarget>> {
        let RecordShape::Columns { schema, .. } = &self.shape else { return Vec::new() };
        let mut targets = vec![None; schema.fields().len()];
        for column in plan.field_columns() {
            if let Some(target) = targets.get_mut(column.field) {
                let (ty, guessed_type) = (column.ty.clone(), column.guessed_type);
                *target = Some(BatchTarget { ty, guessed_type });
            }
        }
        targets
    }

    /// Returns how the fields of an input are mapped to the planned columns.
    pub(crate) fn field_mapping(&self, plan: &RowPlan) -> FieldMapping {
        let trailing = match &self.shape {
            RecordShape::Delimited { dialect, .. } => usize::from(dialect.trailing_delimiter),
            _ => 0,
        };
        let positions: Vec<usize> = plan.field_columns().map(|column| column.field).collect();
        let expected = match &self.shape {
            RecordShape::Delimited { header: Some(header), .. } if !self.header_overridden => {
                Some(header.clone())
            }
            _ => None,
        };
        let fields = expected.as_ref().map_or(positions.len(), Vec::len) + trailing;
        let columns = plan.field_columns().map(|column| column.name.clone()).collect();
        let map: MapFields = Arc::new(move |header| {
            let field_of = match (&expected, header) {
                (Some(expected), Some(header)) => {
                    let found = infer::column_names(raw_names(header));
                    let matched = match_fields(expected, &found)?;
                    positions.iter().map(|position| matched[*position]).collect()
                }
                _ => positions.clone(),
            };
            Ok((fields, field_of))
        });
        let schemas = match &self.shape {
            RecordShape::Columns { schema, .. } => Some(Arc::new(BatchSchemas::new(plan, schema))),
            _ => None,
        };
        FieldMapping { map, columns, schemas }
    }

    /// Returns a function that returns a new encoder for each lane.
    ///
    /// # Errors
    /// [`ErrorKind::Plan`] if record batches have more columns than a row of binary COPY can have.
    pub(crate) fn encoder(
        &self,
        plan: &RowPlan,
        table: &TargetTable,
        server_version: u32,
        ignore_unknown: bool,
    ) -> Result<MakeEncoder> {
        let constants = self.constants(plan)?;
        match &self.shape {
            RecordShape::Delimited { dialect, .. } => {
                let dialect = dialect.clone();
                let columns: Vec<_> = plan.field_columns().map(delimited_column).collect();
                let (layout, unseen) = (self.first_layout(plan), self.sniffed.unseen);
                Ok(Box::new(move || {
                    let (dialect, columns) = (dialect.clone(), columns.clone());
                    let encoder = DelimitedEncoder::new(dialect, columns, server_version);
                    let encoder = encoder.with_constants(constants.clone()).refusing(unseen);
                    Box::new(encoder.with_output_layout(layout.clone()))
                }))
            }
            RecordShape::Keyed { format, keys } => {
                let keys = keys.as_deref().unwrap_or_default();
                let mut options = self.keyed_options(plan, table, keys, ignore_unknown);
                options.constants = constants;
                let encoder = format.encoder;
                Ok(Box::new(move || encoder(options.clone())))
            }
            RecordShape::Columns { schema, origin } => {
                let columns = batch_columns::planned(plan)?;
                BatchesEncoder::new(columns.clone())?;
                let is_program = matches!(origin, BatchOrigin::Program(_));
                let schemas = (!is_program).then(|| Arc::new(BatchSchemas::new(plan, schema)));
                let others: Option<PlanColumns> = schemas.map(|schemas| {
                    Arc::new(move |schema: &Schema| schemas.columns_of(schema)) as _
                });
                Ok(Box::new(move || {
                    let encoder = BatchesEncoder::new(columns.clone()).expect("made once already");
                    let encoder = encoder.with_constants(constants.clone());
                    Box::new(encoder.with_other_schemas(others.clone()))
                }))
            }
        }
    }

    /// Returns the columns whose values are not in the records.
    fn constants(&self, plan: &RowPlan) -> Result<ConstantColumns> {
        let columns = plan.columns.iter().filter_map(|column| column.constant().cloned());
        let columns: Arc<[_]> = columns.collect();
        if columns.is_empty() {
            return Ok(ConstantColumns::default());
        }
        let inputs = self.names();
        if let Some(encoding) = &plan.encoding {
            check_encoding(encoding, &plan.columns, &inputs)?;
        }
        Ok(ConstantColumns { columns, inputs: inputs.into() })
    }

    /// Returns the header line for a file of rejected records. With this header, the file can be
    /// loaded like the inputs.
    pub(crate) fn reject_header(&self) -> &[u8] {
        &self.header_line
    }

    /// Returns the dialect of delimited inputs.
    pub(crate) fn dialect(&self) -> Option<&Dialect> {
        match &self.shape {
            RecordShape::Delimited { dialect, .. } => Some(dialect),
            RecordShape::Keyed { .. } | RecordShape::Columns { .. } => None,
        }
    }

    /// Returns the format for a file of rejected records: the format of the inputs, or JSON for
    /// record batches.
    pub(crate) fn reject_format(&self) -> Format {
        match &self.shape {
            RecordShape::Delimited { .. } | RecordShape::Keyed { .. } => self.sniffed.format,
            RecordShape::Columns { .. } => Format::Json,
        }
    }

    /// Returns the layout of the first input's records.
    fn first_layout(&self, plan: &RowPlan) -> RecordLayout {
        let field_of: Vec<usize> = plan.field_columns().map(|column| column.field).collect();
        let eol = Eol::from(self.sniffed.line_end);
        RecordLayout { eol, fields: field_of.len(), field_of, columns: Arc::default() }
    }

    /// Returns the options of the encoder for records with keys.
    fn keyed_options(
        &self,
        plan: &RowPlan,
        table: &TargetTable,
        keys: &[String],
        ignore_unknown: bool,
    ) -> KeyedOptions {
        let columns = plan.field_columns().map(|column| KeyedColumn {
            name: column.name.clone(),
            ty: column.ty.clone(),
            field: column.field_encoder(),
            date_format: column.date_format.clone(),
            guessed_type: column.guessed_type,
        });
        let mut options = KeyedOptions::new(columns.collect());
        if !self.header_overridden && !keys.is_empty() {
            // A key may differ from its column's name in case. A record could have both.
            let fields = plan.field_columns().enumerate();
            let known = fields.filter_map(|(nth, it)| Some((keys.get(it.field)?.clone(), nth)));
            options.keys = known.collect();
        }
        options.ignore_unknown = ignore_unknown;
        options.has_sampled_columns = self.makes_columns && !self.header_overridden;
        options.snake_case = self.snake_case;
        if !self.header_overridden {
            let takes = |column: &&TargetColumn| !(ignore_unknown && column.is_generated);
            let columns = table.columns.iter().filter(takes);
            let spellings = columns.flat_map(|it| [it.name.clone(), it.name.to_lowercase()]);
            options.table_columns = Arc::new(spellings.collect());
        }
        options.inputs = self.names().into();
        options
    }

    /// Returns the options that change rows or chunks, by name. These options are a part of a job's
    /// identity in the ledger.
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

    /// Returns the key of an error about a JSON key that names a column but is not in the sample.
    /// `None` if the error is another error, or if the input cannot be read again.
    pub(crate) fn late_key<'a>(&self, error: &'a Error) -> Option<&'a str> {
        let RecordShape::Keyed { keys: Some(keys), .. } = &self.shape else { return None };
        let is_about_key = error.kind() == ErrorKind::Plan && !self.is_stream();
        let key = error.place().and_then(|place| place.column.as_deref());
        key.filter(|key| is_about_key && !keys.iter().any(|known| known == key))
    }

    /// Returns this reading with keys that the sample does not have.
    pub(crate) fn with_keys(mut self, mut late: Vec<String>) -> SniffedInputs {
        if let RecordShape::Keyed { keys: Some(keys), .. } = &mut self.shape {
            late.retain(|key| !keys.contains(key));
            keys.append(&mut late);
        }
        self
    }

    /// Returns a short text that names the inputs in messages.
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
        encoder: column.field_encoder().map(|encoder| match column.guessed_type {
            Some(guessed) => encoder.with_check(guessed.check()),
            None => encoder,
        }),
        date_format: column.date_format.clone(),
        guessed_type: column.guessed_type,
        force_null: column.force_null,
        force_not_null: column.force_not_null,
    }
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
