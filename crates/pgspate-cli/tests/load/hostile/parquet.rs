//! Tests of Parquet files with forged sizes, counts and offsets. The test writes each field itself.

use super::{check_loaded, check_refused, new_case};

const MOST: i64 = i32::MAX as i64;

const BYTE_ARRAY: i64 = 6;
const FIXED: i64 = 7;
const INT64: i64 = 2;

const DATA: i64 = 0;
const DICTIONARY: i64 = 2;

const PLAIN: i64 = 0;
const BY_DICTIONARY: i64 = 8;
const DELTA: i64 = 5;
const DELTA_LENGTHS: i64 = 6;
const DELTA_STRINGS: i64 = 7;

const NO_CODEC: i64 = 0;

/// A writer of Thrift's compact protocol. A `step` is the difference to the last field's id.
#[derive(Default, Clone)]
struct Thrift(Vec<u8>);

impl Thrift {
    fn number(mut self, mut number: u64) -> Thrift {
        while number > 0x7F {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
        self
    }

    fn signed(self, number: i64) -> Thrift {
        self.number((number << 1 ^ number >> 63).cast_unsigned())
    }

    fn head(mut self, step: u8, kind: u8) -> Thrift {
        self.0.push(step << 4 | kind);
        self
    }

    fn i32(self, step: u8, number: i64) -> Thrift {
        self.head(step, 5).signed(number)
    }

    fn i64(self, step: u8, number: i64) -> Thrift {
        self.head(step, 6).signed(number)
    }

    fn text(self, step: u8, text: &str) -> Thrift {
        self.head(step, 8).bare(text)
    }

    fn bare(self, text: &str) -> Thrift {
        let mut thrift = self.number(text.len() as u64);
        thrift.0.extend(text.bytes());
        thrift
    }

    fn structure(mut self, step: u8, inner: Thrift) -> Thrift {
        self = self.head(step, 12);
        self.0.extend(inner.end());
        self
    }

    /// Writes a list that states `len` elements of type `kind`, and the bytes of `elements`.
    fn list(mut self, step: u8, kind: u8, len: u64, elements: &[Vec<u8>]) -> Thrift {
        self = self.head(step, 9).head(15, kind).number(len);
        self.0.extend(elements.concat());
        self
    }

    fn end(mut self) -> Vec<u8> {
        self.0.push(0);
        self.0
    }
}

/// A page: the numbers of its header, which may be false, and its bytes.
#[derive(Clone)]
struct ParquetPage {
    kind: i64,
    decompressed: i64,
    stored: i64,
    values: i64,
    encoding: i64,
    bytes: Vec<u8>,
}

impl ParquetPage {
    /// Returns a page whose sizes are true; `values` is the number of values that it states.
    fn new(kind: i64, encoding: i64, values: i64, bytes: &[u8]) -> ParquetPage {
        let len = bytes.len() as i64;
        ParquetPage {
            kind,
            decompressed: len,
            stored: len,
            values,
            encoding,
            bytes: bytes.to_vec(),
        }
    }

    fn write(&self) -> Vec<u8> {
        let header =
            Thrift::default().i32(1, self.kind).i32(1, self.decompressed).i32(1, self.stored);
        let (field, inner) = match self.kind {
            DICTIONARY => (4, Thrift::default().i32(1, self.values).i32(1, self.encoding)),
            _ => {
                (2, Thrift::default().i32(1, self.values).i32(1, self.encoding).i32(1, 3).i32(1, 3))
            }
        };
        [header.structure(field, inner).end(), self.bytes.clone()].concat()
    }
}

/// A Parquet file of one column in one row group. Fields that are set state false values.
#[derive(Clone)]
struct ForgedParquet {
    physical: i64,
    type_length: i64,
    codec: i64,
    pages: Vec<ParquetPage>,
    rows: i64,
    /// The stated offset of the column. The next two fields are its stated sizes.
    start: Option<i64>,
    stored: Option<i64>,
    decompressed: Option<i64>,
    children: i64,
    depth: usize,
    /// The stated number of pages in an offset index. `None` is a file without this index.
    located: Option<u64>,
    footer: Option<u32>,
}

impl ForgedParquet {
    fn new(physical: i64, pages: &[ParquetPage], rows: i64) -> ForgedParquet {
        ForgedParquet {
            physical,
            type_length: 0,
            codec: NO_CODEC,
            pages: pages.to_vec(),
            rows,
            start: None,
            stored: None,
            decompressed: None,
            children: 1,
            depth: 0,
            located: None,
            footer: None,
        }
    }

    fn schema(&self) -> Vec<Vec<u8>> {
        let root = Thrift::default().text(4, "root").i32(1, self.children).end();
        let group = Thrift::default().i32(3, 0).text(1, "g").i32(1, 1).end();
        let leaf = Thrift::default().i32(1, self.physical).i32(1, self.type_length).i32(1, 0);
        let leaf = leaf.text(1, "v").end();
        let mut schema = vec![root];
        schema.extend(std::iter::repeat_n(group, self.depth));
        schema.push(leaf);
        schema
    }

