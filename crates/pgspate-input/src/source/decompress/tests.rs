//! Tests of every compression with whole data, data cut at each byte, and damaged data.

use std::io::Write;

use proptest::prelude::*;

use super::*;

const KINDS: [Compression; 4] =
    [Compression::Gzip, Compression::Zstd, Compression::Bzip2, Compression::Xz];

fn compress(kind: Compression, data: &[u8]) -> Vec<u8> {
    match kind {
        Compression::None => data.to_vec(),
        Compression::Gzip => {
            let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            out.write_all(data).unwrap();
            out.finish().unwrap()
        }
        Compression::Zstd => {
            let mut out = ::zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
            out.include_checksum(true).unwrap();
            out.write_all(data).unwrap();
            out.finish().unwrap()
        }
        Compression::Bzip2 => {
            let mut out = ::bzip2::write::BzEncoder::new(Vec::new(), ::bzip2::Compression::fast());
            out.write_all(data).unwrap();
            out.finish().unwrap()
        }
        Compression::Xz => {
            let mut out = liblzma::write::XzEncoder::new(Vec::new(), 1);
            out.write_all(data).unwrap();
            out.finish().unwrap()
        }
    }
}

/// Decompresses `stored` as a reader would.
fn decode(stored: &[u8], name: &str) -> Result<Vec<u8>, Error> {
    let head = &stored[..stored.len().min(MAGIC_BYTES)];
    let kind = Compression::detect(head, name)?;
    if kind == Compression::None {
        return Ok(stored.to_vec());
    }
    let progress = ReadProgress::new(None);
    // With a small buffer, members, headers and trailers cross buffer edges.
    let source = std::io::BufReader::with_capacity(7, stored);
    let mut decoded = DecompressedReader::new(source, kind, name.into(), Arc::clone(&progress))?;
    let mut out = Vec::new();
    decoded.read_to_end(&mut out).map_err(|e| e.downcast::<Error>().unwrap())?;
    assert_eq!(progress.stored(), stored.len() as u64);
    Ok(out)
}

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * i % 251) as u8).collect()
}

#[test]
fn whole_data_is_decoded() {
    for kind in KINDS {
        for len in [0, 1, 1000, 300_000] {
            let data = text(len);
            let stored = compress(kind, &data);
            assert_eq!(decode(&stored, "x").unwrap(), data, "{kind} {len}");
        }
    }
}

#[test]
fn several_members_are_joined() {
    for kind in KINDS {
        let mut stored = compress(kind, b"one,");
        stored.extend(compress(kind, b""));
        stored.extend(compress(kind, &text(5000)));
        let expected = [b"one,".as_slice(), &text(5000)].concat();
        assert_eq!(decode(&stored, "x").unwrap(), expected, "{kind}");
    }
}

#[test]
fn data_truncated_at_any_byte_is_an_error() {
    let names = ["a.csv.gz", "a.csv.zst", "a.csv.bz2", "a.csv.xz"];
    for (kind, name) in KINDS.into_iter().zip(names) {
        let stored = [compress(kind, &text(700)), compress(kind, b"more")].concat();
        let first = compress(kind, &text(700)).len();
        for cut in 0..stored.len() {
            let result = decode(&stored[..cut], name);
            if cut == first {
                assert_eq!(result.unwrap(), text(700), "{kind} after the first member");
                continue;
            }
            let error = result.expect_err(&format!("{kind} cut at {cut} of {}", stored.len()));
            let expected = format!("{kind} data ends early at byte {cut}");
            assert_eq!(error.to_string(), expected);
            assert_eq!(error.place().unwrap().source.as_deref(), Some(name));
        }
    }
}

#[test]
fn a_damaged_byte_never_yields_other_data() {
    for kind in KINDS {
        let data = text(700);
        let stored = compress(kind, &data);
        for at in 0..stored.len() {
            let mut damaged = stored.clone();
            damaged[at] ^= 0x41;
            // Damaged header bytes, such as a time, do not change the data. Input with a damaged
            // signature is read as uncompressed data. The reader must never return other data.
            if let Ok(out) = decode(&damaged, "x") {
                assert!(out == data || out == damaged, "{kind} damaged at {at}");
            }
        }
    }
}

