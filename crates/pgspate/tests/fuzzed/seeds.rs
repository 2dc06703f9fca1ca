//! The seeds: small valid inputs for each fuzz target.

use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, BinaryArray, DictionaryArray, Int32Array, Int64Array, ListArray, NullArray,
    RecordBatch, StringArray,
};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};

/// Returns the seeds of a target.
pub(crate) fn of(target: &str) -> Vec<Vec<u8>> {
    match target {
        "arrow" => arrow(),
        "conninfo" => lines(include_str!("seeds/conninfo.txt")),
        "delimited" => delimited(),
        "events" => events(),
        "json" => lines(include_str!("seeds/json.txt")),
        "parquet" => parquet(),
        _ => server(),
    }
}

/// Returns the lines of a text, one input each. The two characters `\n` stand for a newline.
fn lines(text: &str) -> Vec<Vec<u8>> {
    text.lines().map(|line| line.replace("\\n", "\n").into_bytes()).collect()
}

fn batch() -> RecordBatch {
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>([
        Some(vec![Some(1), None]),
        None,
        Some(vec![]),
        Some(vec![Some(3); 40]),
    ]);
    let names = StringArray::from(vec![Some("one"), None, Some("one"), Some("onetwo")]);
    let words: DictionaryArray<Int32Type> = ["a", "b", "a", "a"].into_iter().collect();
    let columns: [(&str, ArrayRef); 6] = [
        ("id", Arc::new(Int32Array::from_iter_values(0..4))),
        ("large", Arc::new(Int64Array::from(vec![None, Some(i64::MIN), Some(7), None]))),
        ("name", Arc::new(names)),
        ("bytes", Arc::new(BinaryArray::from_iter_values([&[0; 100][..], b"", b"x", b"yz"]))),
        ("list", Arc::new(list)),
        ("word", Arc::new(words)),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true)))
        .unwrap()
}

fn arrow() -> Vec<Vec<u8>> {
    let empty: ArrayRef = Arc::new(NullArray::new(3));
    let nothing = RecordBatch::try_from_iter([("nothing", empty)]).unwrap();
    let mut all = Vec::new();
    for packing in [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)] {
        let options = || IpcWriteOptions::default().try_with_compression(packing).unwrap();
        for batch in [batch(), nothing.clone()] {
            let schema = batch.schema();
            let mut writer =
                FileWriter::try_new_with_options(Vec::new(), &schema, options()).unwrap();
            writer.write(&batch).unwrap();
            writer.write(&batch.slice(0, 1)).unwrap();
            writer.finish().unwrap();
            all.push(writer.into_inner().unwrap());
            let mut writer =
                StreamWriter::try_new_with_options(Vec::new(), &schema, options()).unwrap();
            writer.write(&batch).unwrap();
            writer.finish().unwrap();
            all.push(writer.into_inner().unwrap());
        }
    }
    all
}

fn parquet() -> Vec<Vec<u8>> {
    let of = |set: fn(WriterPropertiesBuilder) -> WriterPropertiesBuilder| {
        let properties = set(WriterProperties::builder());
        let mut file = Vec::new();
        let batch = batch();
        let mut writer =
            ArrowWriter::try_new(&mut file, batch.schema(), Some(properties.build())).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        file
    };
    vec![
        of(|builder| builder.set_compression(Compression::SNAPPY)),
        of(|builder| {
            let builder = builder.set_compression(Compression::ZSTD(Default::default()));
            builder.set_writer_version(WriterVersion::PARQUET_2_0)
        }),
        of(|builder| builder.set_dictionary_enabled(false).set_compression(Compression::LZ4_RAW)),
        of(|builder| {
            let builder = builder.set_dictionary_enabled(false).set_offset_index_disabled(true);
            let builder = builder.set_column_encoding("name".into(), Encoding::DELTA_BYTE_ARRAY);
            let builder =
                builder.set_column_encoding("bytes".into(), Encoding::DELTA_LENGTH_BYTE_ARRAY);
            builder.set_column_encoding("id".into(), Encoding::DELTA_BINARY_PACKED)
        }),
        of(|builder| {
            builder
                .set_compression(Compression::GZIP(Default::default()))
                .set_offset_index_disabled(true)
        }),
    ]
}

/// Returns seeds whose first eight bytes are the options (`DelimitedSetup`).
fn delimited() -> Vec<Vec<u8>> {
    let setups = [[0; 8], [1, 3, 0, 0, 0, 0, 0, 40], [0x28, 2, b';', 0, 0, 0, 3, 7]];
    let texts = [
        "a,b,c\n1,\"x\ny\",\n2,\"\"\"\",3\r\n",
        "a\tb\\tc\t\\N\n\\x41\\101\n\\.\n",
        "#x\n\na;b;c\n\"1\";2;\n",
    ];
    let all = setups.iter().flat_map(|setup| texts.iter().map(move |text| (setup, text)));
    all.map(|(setup, text)| [&setup[..], text.as_bytes()].concat()).collect()
}

/// Returns seeds whose first byte selects the decoder.
fn events() -> Vec<Vec<u8>> {
    let records = include_str!("seeds/events.txt");
    let mut all: Vec<Vec<u8>> = records
        .lines()
        .flat_map(|record| (0..7).map(move |which| [&[which], record.as_bytes()].concat()))
        .collect();
    all.push([&[4][..], &pgoutput().join(&0xFE)].concat());
    all
}

/// Returns one message of each kind.
fn pgoutput() -> Vec<Vec<u8>> {
    let begin = [&b"B"[..], &[0; 7], &[9], &[0; 8], &[0, 0, 0, 7]].concat();
    let mut relation = b"R\0\0\0\x01s\0t\0d\0\x02".to_vec();
    relation.extend(b"\x01id\0\0\0\0\x17\xFF\xFF\xFF\xFF\0b\0\0\0\0\x19\xFF\xFF\xFF\xFF");
    let insert = b"I\0\0\0\x01N\0\x02t\0\0\0\x011t\0\0\0\x02ab".to_vec();
    let update = b"U\0\0\0\x01K\0\x02t\0\0\0\x011nN\0\x02t\0\0\0\x012u".to_vec();
    let delete = b"D\0\0\0\x01O\0\x02t\0\0\0\x011n".to_vec();
    let truncate = b"T\0\0\0\x01\0\0\0\0\x01".to_vec();
    let commit = [&b"C\0"[..], &[0; 8], &[0, 0, 0, 0, 0, 0, 0, 9], &[0; 8]].concat();
    vec![begin, relation, insert, update, delete, truncate, commit]
}

/// Returns seeds whose first byte is the size of the pieces that the rest is split into.
fn server() -> Vec<Vec<u8>> {
    let login = b"R\0\0\0\x08\0\0\0\0S\0\0\0\x08a\0b\0K\0\0\0\x0c\0\0\0\x01\0\0\0\x02Z\0\0\0\x05I";
    let refusal = b"E\0\0\0\x15SERROR\0C42501\0Mno\0\0Z\0\0\0\x05E";
    let copy = b"G\0\0\0\x07\0\0\0W\0\0\0\x07\0\0\0d\0\0\0\x06xyC\0\0\0\x0bCOPY 1\0";
    vec![
        [&[1][..], login, refusal].concat(),
        [&[7][..], login, copy].concat(),
        [&[200][..], refusal].concat(),
    ]
}