    fn write(&self) -> Vec<u8> {
        let mut file = b"PAR1".to_vec();
        let mut starts = Vec::new();
        for page in &self.pages {
            starts.push(file.len());
            file.extend(page.write());
        }
        let len = file.len() as i64 - 4;
        let index = file.len() as i64;
        if let Some(pages) = self.located {
            let dictionaries = self.pages.iter().filter(|page| page.kind == DICTIONARY).count();
            let places = self.pages.iter().zip(&starts).skip(dictionaries).map(|(page, start)| {
                let len = page.write().len() as i64;
                Thrift::default().i64(1, *start as i64).i32(1, len).i64(1, 0).end()
            });
            let places: Vec<_> = places.collect();
            file.extend(Thrift::default().list(1, 12, pages, &places).end());
        }
        let index_len = file.len() as i64 - index;
        let path = Thrift::default().bare("v").0;
        let mut meta = Thrift::default()
            .i32(1, self.physical)
            .list(1, 5, 1, &[Thrift::default().signed(PLAIN).0])
            .list(1, 8, 1, &[path])
            .i32(1, self.codec)
            .i64(1, self.rows)
            .i64(1, self.decompressed.unwrap_or(len))
            .i64(1, self.stored.unwrap_or(len))
            .i64(2, self.start.unwrap_or(4));
        if self.pages.first().is_some_and(|page| page.kind == DICTIONARY) {
            meta = meta.i64(2, self.start.unwrap_or(4));
        }
        let mut column = Thrift::default().i64(2, 4).structure(1, meta);
        if self.located.is_some() {
            column = column.i64(1, index).i32(1, index_len);
        }
        let column = column.end();
        let group = Thrift::default().list(1, 12, 1, &[column]).i64(1, len).i64(1, self.rows).end();
        let schema = self.schema();
        let footer = Thrift::default()
            .i32(1, 1)
            .list(1, 12, schema.len() as u64, &schema)
            .i64(1, self.rows)
            .list(1, 12, 1, &[group])
            .end();
        let stated = self.footer.unwrap_or(footer.len() as u32);
        [file, footer, stated.to_le_bytes().to_vec(), b"PAR1".to_vec()].concat()
    }
}

/// Returns two strings in the encoding `PLAIN`.
fn two_strings() -> Vec<u8> {
    b"\x01\0\0\0a\x02\0\0\0bc".to_vec()
}

fn valid_file() -> ForgedParquet {
    ForgedParquet::new(BYTE_ARRAY, &[ParquetPage::new(DATA, PLAIN, 2, &two_strings())], 2)
}

/// Returns the header of delta-encoded numbers that states `count` values, without blocks.
fn delta_header(count: u64) -> Vec<u8> {
    Thrift::default().number(128).number(4).number(count).signed(0).0
}

#[test]
fn valid_files_are_loaded() {
    let case = new_case();
    check_loaded(&case, "whole.parquet", valid_file().write(), 2);
    check_loaded(
        &case,
        "located.parquet",
        ForgedParquet { located: Some(1), ..valid_file() }.write(),
        2,
    );
    let pages = [
        ParquetPage::new(DICTIONARY, PLAIN, 2, &two_strings()),
        // Two values of one bit each: the second entry of the dictionary, twice.
        ParquetPage::new(DATA, BY_DICTIONARY, 2, &[1, 4, 1]),
    ];
    let file = ForgedParquet::new(BYTE_ARRAY, &pages, 2);
    check_loaded(&case, "dictionary.parquet", file.write(), 2);
    check_loaded(
        &case,
        "dictionary_located.parquet",
        ForgedParquet { located: Some(1), ..file }.write(),
        2,
    );
}

#[test]
fn forged_row_counts_and_offsets_are_refused() {
    let case = new_case();
    let file = |change: fn(&mut ForgedParquet)| {
        let mut file = valid_file();
        change(&mut file);
        file.write()
    };
    let rows = &["the row group lacks", " rows"];
    check_refused(&case, "rows.parquet", file(|file| file.rows = i64::MAX), rows);
    let words = &["states -3 rows"];
    check_refused(&case, "no_rows.parquet", file(|file| file.rows = -3), words);
    let words = &["column \"v\" of row group 0 states", "from byte 9223372036854775807 on"];
    check_refused(&case, "start.parquet", file(|file| file.start = Some(i64::MAX)), words);
    let words = &["from byte -1 on"];
    check_refused(&case, "before.parquet", file(|file| file.start = Some(-1)), words);
    let words = &["states 9223372036854775807 bytes from byte 4 on"];
    check_refused(&case, "stored.parquet", file(|file| file.stored = Some(i64::MAX)), words);
    let words = &["states 2 values of -1 bytes"];
    check_refused(&case, "minus.parquet", file(|file| file.decompressed = Some(-1)), words);
    check_loaded(&case, "most.parquet", file(|file| file.decompressed = Some(i64::MAX)), 2);
    let words = &["the footer states 4294967040 bytes"];
    check_refused(&case, "footer.parquet", file(|file| file.footer = Some(0xFFFF_FF00)), words);
    let words = &["a schema group declares 2147483647 columns, found 1"];
    check_refused(&case, "columns.parquet", file(|file| file.children = MOST), words);
    let words = &["columns are nested more than 100 deep"];
    check_refused(&case, "nested.parquet", file(|file| file.depth = 20_000), words);
    let words = &["states 2147483647 pages in"];
    check_refused(&case, "index.parquet", file(|file| file.located = Some(MOST as u64)), words);
}

#[test]
fn pages_of_forged_sizes_are_refused() {
    let case = new_case();
    let (snappy, gzip, brotli, lz4, zstd, lz4_raw) = (1, 2, 4, 5, 6, 7);
    for (codec, name) in
        [(snappy, "snappy"), (gzip, "gzip"), (lz4, "lz4"), (zstd, "zstd"), (lz4_raw, "lz4_raw")]
    {
        for located in [None, Some(1)] {
            let mut file = ForgedParquet { codec, located, ..valid_file() };
            file.pages[0].decompressed = MOST;
            let words = [
                "column \"v\": the page at byte 4 states 2147483647 bytes, but its 11 bytes of",
                "at most",
            ];
            let name = format!("{name}{}.parquet", located.map_or("", |_| "_located"));
            check_refused(&case, &name, file.write(), &words);
        }
    }
    let mut file = ForgedParquet { codec: brotli, ..valid_file() };
    file.pages[0].decompressed = MOST;
    check_refused(&case, "brotli.parquet", file.write(), &["expected at most 1074790400"]);
    // The stated size is allowed for a page, but exceeds the limit of address space.
    file.pages[0].decompressed = 1 << 30;
    file.codec = zstd;
    file.pages[0].bytes = vec![0; 40_000];
    file.pages[0].stored = 40_000;
    let run = {
        case.put("room.parquet", file.write());
        super::load_in_small_memory(&case, "--quiet room.parquet --table t")
    };
    assert_eq!(run.status, Some(2), "{:?} {}", run.status, run.stderr);
    for (stored, words) in [(MOST, "Invalid page header"), (-1, "stored bytes")] {
        let mut file = valid_file();
        file.pages[0].stored = stored;
        check_refused(&case, &format!("stored{stored}.parquet"), file.write(), &[words]);
    }
}

#[test]
fn forged_value_counts_and_lengths_are_refused() {
    let case = new_case();
    for (physical, name) in [(BYTE_ARRAY, "text"), (INT64, "int8"), (FIXED, "fixed")] {
        let pages = [
            ParquetPage::new(DICTIONARY, PLAIN, MOST, &two_strings()),
            ParquetPage::new(DATA, BY_DICTIONARY, 2, &[1, 4, 1]),
        ];
        for located in [None, Some(1)] {
            let file = ForgedParquet {
                located,
                type_length: 4,
                ..ForgedParquet::new(physical, &pages, 2)
            };
            let name = format!("{name}{}.parquet", located.map_or("", |_| "_located"));
            check_refused(&case, &name, file.write(), &["states 2147483647 values in 11 bytes"]);
        }
    }
    let file = ForgedParquet::new(
        BYTE_ARRAY,
        &[ParquetPage::new(DATA, PLAIN, MOST, &two_strings())],
        MOST,
    );
    check_refused(&case, "values.parquet", file.write(), &["states 2147483647 values, expected"]);
    for (encoding, physical) in
        [(DELTA, INT64), (DELTA_LENGTHS, BYTE_ARRAY), (DELTA_STRINGS, BYTE_ARRAY)]
    {
        for count in [MOST as u64, u64::MAX >> 1] {
            let page = ParquetPage::new(DATA, encoding, 2, &delta_header(count));
            let file = ForgedParquet::new(physical, &[page], 2);
            let words = [format!("states 2 values in its header and {count} in its data")];
            let words = words.each_ref().map(String::as_str);
            check_refused(&case, &format!("delta{encoding}_{count}.parquet"), file.write(), &words);
        }
    }
    // The lengths of the suffixes follow the lengths of the prefixes.
    let bytes = [delta_header(1), delta_header(MOST as u64)].concat();
    let file =
        ForgedParquet::new(BYTE_ARRAY, &[ParquetPage::new(DATA, DELTA_STRINGS, 1, &bytes)], 1);
    let words = ["states 1 values in its header and 2147483647 in its data"];
    check_refused(&case, "delta_rest.parquet", file.write(), &words);
    let file = ForgedParquet {
        type_length: MOST,
        ..ForgedParquet::new(FIXED, &[valid_file().pages[0].clone()], 2)
    };
    check_refused(&case, "width.parquet", file.write(), &["could not decode the Parquet file"]);
}