#[test]
fn only_padding_may_follow_the_data() {
    for kind in [Compression::Gzip, Compression::Bzip2] {
        let mut stored = compress(kind, b"data");
        stored.extend([0; 1024]);
        assert_eq!(decode(&stored, "x").unwrap(), b"data", "{kind}");
        stored.extend(compress(kind, b"more"));
        let error = decode(&stored, "x").unwrap_err();
        let offset = stored.len() - compress(kind, b"more").len();
        let expected = format!("could not decompress {kind} data at byte {offset}");
        assert_eq!(error.to_string(), expected);
    }
    for kind in KINDS {
        let mut stored = compress(kind, b"data");
        stored.extend(b"trailing garbage");
        assert!(decode(&stored, "x").is_err(), "{kind}");
    }
    let mut padded = compress(Compression::Xz, b"data");
    padded.extend([0; 8]);
    padded.extend(compress(Compression::Xz, b"more"));
    assert_eq!(decode(&padded, "x").unwrap(), b"datamore");
}

#[test]
fn skippable_zstd_frames_are_skipped() {
    let skip = [&[0x51, 0x2a, 0x4d, 0x18, 3, 0, 0, 0], b"abc".as_slice()].concat();
    let frame = compress(Compression::Zstd, b"data");
    let stored = [skip.clone(), frame.clone(), skip.clone(), frame, skip].concat();
    assert_eq!(decode(&stored, "x").unwrap(), b"datadata");
}

#[test]
fn texts_are_not_taken_for_compressed() {
    for text in
        ["", "a", "B", "BZ", "BZh", "BZh9", "BZhello,world", "(a,b)", "7z,x", "PK,name", "P*M\n"]
    {
        assert_eq!(decode(text.as_bytes(), "x.csv").unwrap(), text.as_bytes(), "{text}");
    }
}

#[test]
fn errors_name_unsupported_archives() {
    let error = decode(b"PK\x03\x04 and so on", "a.xlsx").unwrap_err();
    let expected = "\"a.xlsx\" is a zip archive (or a spreadsheet), which pgspate does not read";
    assert_eq!(error.to_string(), expected);
    assert!(error.hint_text().is_some());
    assert!(decode(&[0x04, 0x22, 0x4d, 0x18, 0x64, 0x40, 0xa7, 0, 0, 0, 0], "x").is_err());
}

#[test]
fn a_frame_with_a_huge_window_is_refused() {
    // The header of this zstd frame requests a window of 2 GiB, so the frame must be refused.
    let mut stored = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, (31 - 10) << 3];
    stored.extend([0; 16]);
    let error = decode(&stored, "x").unwrap_err();
    assert_eq!(error.to_string(), "could not decompress zstd data at byte 0");
}

proptest! {
    #[test]
    fn random_bytes_after_a_signature_do_not_panic(
        kind in 0..4usize,
        data in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let magic: [&[u8]; 4] = [
            &[0x1f, 0x8b, 8],
            &ZSTD,
            b"BZh91AY&SY",
            &XZ,
        ];
        let stored = [magic[kind], &data].concat();
        let _ = decode(&stored, "x");
    }

    #[test]
    fn damaged_and_truncated_data_does_not_panic(
        kind in 0..4usize,
        cut in 0..400usize,
        at in 0..400usize,
        byte: u8,
    ) {
        let mut stored = compress(KINDS[kind], &text(900));
        let at = at % stored.len();
        stored[at] = byte;
        stored.truncate(stored.len() - cut % stored.len());
        let _ = decode(&stored, "x");
    }

    #[test]
    fn compressed_data_is_restored(
        kind in 0..4usize,
        data in prop::collection::vec(any::<u8>(), 0..3000),
    ) {
        let stored = compress(KINDS[kind], &data);
        prop_assert_eq!(decode(&stored, "x").unwrap(), data);
    }
}
